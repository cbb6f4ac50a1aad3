"""Choose how many guests are tried next, until the limit breaks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Search(StrEnum):
    UP = "up"
    """One more guest at each step."""
    BISECT = "bisect"
    """Twice as many until the limit breaks, then halves of what is left between."""


def next_count(held: Mapping[int, bool], most: int, search: Search) -> int | None:
    """Return how many guests come next; None when the number is known, or `most` held.

    `held`: by number of guests, whether the limit held.
    """
    fitting, broken = bracket(held)
    if broken is None:
        if fitting >= most:
            return None
        step = 1 if search is Search.UP else max(1, fitting)
        return min(fitting + step, most)
    return (fitting + broken) // 2 if broken - fitting > 1 else None


def bracket(held: Mapping[int, bool]) -> tuple[int, int | None]:
    """Return the largest number that held below the smallest that broke (0 for none), and the
    latter; None where none broke."""
    broken = min((guests for guests, held_there in held.items() if not held_there), default=None)
    fitting = [
        guests for guests, there in held.items() if there and (broken is None or guests < broken)
    ]
    return max(fitting, default=0), broken
