"""Define the rules by which a run may end before its last block, as its plan contains them (METHOD
22).

They are on disk before the first trial. A plan without one has a fixed number of blocks. Measuring
and judging both use these rules: one asks, the other answers (`analysis/verdicts/looks.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from labctl.base.errors import UsageError

FEWEST_BLOCKS = 10
"""Minimum number of blocks for a verdict (METHOD 21), and so for stopping."""

MOST_BLOCKS = 1000
MOST_SPARES = 100
CAP = 40
"""Default cap of a run until a width."""

_UNTIL_WIDTH = 0.7
"""Share of the allowed error for a run until a width. Such a run tends to end when its deviations,
and with them its intervals, came out small. Simulated with normal noise, a single deciding interval
misses up to 1.4 times as often as it claims; with more of them it is less
(tests/unit/analysis/test_stopping.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilWidth:
    """End the run when every deciding interval is narrow enough, else at the cap.

    `width`: the largest sufficient half-width, relative: 0.02 is an interval from 2 % below the
    estimate to 2 % above it. The effects themselves do not matter.
    """

    width: float
    most_blocks: int

    @property
    def share(self) -> float:
        """Return the share of the allowed error that a test may use so that the run as a whole does
        not exceed it."""
        return _UNTIL_WIDTH

    def may_end_after(self, blocks: int) -> bool:
        """Return whether the rule is checked after so many complete blocks."""
        return FEWEST_BLOCKS <= blocks < self.most_blocks

    @property
    def words(self) -> str:
        return (
            f"ends when every primary interval is within ±{percent(self.width)}, asked after each "
            f"block from the {FEWEST_BLOCKS}th on; at most {self.most_blocks} blocks"
        )

    def to_json(self) -> dict[str, Any]:
        return {"width": self.width, "most_blocks": self.most_blocks}


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """End the run at the first of these numbers of blocks at which every primary comparison has a
    conclusive verdict. Each look is a test, so each gets only its share of the allowed error: alpha
    / looks."""

    at: tuple[int, ...]

    @property
    def most_blocks(self) -> int:
        return self.at[-1]

    @property
    def share(self) -> float:
        """Return the share of the allowed error that each look may use (Bonferroni)."""
        return 1 / len(self.at)

    def may_end_after(self, blocks: int) -> bool:
        """Return whether the rule is checked after so many complete blocks."""
        return blocks in self.at[:-1]

    @property
    def words(self) -> str:
        at = ", ".join(map(str, self.at))
        return (
            f"looks at its result after {at} blocks, each time at alpha/{len(self.at)}, and ends "
            "when every primary comparison has a verdict"
        )

    def to_json(self) -> dict[str, Any]:
        return {"looks": list(self.at)}


Stopping = UntilWidth | Looks


def until_width(width: float, most_blocks: int = CAP) -> UntilWidth:
    """Return a checked rule; `width` as a share (0.02). Raises UsageError."""
    if not 0.0005 <= width < 1:
        raise UsageError(
            f"expected a width from 0.05 % to below 100 %, got {percent(width)}",
            hint="The width is half the interval, relative to the estimate: 2 % is narrow.",
        )
    if not FEWEST_BLOCKS < most_blocks <= MOST_BLOCKS:
        raise UsageError(
            f"a run until a width has at most {most_blocks} blocks: that must be from "
            f"{FEWEST_BLOCKS + 1} to {MOST_BLOCKS}",
            hint=f"A run cannot stop before {FEWEST_BLOCKS} blocks, because nothing is judged "
            "before.",
        )
    return UntilWidth(width=width, most_blocks=most_blocks)


def looks(at: Sequence[int]) -> Looks:
    """Return a checked rule; `at`: numbers of blocks. Raises UsageError."""
    said = ", ".join(map(str, at)) or "none"
    if len(at) < 2:
        raise UsageError(
            f"looks after {said} blocks: at least two are needed",
            hint="For a single look at the end, use a fixed number of blocks.",
        )
    if any(later <= sooner for sooner, later in pairwise(at)):
        raise UsageError(
            f"looks after {said} blocks: each must come after the one before it",
            hint=f"Write them in rising order: {', '.join(map(str, sorted(set(at))))}.",
        )
    if not FEWEST_BLOCKS <= at[0] <= at[-1] <= MOST_BLOCKS:
        raise UsageError(
            f"looks after {said} blocks: they must be from {FEWEST_BLOCKS} to {MOST_BLOCKS}",
            hint=f"Nothing is judged before {FEWEST_BLOCKS} blocks.",
        )
    return Looks(at=tuple(at))


def stopping_of(plan: Mapping[str, Any]) -> Stopping | None:
    """Return the rule in a plan's JSON; None if it has none. Raises UsageError for an impossible
    rule, KeyError or TypeError for another form."""
    rule = plan.get("stopping")
    if rule is None:
        return None
    return looks(rule["looks"]) if "looks" in rule else until_width(**rule)


def percent(share: float) -> str:
    return f"{100 * share:g} %"
