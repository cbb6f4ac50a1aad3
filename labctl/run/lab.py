"""What every part of a run has in hand."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labctl.base.events import Listener
from labctl.base.places import StatePlaces
from labctl.base.tuning import Tuning
from labctl.domain.pinplan import PinPlan
from labctl.domain.session import NAME_PREFIX, Session
from labctl.guest.images import Image
from labctl.host.accelerator import Accelerator
from labctl.host.cgroups import Layout
from labctl.host.journal import Journal
from labctl.host.topology import Topology
from labctl.run.disks import DataDisk

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
    layout: Layout
    topology: Topology
    pin_plan: PinPlan
    tunings: Mapping[str, Tuning]
    vcpus: int
    memory_mib: int
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
