"""Define what every part of a run has in hand, and how it is opened."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from labctl.base.channel import Channel
from labctl.base.deadline import Deadline
from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths
from labctl.base.signals import cleaning_up
from labctl.base.tuning import Strategy, Tuning
from labctl.domain.asked import ExpectedThread
from labctl.domain.pinning.pin_plan import PinPlan
from labctl.domain.render import mac_of
from labctl.domain.session import RunningGuest, Session, is_embedded
from labctl.guest.images import Image, keep_private
from labctl.host import cgroups, guest_cgroups
from labctl.host.accelerator import Accelerator
from labctl.host.link import Link, link
from labctl.host.settings.journal import Journal
from labctl.host.topology import Topology
from labctl.run.planning.planned import Planned, has_peers
from labctl.run.resources.disks import RAW, DataDisk, Disks
from labctl.run.resources.huge_pages import hugetlbfs_mounted, pages_of, sizes_in_files
from labctl.run.resources.qemu_user import QemuUser, qemu_user

DOMAIN_NAMES = ("labctl-guest", "labctl-guest-2")
"""A host has one run at a time. Two of its guests may boot at once, and as a restore can't rename a
domain, what is saved of either is restored under its own name."""


class GuestSource(Protocol):
    """Hold what a run's guests are made of: an image of labctl's (`run.prepare`), or the
    administrator's own domain (`run.own_vm`)."""

    @property
    def has_native_side(self) -> bool:
        """Return whether native runs use the same programs, file by file."""

    @property
    def says_everything(self) -> bool:
        """Return whether its XML leaves nothing for libvirt to fill in of what read-back
        compares."""

    def disks(self, lab: Lab, baseline: Tuning) -> Disks:
        """Return what every boot starts from; made ready now if need be."""

    def check(self) -> None:
        """Raise HostError when those are no longer what they were."""

    @property
    def may_boot_two(self) -> bool:
        """Return whether two of its guests may boot at once."""

    def xml(self, lab: Lab, tuning: Tuning, disks: Disks) -> str:
        """Return the validated domain XML of a tuning."""

    def expected_threads(self, lab: Lab, tuning: Tuning, xml: str) -> list[ExpectedThread]:
        """Return what each thread of a guest with that XML must show."""

    def greet(self, lab: Lab, running: RunningGuest, deadline: Deadline) -> None:
        """See to it that labctl's runner starts in a guest that boots."""

    def quieten(self, channel: Channel) -> None:
        """End what would run beside a workload in a guest that has booted."""

    def hint(self, lab: Lab) -> str:
        """Return what to do when a guest doesn't answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Hold the host, the image and the open connection that guests are made with.

    `image`: native runs and neighbours use its programs, whatever guests are made of.
    `work`: the folder for overlays, save files and sockets; emptied before and after a run.
    """

    places: StatePaths
    work: Path
    image: Image
    source: GuestSource
    accelerator: Accelerator
    session: Session
    qemu_user: QemuUser | None
    """User that QEMU runs as; None: the one in the daemon's own configuration."""
    journal: Journal
    layout: cgroups.Layout
    topology: Topology
    pin_plans: Mapping[Strategy, PinPlan]
    tunings: Mapping[str, Tuning]
    vcpus: int
    memory_mib: int
    boot_s: float
    """Time to a guest's first answer."""
    data: DataDisk
    link: Link | None
    """Link over which workloads reach their peer; None in a run without such a workload."""
    listener: Listener
    seat: int = 0
    """Seat of a guest among those that may boot at once: 0 or 1. Each has a name, sockets and a
    console of its own."""

    @property
    def domain_name(self) -> str:
        return DOMAIN_NAMES[self.seat]

    def pin_plan_for(self, tuning: Tuning) -> PinPlan:
        """Return where the threads of a tuning that pins by the plan run."""
        return self.pin_plans[tuning.pin.strategy]

    @property
    def pin_plan(self) -> PinPlan:
        """Return the one that tunings use unless they say otherwise."""
        return self.pin_plans[Strategy.COMPACT]

    @property
    def domain_uuid(self) -> str:
        return _uuid(self.work, self.seat)

    @property
    def qemu_ids(self) -> tuple[int, int]:
        """Return the user and group id that QEMU runs as."""
        known = self.qemu_user
        return (known.uid, known.gid) if known else self.session.qemu_user()

    @property
    def runner_socket(self) -> Path:
        return self.sockets / f"runner{self._suffix}.sock"

    @property
    def agent_socket(self) -> Path:
        return self.sockets / f"agent{self._suffix}.sock"

    @property
    def sockets(self) -> Path:
        """Return the folder of sockets. libvirt makes them and hands them to QEMU, which writes to
        no folder of labctl's.
        """
        return self.work / "sockets"

    @property
    def console_log(self) -> Path:
        return self.work / f"console{self._suffix}.log"

    @property
    def qemu_log(self) -> Path:
        """Return what QEMU says of the guests, and libvirt of its end."""
        return logs_of_qemu(self.session.uri) / f"{self.domain_name}.log"

    @property
    def _suffix(self) -> str:
        return f"-{self.seat + 1}" if self.seat else ""


def logs_of_qemu(uri: str) -> Path:
    """Return the folder in which the libvirt of that URI keeps what QEMU says. An embedded one
    keeps it under the root that the URI names, whoever named it
    (docs/decisions/embedded-libvirt.md)."""
    if not is_embedded(uri):
        return Path("/var/log/libvirt/qemu")
    # As libvirt decodes it (virURIParse): a plus is a plus.
    (root,) = parse_qs(urlsplit(uri).query.replace("+", "%2B"))["root"]
    return Path(root) / "log/qemu"


@contextmanager
def open_lab(
    places: StatePaths,
    planned: Planned,
    *,
    image: Image,
    source: GuestSource,
    accelerator: Accelerator,
    connect: str | None = None,
    listener: Listener,
) -> Iterator[Lab]:
    """Prepare the host for guests of `planned`; leave it as it was found, with no guest running.

    `connect`: a libvirt URI, else libvirt runs embedded. The caller holds the host's lock.
    """
    journal = Journal(places.journal)
    layout = cgroups.detect()
    with ExitStack() as stack:
        work = stack.enter_context(_work_folder(places))
        stack.enter_context(cgroups.controllers_enabled(layout, journal))
        # A daemon knows the mounts of its own host.
        sizes = () if connect else _page_sizes(planned)
        mounts = stack.enter_context(hugetlbfs_mounted(sizes, places.hugetlbfs, journal))
        stack.enter_context(_no_guest_cgroups_left(places))
        user = None
        if not connect:
            opened = [*_folders_of(image), work, places.data, places.libvirt_root]
            own = planned.own.domain if planned.own else None
            files = _files_of(image)
            user = qemu_user(accelerator, opened, files, planned.tunings.values(), own)
            listener(Note(text=user.sentence))
        session = stack.enter_context(_session(places, layout, connect, mounts, user))
        links: AbstractContextManager[Link | None] = (
            link(journal, mac_of(_uuid(work, seat=0))) if has_peers(planned.plan) else nullcontext()
        )
        lab = Lab(
            places=places,
            work=work,
            qemu_user=user,
            image=image,
            source=source,
            accelerator=accelerator,
            session=session,
            journal=journal,
            layout=layout,
            topology=planned.topology,
            pin_plans=planned.pin_plans,
            tunings=planned.tunings,
            vcpus=len(planned.pin_plan.vcpus),
            memory_mib=planned.plan.guest.memory_mib,
            boot_s=planned.plan.limits.boot_s,
            data=DataDisk(
                places.data,
                formats=frozenset({RAW, *(t.disk.format for t in planned.tunings.values())}),
            ),
            link=stack.enter_context(links),
            listener=listener,
        )
        lab.sockets.mkdir(mode=0o700)
        lab.data.make()
        open_to_qemu(lab)
        yield lab


def open_to_qemu(lab: Lab) -> None:
    """Let QEMU's group, and no other user of the host, read what guests are made of.

    A guest that breaks out of QEMU reaches the files of its own run with it, and neither the
    image's tree, with its set-user-ID programs, nor older runs.
    """
    user, group = lab.qemu_ids
    open_image(lab.image, group)
    for folder in (lab.work, lab.data.folder):
        _let_pass(folder, group)
    for file in map(lab.data.path_in, lab.data.formats):
        # A daemon gives it to QEMU's user itself, and takes it back.
        os.chown(file, user if lab.session.is_embedded else -1, group)
        file.chmod(0o640)


def open_image(image: Image, group: int) -> None:
    """Let a group read an image's files, and not its tree."""
    for folder in filter(Path.is_dir, _folders_of(image)):
        _let_pass(folder, group)
    for file in _files_of(image):
        os.chown(file, -1, group)
        file.chmod(0o640)
    keep_private(image.dir)


def _folders_of(image: Image) -> list[Path]:
    return [image.dir.parent, image.dir, image.prepared_dir]


def _files_of(image: Image) -> list[Path]:
    files = (image.disk, image.kernel, image.initrd, *image.prepared_dir.glob("[!.]*"))
    return [file for file in files if file is not None and file.is_file()]


def _let_pass(folder: Path, group: int) -> None:
    os.chown(folder, -1, group)
    folder.chmod(0o710)


def _page_sizes(planned: Planned) -> set[str]:
    """Sizes of the huge pages that guests of `planned` take from files."""
    own = pages_of(planned.own.domain.xml) if planned.own is not None else ()
    return sizes_in_files(planned.tunings.values()) | {pages.size for pages in own}


def _uuid(work: Path, seat: int) -> str:
    which = f":{seat + 1}" if seat else ""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"labctl:{work}{which}"))


@contextmanager
def _work_folder(places: StatePaths) -> Iterator[Path]:
    """The folder for what only a run needs. No other user may list it; QEMU, which a daemon runs
    as a user of its own, may pass to the disks that it is given (`open_to_qemu`). Save files are
    root's alone."""
    work = places.work
    work.mkdir(parents=True, exist_ok=True)
    work.chmod(0o700)
    try:
        yield work
    finally:
        with cleaning_up():
            for path in sorted(work.rglob("*"), reverse=True):
                # QEMU takes its sockets away itself, perhaps at this moment.
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def _no_guest_cgroups_left(places: StatePaths) -> Iterator[None]:
    """libvirt takes them away itself, but gives up after a second where the host is busy."""
    try:
        yield
    finally:
        with cleaning_up():
            for name in DOMAIN_NAMES:
                for group in guest_cgroups.of_guests(places.libvirt_root, name):
                    with suppress(OSError):  # the next labctl tries again, and says so
                        guest_cgroups.remove(group)
            guest_cgroups.remove_empty_partitions()


@contextmanager
def _session(
    places: StatePaths,
    layout: cgroups.Layout,
    connect: str | None,
    hugetlbfs: Sequence[Path],
    user: QemuUser | None,
) -> Iterator[Session]:
    if user is None:
        assert connect is not None
        opened = Session.connected(connect)
    else:
        opened = Session.embedded(
            places.libvirt_root,
            cgroups.libvirt_controllers(layout),
            hugetlbfs,
            user=user.name,
            group=user.group,
            opens_kvm=user.opens_kvm,
        )
    with opened as session:
        try:
            yield session
        finally:
            with cleaning_up():
                session.end_all()
