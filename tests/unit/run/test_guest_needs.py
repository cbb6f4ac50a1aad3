"""What a plan's guests take is known before any of them starts, neighbours included."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from labctl.run.planning.images import guest_needs
from labctl.study.conditions import Condition, Kind, Neighbour
from labctl.study.study import GuestShape

MIB = 1024 * 1024
SHAPE = GuestShape(image="debian-13", vcpus=1, memory_mib=1024)


def plan(*guests: int) -> Any:
    """A plan with a condition for each number of guests."""
    conditions = {
        f"guests-{count}": Condition(
            name=f"guests-{count}",
            description="",
            neighbours=(
                Neighbour(program="cpu-hog", kind=Kind.GUESTS, guests=count),
                Neighbour(program="cpu-hog"),
            ),
        )
        for count in guests
    }
    return SimpleNamespace(neighbours=conditions, conditions=("quiet", *conditions))


def test_the_condition_with_most_guests_decides_on_memory() -> None:
    alone = guest_needs(SHAPE, plan(), image_is_built=True)
    assert alone.memory_bytes == 1024 * MIB
    needs = guest_needs(SHAPE, plan(1, 4), image_is_built=True)
    assert needs.memory_bytes - alone.memory_bytes == 4 * (1024 + 64) * MIB


def test_saved_guests_take_their_place_twice_where_any_is_cloned() -> None:
    alone = guest_needs(SHAPE, None, image_is_built=True)
    one, four = (guest_needs(SHAPE, plan(n), image_is_built=True) for n in (1, 4))
    # However many clones: all of a boot are restored from one copy.
    assert one.disk_bytes == four.disk_bytes == alone.disk_bytes + 2 * 1024 * MIB


def test_what_is_measured_in_clones_takes_their_copy_without_any_beside_it() -> None:
    cloned = guest_needs(SHAPE, plan(), image_is_built=True, has_clones=True)
    one = guest_needs(SHAPE, plan(1), image_is_built=True)
    assert (cloned.disk_bytes, cloned.memory_bytes) == (one.disk_bytes, 1024 * MIB)
