"""What every part of a run has in hand, and how it is opened."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from labctl.base.events import Listener
from labctl.base.places import StatePlaces
from labctl.base.signals import cleaning_up
from labctl.base.tuning import Tuning
from labctl.domain.pinplan import PinPlan
from labctl.domain.session import NAME_PREFIX, Session
from labctl.guest.images import Image
from labctl.host import cgroups
from labctl.host.accelerator import Accelerator
from labctl.host.journal import Journal
from labctl.host.topology import Topology
from labctl.run.disks import DataDisk
from labctl.run.planning import Planned

DOMAIN_NAME = f"{NAME_PREFIX}guest"
"""A restore can't rename a domain, and a host has one run at a time: one name serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """The host, the image and the open connection that guests are made with.

    `work`: the folder for overlays, save files and sockets; emptied before and after a run.
    """

    places: StatePlaces
    work: Path
    image: Image
    accelerator: Accelerator
    session: Session
    journal: Journal
    layout: cgroups.Layout
    topology: Topology
    pin_plan: PinPlan
    tunings: Mapping[str, Tuning]
    vcpus: int
    memory_mib: int
    boot_s: float
    """What a guest may take to its first answer."""
    data: DataDisk
    listener: Listener

    @property
    def domain_uuid(self) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"labctl:{self.work}"))

    @property
    def runner_socket(self) -> Path:
        return self.sockets / "runner.sock"

    @property
    def sockets(self) -> Path:
        """The one folder that QEMU itself writes to, as whoever libvirt runs it."""
        return self.work / "sockets"

    @property
    def console_log(self) -> Path:
        return self.work / "console.log"


@contextmanager
def open_lab(
    places: StatePlaces,
    planned: Planned,
    *,
    image: Image,
    accelerator: Accelerator,
    connect: str | None = None,
    listener: Listener,
) -> Iterator[Lab]:
    """The host made ready for guests of `planned`; left as it was found, with no guest running.

    `connect`: a libvirt URI, else libvirt runs embedded. The caller holds the host's lock.
    """
    journal = Journal(places.journal)
    layout = cgroups.detect()
    with ExitStack() as stack:
        work = stack.enter_context(_work_folder(places))
        stack.enter_context(cgroups.controllers_enabled(layout, journal))
        session = stack.enter_context(_session(places, layout, connect))
        lab = Lab(
            places=places,
            work=work,
            image=image,
            accelerator=accelerator,
            session=session,
            journal=journal,
            layout=layout,
            topology=planned.topology,
            pin_plan=planned.pin_plan,
            tunings=planned.tunings,
            vcpus=len(planned.pin_plan.vcpus),
            memory_mib=planned.plan.guest.memory_mib,
            boot_s=planned.plan.limits.boot_s,
            data=DataDisk(places.root / "data"),
            listener=listener,
        )
        lab.sockets.mkdir(mode=0o700)
        os.chown(lab.sockets, *session.qemu_user())
        lab.data.make()
        yield lab


@contextmanager
def _work_folder(places: StatePlaces) -> Iterator[Path]:
    """The folder for what only a run needs. Nobody but root may list it; QEMU, which a daemon runs
    as a user of its own, may pass to the disks that it is given. Save files are root's alone."""
    work = places.work
    work.mkdir(parents=True, exist_ok=True)
    work.chmod(0o711)
    try:
        yield work
    finally:
        with cleaning_up():
            for path in sorted(work.rglob("*"), reverse=True):
                # QEMU takes its sockets away itself, perhaps at this moment.
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def _session(places: StatePlaces, layout: cgroups.Layout, connect: str | None) -> Iterator[Session]:
    if connect:
        opened = Session.connected(connect)
    else:
        controllers = cgroups.libvirt_controllers(layout)
        opened = Session.embedded(places.libvirt_root, controllers)
    with opened as session:
        try:
            yield session
        finally:
            with cleaning_up():
                session.end_all()
