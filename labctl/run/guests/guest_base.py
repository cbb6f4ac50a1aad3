"""Choose what a run's guests are made of and run under."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.base.events import Listener
from labctl.base.paths import StatePaths
from labctl.guest.images import Image
from labctl.host.accelerator import Accelerator, Requested, accelerator
from labctl.run.guests.guest_source import GuestSource
from labctl.run.guests.own_vm import OwnVm
from labctl.run.guests.prepare import ImageSource
from labctl.run.planning.guest_image import built_image
from labctl.run.planning.planned import Planned
from labctl.run.planning.planned_conditions import beside_of, neighbours_of
from labctl.study.condition import Kind
from labctl.workloads.registry import workload_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestBase:
    """Hold the image, what guests run under here, and what they are made of."""

    image: Image
    accelerator: Accelerator
    source: GuestSource


def guest_base(
    planned: Planned, places: StatePaths, accel: Requested, listener: Listener
) -> GuestBase:
    """Return what the guests of a plan start from; the image is built now if there is none."""
    image = built_image(planned.recipe, places, listener)
    return GuestBase(
        image=image,
        accelerator=accelerator(accel, image.kernel, places),
        source=_source(planned, image),
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
