"""Say how much of the host's memory and disk the guests of a plan take."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.host.guest_memory import MIB, needed_bytes
from labctl.run.planning.guest_image import IMAGE
from labctl.run.planning.planned_conditions import most_guests
from labctl.run.resources.disks import disk_bytes_needed
from labctl.study.plan import Plan
from labctl.study.study import GuestShape, Study

OF_NO_STUDY = GuestShape(image=IMAGE, vcpus=None, memory_mib=1024)
"""Shape of a guest where no study says: with the studies' default memory."""


@dataclass(frozen=True, slots=True)
class GuestNeeds:
    """Hold what must be available (memory) and free below the state folder (disk)."""

    memory_bytes: int
    disk_bytes: int


def guest_needs(
    guest: GuestShape,
    what: Plan | Study | None,
    *,
    image_is_built: bool,
    has_clones: bool = False,
) -> GuestNeeds:
    """Return what a measured guest takes with the guests that run beside it. `what`: whose
    conditions these are of; None: there are none. `has_clones`: it is measured in copies of itself,
    whatever runs beside it."""
    memory_bytes = guest.memory_mib * MIB
    beside = most_guests(what) if what else 0
    return GuestNeeds(
        memory_bytes=memory_bytes + needed_bytes(beside, memory_bytes),
        disk_bytes=disk_bytes_needed(
            memory_bytes,
            data_disks=guest.data_disks,
            image_is_built=image_is_built,
            has_clones=has_clones or beside > 0,
        ),
    )
