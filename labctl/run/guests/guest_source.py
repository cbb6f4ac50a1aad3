"""Define what a run's guests are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from labctl.base.channel import Channel
from labctl.base.deadline import Deadline
from labctl.base.tuning import Tuning
from labctl.domain.asked import ExpectedThread
from labctl.domain.session import RunningGuest
from labctl.run.resources.disks import Disks

if TYPE_CHECKING:
    from labctl.run.guests.lab import Lab


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
