"""Define the rules by which a run may end before its last block, as its plan contains them (METHOD
22).

They are on disk before the first trial. A plan without one has a fixed number of blocks. Measuring
and judging both use these rules: one asks, the other answers (`analysis/verdicts/looks.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from labctl.base.errors import UsageError
from labctl.base.wording import roughly

FEWEST_BLOCKS = 10
"""Minimum number of blocks for a verdict (METHOD 21), and so for stopping."""

MOST_BLOCKS = 1000
MOST_SPARES = 100
CAP = 40
"""Default cap of a run until a width."""

UNTIL_WIDTH_SHARE = 0.7
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


NATIVE_WIDTH = 0.1
"""Default half-width of an interval against native that is narrow enough for the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """Judge after these numbers of blocks, and measure only what is still undecided from then on.

    `drops`: a look drops each tuning in the places where it is decided, and what nobody needs
    there any more; without it (plans of labctl before it) the run goes on whole until everything
    is decided. `native_width`: native arms stop once their intervals have that half-width or less,
    relative to the estimate, else they go on in every second block. `within_s`: the run ends at a
    look after the first if the next one would come later than so many seconds after its start: its
    pace is not known before, and says nothing of effects.
    """

    at: tuple[int, ...]
    drops: bool = True
    native_width: float = NATIVE_WIDTH
    within_s: float | None = None

    @property
    def most_blocks(self) -> int:
        return self.at[-1]

    def may_end_after(self, blocks: int) -> bool:
        """Return whether the rule is checked after so many complete blocks."""
        return blocks in self.at[:-1]

    @property
    def words(self) -> str:
        at = ", ".join(map(str, self.at))
        if self.drops:
            sooner = (
                ""
                if self.within_s is None
                else f", or at the last look that comes within {roughly(self.within_s)}"
            )
            return (
                f"judges after {at} blocks, and goes on with what is undecided: it ends when every "
                f"primary comparison has a verdict{sooner}"
            )
        return (
            f"looks at its result after {at} blocks, each time at alpha/{len(self.at)}, and ends "
            "when every primary comparison has a verdict"
        )

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"looks": list(self.at)}
        if self.drops:
            found |= {"drops": True, "native_width": self.native_width}
        if self.within_s is not None:
            found["within_s"] = self.within_s
        return found


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


def looks(
    at: Sequence[int],
    *,
    drops: bool = True,
    native_width: float = NATIVE_WIDTH,
    within_s: float | None = None,
) -> Looks:
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
    if not 0 < native_width < 1:
        raise UsageError(
            f"expected a native width from above 0 to below 100 %, got {percent(native_width)}",
            hint="It is half an interval, relative to the estimate: 10 % does for a table.",
        )
    if within_s is not None and not 0 < within_s < math.inf:
        raise UsageError(f"expected a time above 0 s for all looks, got {within_s:g} s")
    return Looks(at=tuple(at), drops=drops, native_width=native_width, within_s=within_s)


def stopping_of(plan: Mapping[str, Any]) -> Stopping | None:
    """Return the rule in a plan's JSON; None if it has none. Raises UsageError for an impossible
    rule, KeyError or TypeError for another form."""
    rule = plan.get("stopping")
    if rule is None:
        return None
    if "looks" not in rule:
        return until_width(**rule)
    return looks(
        rule["looks"],
        drops=rule.get("drops", False),
        native_width=rule.get("native_width", NATIVE_WIDTH),
        within_s=rule.get("within_s"),
    )


def percent(share: float) -> str:
    return f"{100 * share:g} %"
