"""Define the lab: the host, image and connection that every part of a run uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from labctl.base.channel import Channel
from labctl.base.events import Listener
from labctl.base.paths import StatePaths, guest_name, guest_uuid, mac_of
from labctl.base.process import Deadline
from labctl.base.tuning import Strategy, Tuning
from labctl.domain.asked import ExpectedThread
from labctl.domain.pinning.pin_plan import PinPlan
from labctl.domain.session import RunningGuest, Session, is_embedded
from labctl.guest.images import Image
from labctl.host import cgroups
from labctl.host.accelerator import Accelerator
from labctl.host.link import Link
from labctl.host.settings.journal import Journal
from labctl.host.topology import Topology
from labctl.run.resources.disks import DataDisks, Disks
from labctl.run.resources.qemu_user import QemuUser
from labctl.store.records.plan_record import BuildFile

# Define the source of a run's guests.


class GuestSource(Protocol):
    """Hold the source of a run's guests: an image of labctl's, or the administrator's own domain
    (both in `run.guests.base_guest`)."""

    @property
    def has_native_side(self) -> bool:
        """Return whether native runs use the same programs, file by file."""

    @property
    def says_everything(self) -> bool:
        """Return whether its XML leaves libvirt nothing to fill in among what is read back."""

    def disks(self, lab: Lab, baseline: Tuning) -> Disks:
        """Return the disks that every boot starts from; prepare them now if needed."""

    def check(self) -> None:
        """Raise HostError if those have changed."""

    @property
    def may_boot_two(self) -> bool:
        """Return whether two of its guests may boot at once."""

    def xml(self, lab: Lab, tuning: Tuning, disks: Disks) -> str:
        """Return the validated domain XML of a tuning."""

    def expected_threads(self, lab: Lab, tuning: Tuning, xml: str) -> list[ExpectedThread]:
        """Return the expected state of each thread of a guest with that XML."""

    def greet(self, lab: Lab, running: RunningGuest, deadline: Deadline) -> None:
        """Make sure that labctl's runner starts in a guest that boots."""

    def quieten(self, channel: Channel) -> None:
        """Stop programs in a booted guest that would run beside a workload."""

    def hint(self, lab: Lab) -> str:
        """Return the remedy for a guest that does not answer."""


Pins = Mapping[Strategy, PinPlan]
"""Pin plan of each strategy that a tuning may pin by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Hold the host, the image and the open connection for making guests.

    `image`: native runs use its programs, whatever guests are made of, unless their tuning has an
    image of its own; neighbours always do. `work`: the folder for overlays, save files and sockets;
    emptied before and after a run.
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
    pin_plans: Pins
    tunings: Mapping[str, Tuning]
    vcpus: int
    memory_mib: int
    boot_s: float
    """Time to a guest's first answer."""
    data: DataDisks
    link: Link | None
    """Link over which workloads reach their peer; None in a run without such a workload."""
    native_network: Path | None
    """Network namespace of native runs; None for the host's."""
    listener: Listener
    others: Mapping[str, tuple[Image, GuestSource]] = field(default_factory=dict)
    """Image of arms with another image or kernel than the baseline, by tuning, and the source of
    their guests' disks."""
    builds: Mapping[str, BuildFile] = field(default_factory=dict)
    """QEMU binaries and kernels of tunings, by path."""
    seat: int = 0
    """Seat of a guest among those that may run at once (`base.paths`). Each has a name, a UUID,
    sockets and a console of its own."""

    @property
    def domain_name(self) -> str:
        return guest_name(self.seat)

    def for_arm(self, tuning: Tuning) -> Lab:
        """Return the lab with the image that a tuning's guest boots, or whose tree it runs in."""
        if tuning.name not in self.others:
            return self
        image, source = self.others[tuning.name]
        return replace(self, image=image, source=source)

    @property
    def other_images(self) -> dict[str, Lab]:
        """Return the lab of each image of another name than the run's, by that name."""
        return {
            image.name: replace(self, image=image, source=source, others={})
            for image, source in self.others.values()
            if image.name != self.image.name
        }

    def pin_plan_for(self, tuning: Tuning) -> PinPlan:
        """Return the CPUs of the threads of a tuning that pins by the plan."""
        return self.pin_plans[tuning.pin.strategy]

    @property
    def pin_plan(self) -> PinPlan:
        """Return the one that tunings use unless they say otherwise."""
        return self.pin_plans[Strategy.COMPACT]

    @property
    def domain_uuid(self) -> str:
        return guest_uuid(self.work, self.seat)

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
        no folder of labctl's."""
        return self.work / "sockets"

    @property
    def console_log(self) -> Path:
        return self.work / f"console{self._suffix}.log"

    @property
    def qemu_log(self) -> Path:
        """Return QEMU's log: messages about guests, and libvirt's about their end."""
        return logs_of_qemu(self.session.uri) / f"{self.domain_name}.log"

    @property
    def _suffix(self) -> str:
        return f"-{self.seat + 1}" if self.seat else ""


def logs_of_qemu(uri: str) -> Path:
    """Return the folder of QEMU's logs for the libvirt of that URI. An embedded one keeps it under
    the root that the URI names, whoever named it (docs/decisions/embedded-libvirt.md)."""
    if not is_embedded(uri):
        return Path("/var/log/libvirt/qemu")
    # As libvirt decodes it (virURIParse): a plus stays a plus.
    (root,) = parse_qs(urlsplit(uri).query.replace("+", "%2B"))["root"]
    return Path(root) / "log/qemu"


def link_mac(work: Path) -> str:
    """Return the MAC of the guest on the link of a lab in that folder."""
    return mac_of(guest_uuid(work, seat=0))
