"""Prepare an image: run cloud-init's first boot on a built one, and keep the result beside it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, BusyError
from labctl.base.events import Listener, Note
from labctl.base.runner_archive import runner_archive
from labctl.base.tuning import Tuning
from labctl.domain.asked import ExpectedThread, expected_threads
from labctl.domain.session import RunningGuest
from labctl.guest import seed
from labctl.guest.images import Image
from labctl.host.lock import WAIT_S, flock_within
from labctl.run.guests.lab import Lab
from labctl.run.guests.started import answering, hand_over, image_xml
from labctl.run.resources.disks import DiskFile, Disks, make_overlay

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
        # Not from the XML: a fault in the templates must show.
        return expected_threads(tuning, lab.pin_plan_for(tuning), lab.topology.usable)

    def greet(self, lab: Lab, running: RunningGuest, deadline: Deadline) -> None:
        pass

    def quieten(self, channel: Channel) -> None:
        pass  # the image's recipe has left it out

    def hint(self, lab: Lab) -> str:
        given = self.image.given_kernel
        if given is None:
            return "'labctl image verify' shows whether its image is whole."
        initrd = "an initrd" if self.image.initrd is not None else "no initrd"
        modules = given["modules"] or "nowhere but the image"
        return (
            f"It boots {given['file']} ({given['release']}) with {initrd}; modules from {modules}. "
            "The kernel or its initrd must have virtio_pci, virtio_blk and ext4; virtio_console "
            "and isofs may be modules. Without '--kernel' it boots the image's own."
        )


def prepared_path(image: Image) -> Path:
    """Return where the overlay lies that a first boot of the image provisions.

    It is named by its seed's digest, so that another runner or another user-data makes another.
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

    Raises BrokenError with the log's last lines when cloud-init failed.
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
    result. It may not make another in its place, which would change the disk below a saved guest.

    The host's lock is not enough: state folders may share images, containers have a /run of their
    own. The kernel lets go of this one however its holder ends.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            listener(Note(text="Another labctl boots this image for the first time: waiting."))
            if not flock_within(descriptor, WAIT_S):
                raise BusyError(
                    f"another labctl boots the image in {folder.parent} for the first time, and "
                    f"has not ended within {WAIT_S:.0f} s",
                    hint="See which process has that folder open: 'lsof +D FOLDER'.",
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
    # By a relative name, so that the state folder may be moved, or be known by another path.
    make_overlay(Path(os.path.relpath(lab.image.disk, disk.parent)), disk)
    hand_over(lab, disk)
    try:
        running = lab.session.start(image_xml(lab, baseline, disk, seed_disk))
        with answering(lab, running, lab.boot_s * _FIRST_BOOT, is_booting=True) as channel:
            _wait_for_cloud_init(channel, lab.boot_s * _FIRST_BOOT)
            for argv in seed.finish_commands():
                _run(channel, argv)
            # Nothing is written after this: the guest can be ended as by a loss of power.
            _run(channel, ["mount", "-o", "remount,ro", "/"], check=False)
            _run(channel, ["sync"])
        os.chown(disk, os.geteuid(), lab.qemu_ids[1])
        disk.chmod(0o640)
        disk.rename(prepared)
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
