"""Choose what a run's guests are made of: an image of labctl's, or the user's own domain."""

from __future__ import annotations

from labctl.guest.images import Image
from labctl.run.guests.lab import GuestSource
from labctl.run.guests.own_vm import OwnVm
from labctl.run.guests.prepare import ImageSource
from labctl.run.planning.planned import Planned
from labctl.workloads.registry import workload


def source_of(planned: Planned, image: Image) -> GuestSource:
    """Return what the guests of a plan are made of."""
    if planned.own is None:
        return ImageSource(image)
    programs = (workload(declared.program) for declared in planned.plan.workloads.values())
    return OwnVm(
        own=planned.own,
        baseline=planned.tunings[planned.plan.roles.baseline],
        paths=tuple(sorted({path for program in programs for path in program.binaries})),
    )
