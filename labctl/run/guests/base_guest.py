"""Prepare an image: run cloud-init's first boot on a built one, and keep the result beside it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.errors import BrokenError, BusyError, HostError
from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths
from labctl.base.placement import refuse
from labctl.base.process import Deadline
from labctl.base.runner_messages import runner_archive
from labctl.base.tuning import Tuning
from labctl.base.xmldiff import parse
from labctl.domain.agent import GuestAgent
from labctl.domain.asked import ExpectedThread, expected_threads
from labctl.domain.calls import ConnectionLostError
from labctl.domain.foreign import foreign_domain
from labctl.domain.foreign.copied import Copied, CopyRequest, confirmed, copied
from labctl.domain.foreign.foreign_domain import OwnDomain
from labctl.domain.foreign.graft import grafted, problems, with_data_disk
from labctl.domain.schema import validate
from labctl.domain.session import RunningGuest
from labctl.guest import seed
from labctl.guest.images import Image
from labctl.host.accelerator import Accelerator, Requested, accelerator
from labctl.host.lock import WAIT_S, flock_within
from labctl.run.guests.lab import GuestSource, Lab
from labctl.run.guests.started import answering, console_end, hand_over, image_xml
from labctl.run.planning.conditions import beside_of, neighbours_of
from labctl.run.planning.host import rt_runtime_us
from labctl.run.planning.images import built_image
from labctl.run.planning.own_domain import OwnGuest
from labctl.run.planning.planned import Planned
from labctl.run.resources.disks import FLASH, DiskFile, Disks, make_overlay
from labctl.store.jsonfile import sync
from labctl.study.conditions import Kind
from labctl.workloads.registry import workload_of

# Make the XML of a copy of the administrator's own domain, for each tuning.


NVRAM = "nvram"


def xml_of(own: OwnGuest, baseline: Tuning, lab: Lab, tuning: Tuning, disks: Disks) -> str:
    """Return the validated domain XML of a tuning's copy."""
    root = lab.work / "root.qcow2"  # of labctl's own domain, which defines a tuning
    plain, rendered = (image_xml(lab, t, root) for t in (baseline, tuning))
    xml = grafted(made(own, baseline, lab, disks).xml, tuning, plain, rendered)
    refuse(tuning.name, problems(xml, lab.pin_plan_for(tuning), rt_runtime_us(tuning)))
    xml = with_data_disk(xml, rendered)
    what = f"labctl's copy of '{own.domain.name}'"
    xml = confirmed(xml, _paths(own.domain, lab, disks, rendered), _label(lab), what)
    validate(xml, what=what)
    return xml


def made(own: OwnGuest, baseline: Tuning, lab: Lab, disks: Disks) -> Copied:
    """Return the copy of the administrator's domain, without a tuning."""
    confined = lab.pin_plan_for(baseline)
    return copied(
        own.domain,
        CopyRequest(
            name=lab.domain_name,
            uuid=lab.domain_uuid,
            accelerator=lab.accelerator.name,
            disabled_features=lab.accelerator.disabled_features,
            disks={name: disk.path for name, disk in disks.items()},
            nvram=disks[NVRAM].path if NVRAM in disks else None,
            console_log=lab.console_log,
            runner_socket=lab.runner_socket,
            agent_socket=lab.agent_socket,
            label=_label(lab),
            keep_network=own.keep_network,
            confined_to=confined.usable if confined.usable != confined.online else None,
        ),
    )


def _paths(own: OwnDomain, lab: Lab, disks: Disks, rendered: str) -> frozenset[str]:
    """Return every file that the copy may name."""
    labctls = parse(rendered).iterfind("devices/disk/source")
    return frozenset(
        (
            *(str(disk.path) for disk in disks.values()),
            *(str(disk.path) for disk in own.read_only),
            *map(str, (*own.firmware, *own.boot_files)),
            *map(str, (lab.console_log, lab.runner_socket, lab.agent_socket)),
            *(source.get("file", "") for source in labctls),
        )
    )


def _label(lab: Lab) -> str:
    """Return the user that a copy's QEMU runs as. A daemon's QEMU user can read the original's
    disks only if libvirt gives them to it; root reads them as they are."""
    user, group = lab.qemu_ids if lab.qemu_user else (0, 0)
    return f"+{user}:+{group}"


# Start labctl's runner in a guest through the guest's own QEMU agent.


def start_runner(
    running: RunningGuest,
    runner: bytes,
    paths: Sequence[str],
    packages: Sequence[str],
    console: Path,
    deadline: Deadline,
) -> None:
    """Start labctl's runner in a booting guest through its agent. `runner`: its archive; `paths`:
    those that must exist; `packages`: Debian packages that contain them. Raises HostError with the
    console's end if the agent does not answer."""
    agent = GuestAgent(running.agent)
    try:
        agent.wait(deadline)
    except ConnectionLostError:
        raise  # the guest's console does not explain this
    except HostError as error:
        message = f"{error.message}{console_end(console)}"
        raise HostError(message, hint=error.hint) from error
    agent.start_runner(runner, paths, packages)


# Provide guests that are copies of the administrator's own domain (docs/own-vm.md).


_QUIET = (
    "*.timer",
    *("chrony.service", "chronyd.service", "ntp.service", "ntpd.service", "ntpsec.service"),
    "systemd-timesyncd.service",
)
"""Units of a guest that would run beside a workload, or set its clock (METHOD rule 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnVm:
    """Provide copies of the administrator's domain. `paths`: the programs that the study's
    workloads run in the guest; `packages`: Debian's for them."""

    own: OwnGuest
    baseline: Tuning
    paths: tuple[str, ...]
    packages: tuple[str, ...] = ()

    @property
    def has_native_side(self) -> bool:
        return False

    @property
    def says_everything(self) -> bool:
        return False

    @property
    def may_boot_two(self) -> bool:
        return False  # nothing says that this host has memory for two of them

    def disks(self, lab: Lab, baseline: Tuning) -> Disks:
        domain = self.own.domain
        disks = {disk.name: DiskFile(disk.path, disk.format) for disk in domain.disks}
        if domain.is_uefi:
            disks[NVRAM] = DiskFile(domain.nvram or lab.work / "no-nvram.fd", FLASH)
        for note in made(self.own, self.baseline, lab, disks).notes:
            lab.listener(Note(text=f"In labctl's copy of '{domain.name}', {note}."))
        return disks

    def check(self) -> None:
        self.own.check()

    def xml(self, lab: Lab, tuning: Tuning, disks: Disks) -> str:
        return xml_of(self.own, self.baseline, lab, tuning, disks)

    def expected_threads(self, lab: Lab, tuning: Tuning, xml: str) -> list[ExpectedThread]:
        # The domain's own pins and policies apply if the tuning sets none.
        return foreign_domain.expected_threads(xml, lab.vcpus, lab.topology.usable)

    def greet(self, lab: Lab, running: RunningGuest, deadline: Deadline) -> None:
        start_runner(
            running, runner_archive(), self.paths, self.packages, lab.console_log, deadline
        )

    def quieten(self, channel: Channel) -> None:
        # It ends with an error if one of them does not exist.
        channel.run(Command(argv=("systemctl", "stop", *_QUIET)), seconds=120)

    def hint(self, lab: Lab) -> str:
        return (
            f"Check that '{self.own.domain.name}' boots. A study's 'limits.boot_s' sets the "
            "time limit."
        )


_FIRST_BOOT = 2.0
"""Factor by which a first boot may take longer than later ones: cloud-init provisions in it."""


_ROOT = "root"


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Provide guests of an image that labctl built, which contains its runner and starts it."""

    image: Image

    @property
    def has_native_side(self) -> bool:
        return True

    @property
    def says_everything(self) -> bool:
        return True

    @property
    def may_boot_two(self) -> bool:
        return True

    def disks(self, lab: Lab, baseline: Tuning) -> Disks:
        return {_ROOT: DiskFile(prepared_disk(lab, baseline))}

    def check(self) -> None:
        pass  # labctl's own files

    def xml(self, lab: Lab, tuning: Tuning, disks: Disks) -> str:
        return image_xml(lab, tuning, disks[_ROOT].path)

    def expected_threads(self, lab: Lab, tuning: Tuning, xml: str) -> list[ExpectedThread]:
        # Not from the XML, so that a fault in the templates shows.
        return expected_threads(tuning, lab.pin_plan_for(tuning), lab.topology.usable)

    def greet(self, lab: Lab, running: RunningGuest, deadline: Deadline) -> None:
        pass

    def quieten(self, channel: Channel) -> None:
        pass  # the image's recipe has left it out

    def hint(self, lab: Lab) -> str:
        given = self.image.given_kernel
        if given is None:
            return "Check its image with 'labctl image verify'."
        initrd = "an initrd" if self.image.initrd is not None else "no initrd"
        modules = given["modules"] or "the image only"
        return (
            f"It boots {given['file']} ({given['release']}) with {initrd}; modules from "
            f"{modules}. The kernel or its initrd must have virtio_pci, virtio_blk and "
            "ext4; virtio_console and isofs may be modules. Without '--kernel', the guest "
            "boots the image's kernel."
        )


def prepared_path(image: Image) -> Path:
    """Return the path of the overlay that a first boot of the image provisions.

    Its name contains the seed's digest: another runner or another user-data makes another
    overlay.
    """
    return image.prepared_dir / f"{seed.seed_digest(_seed_files(image))[:12]}.qcow2"


def _seed_files(image: Image) -> Mapping[str, str]:
    return seed.render(
        hostname="labctl-guest",
        instance_id="labctl-1",
        user=str(image.manifest["user"]),
        runner=runner_archive(),
    )


def prepared_disk(lab: Lab, baseline: Tuning) -> Path:
    """Return the overlay that a first boot of the image provisioned; booted now if there is none.

    Raises BrokenError with the log's last lines if cloud-init failed.
    """
    prepared = prepared_path(lab.image)
    if prepared.is_file():
        return prepared
    lab.image.prepared_dir.mkdir(exist_ok=True)
    with _alone(lab.image.prepared_dir, lab.listener):
        if not prepared.is_file():
            lab.listener(Note(text="First boot: cloud-init provisions the guest image (once)."))
            _boot_first(lab, baseline, prepared)
    return prepared


@contextmanager
def _alone(folder: Path, listener: Listener) -> Iterator[None]:
    """Allow one first boot of an image at a time: the second waits, and takes the first one's
    result. It must not make another in its place, which would change the disk below a saved guest.

    The host's lock is not enough: state folders may share images, and containers have a /run of
    their own. The kernel releases this lock however its holder ends.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            listener(Note(text="Another labctl is booting this image for the first time: waiting."))
            if not flock_within(descriptor, WAIT_S):
                raise BusyError(
                    f"another labctl is booting the image in {folder.parent} for the first "
                    f"time and has not finished within {WAIT_S:.0f} s",
                    hint="Find the process that uses the folder: 'lsof +D FOLDER'.",
                ) from None
        yield
    finally:
        os.close(descriptor)


def _boot_first(lab: Lab, baseline: Tuning, prepared: Path) -> None:
    """Boot the image with its seed, and keep the overlay as `prepared`."""
    seed_disk = lab.work / "seed.iso"
    seed.write_seed(seed_disk, _seed_files(lab.image))
    hand_over(lab, seed_disk)
    disk = prepared.with_name(f".{prepared.name}.new")
    disk.unlink(missing_ok=True)  # of a labctl that was killed: its guest may still write to it
    # By a relative name, so that the state folder may be moved or mounted elsewhere.
    make_overlay(Path(os.path.relpath(lab.image.disk, disk.parent)), disk)
    hand_over(lab, disk)
    try:
        running = lab.session.start(image_xml(lab, baseline, disk, seed_disk))
        with answering(lab, running, lab.boot_s * _FIRST_BOOT, is_booting=True) as channel:
            _wait_for_cloud_init(channel, lab.boot_s * _FIRST_BOOT)
            for argv in seed.finish_commands():
                _run(channel, argv)
            # Nothing is written after this, so the guest can be killed as by a loss of power.
            _run(channel, ["mount", "-o", "remount,ro", "/"], check=False)
            _run(channel, ["sync"])
        os.chown(disk, os.geteuid(), lab.qemu_ids[1])
        disk.chmod(0o640)
        sync(disk)
        disk.rename(prepared)
        sync(prepared.parent)
    finally:
        disk.unlink(missing_ok=True)


def _wait_for_cloud_init(channel: Channel, seconds: float) -> None:
    channel.run(Command(argv=("cloud-init", "status", "--wait")), seconds=seconds)
    texts = channel.read([seed.RESULT_PATH, seed.LOG_PATH], Deadline.after(30, "cloud-init's log"))
    problem = seed.status_problem(texts[seed.RESULT_PATH] or "", texts[seed.LOG_PATH] or "")
    if problem is not None:
        raise BrokenError(
            problem, hint="Compare 'templates/cloud-init' in the lab folder with labctl's own."
        )


def _run(channel: Channel, argv: list[str], *, check: bool = True) -> None:
    result = channel.run(Command(argv=tuple(argv)), seconds=120)
    if check and result.returncode != 0:
        said = result.stderr.decode(errors="replace").strip()
        raise BrokenError(f"'{' '.join(argv)}' failed in the guest's first boot: {said}")


# Choose the image and the accelerator of a run's guests.


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestBase:
    """Hold the image, the guests' accelerator, and the source of their disks."""

    image: Image
    accelerator: Accelerator
    source: GuestSource
    others: Mapping[str, tuple[Image, GuestSource]] = field(default_factory=dict)
    """Image of arms with another image or kernel than the baseline, by tuning, and the source of
    their guests' disks."""


def guest_base(
    planned: Planned, places: StatePaths, accel: Requested, listener: Listener
) -> GuestBase:
    """Return the base of a plan's guests; the image is built now if there is none."""
    image = built_image(planned.recipe, places, listener)
    return GuestBase(
        image=image,
        accelerator=accelerator(accel, image.kernel, places),
        source=_source(planned, image),
        others={
            name: (other, ImageSource(other))
            for name, recipe in planned.recipes.items()
            for other in (built_image(recipe, places, listener),)
        },
    )


def _source(planned: Planned, image: Image) -> GuestSource:
    if planned.own is None:
        return ImageSource(image)
    plan = planned.plan
    programs = [workload_of(declared) for declared in plan.workloads.values()]
    besides = [beside_of(one) for one in neighbours_of(plan) if one.kind is Kind.GUESTS]
    paths = {path for one in programs for path in one.binaries}
    paths |= {path for one in besides for path in one.binaries}
    programs += [beside.program for beside in besides]
    return OwnVm(
        own=planned.own,
        baseline=planned.tunings[plan.roles.baseline],
        paths=tuple(sorted(paths)),
        packages=tuple(dict.fromkeys(name for one in programs for name in one.file.packages)),
    )
