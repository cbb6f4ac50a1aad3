"""Set limits of quantification: the least value that allows a ratio (METHOD 15).

A source has a resolution of its own: events come in ones, percentiles in bins. Below the limit a
ratio is a ratio of roundings, so such values are compared by difference. The limit is where what
the resolution alone puts into a value is a tenth of it as a standard deviation, the "determination
limit" of L. A. Currie (Analytical Chemistry 40, 1968, p. 586). Nothing is added to a value to lift
it above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from labctl.base.metrics.row import Counts
from labctl.base.metrics.table import metric_of
from labctl.base.units import Unit

_RELATIVE = 0.1

_EVENTS = 1 / _RELATIVE**2
"""Events that come at random: the count N of a trial has a standard deviation of sqrt(N)."""

_OPERATIONS = 1 / (_RELATIVE * math.sqrt(6))
"""Operations that follow each other: the count is rounded where the trial begins and where it
ends, which together has a standard deviation of 1 / sqrt(6) operations."""

_BINS = 1 / (_RELATIVE * math.sqrt(12))
"""A value rounded to the middle of a bin has a standard deviation of 1 / sqrt(12) bins."""

LEAST: Mapping[Counts, float] = {Counts.EVENTS: _EVENTS, Counts.OPERATIONS: _OPERATIONS}
"""Hold what rows of metrics count. Not here, as nothing is known but that they are above
0: what divides one large total by another (bandwidth, cycles, operations per CPU-second), and times
that a clock of nanoseconds took. What has 0 as a usual value is never compared by ratio
(`effects.natural`)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold limits of quantification. `by_block`: in the metric's unit, in blocks where the limit is
    known; `why` says which limit a value is below."""

    why: str = ""
    by_block: Mapping[int, float] = field(default_factory=dict)

    def undercut(self, values: Mapping[int, float]) -> list[int]:
        """Return the blocks whose value is below its limit."""
        if not self.by_block:
            return []
        known = dict(values.items())
        return [block for block, least in self.by_block.items() if known[block] < least]


def limits(
    metric: str,
    unit: Unit,
    *,
    values: Mapping[int, float],
    seconds: Mapping[int, float],
    bin_widths: Mapping[int, float],
) -> Limits:
    """Return the limits of one metric's values. By block, `seconds`: for how long was measured;
    `bin_widths`: of a percentile, its bin's width over its middle."""
    if bin_widths:
        widths = dict(bin_widths.items())
        return Limits(
            f"less than {_BINS:.1f} bins of its histogram",
            {
                block: _BINS * widths[block] * abs(value)
                for block, value in values.items()
                if block in widths
            },
        )
    row = metric_of(metric)
    if row is None or row.counts is None:
        return Limits()
    least = LEAST[row.counts]
    why = f"fewer than {math.ceil(least)} {row.counts} in a trial"
    if unit is Unit.COUNT:
        return Limits(why, dict.fromkeys(values, least))
    if unit is not Unit.PER_SECOND:
        return Limits()
    known = {block: seconds.get(block, 0.0) for block in values}
    return Limits(why, {block: least / taken for block, taken in known.items() if taken > 0})
