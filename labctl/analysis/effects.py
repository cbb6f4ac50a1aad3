"""Effects of blocks: paired log-ratios, or differences where zeros live.

d_b = y_T - mean of the references' y, with y the logarithm for ratios (METHOD 17: against
baseline the references are baseline and control). Pairing within a block takes out whatever the
block did to all of its arms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labctl.analysis.cells import Series
from labctl.analysis.intervals import Interval, Spread, spread
from labctl.analysis.model import EffectKind
from labctl.base.units import Better, Unit

_NATURAL_METRICS = frozenset({"steal", "run_delay", "host_cpu", "ctx_switches"})
_NATURAL_UNITS = frozenset({Unit.FRACTION, Unit.CPUS})
_ZERO_IN_NATIVE = frozenset({"exits", "exit_time"})

_LOG_RESOLUTION = 1e-9
_LARGEST_LOG = 700.0
"""exp of more is no float; an interval that wide says "anything" either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Effects by block, in natural direction: on the log scale for ratios, else in the unit.

    `fallback`: the metric is one for ratios, but a value of 0 or less was among these.
    """

    kind: EffectKind
    fallback: bool
    by_block: Mapping[int, float]
    spread: Spread
    floor: float = 0.0
    """The least standard deviation that histograms this coarse allow to believe in."""

    def shown(self, value: float) -> float:
        """A value of this scale as reports show it: a ratio, or a difference."""
        return ratio_of(value) if self.kind is EffectKind.RATIO else value

    def as_size(self, value: float) -> float:
        """A size on this scale (a margin, a reach) as reports show it: 0.05, or in the unit."""
        return ratio_of(value) - 1 if self.kind is EffectKind.RATIO else value


def natural(metric: str, unit: Unit, *, against_native: bool) -> bool:
    """Whether a metric is compared by difference (METHOD 15): 0 is one of its usual values."""
    if metric in _NATURAL_METRICS or unit in _NATURAL_UNITS:
        return True
    return against_native and metric in _ZERO_IN_NATIVE


def paired(tuning: Series, references: Sequence[Series], *, against_native: bool) -> Effects | None:
    """Effects in the blocks where every side has a value; None when there is no such block."""
    sides = [tuning, *references]
    blocks = sorted(set.intersection(*(set(side.values) for side in sides)))
    if not blocks:
        return None
    sample = tuning.sample
    by_difference = natural(sample.metric, sample.unit, against_native=against_native)
    values = [side.values[block] for side in sides for block in blocks]
    fallback = not by_difference and min(values) <= 0
    if by_difference or fallback:
        kind = EffectKind.DIFFERENCE
        resolution = _LOG_RESOLUTION * max(abs(value) for value in values)
    else:
        kind = EffectKind.RATIO
        resolution = _LOG_RESOLUTION

    def y(side: Series, block: int) -> float:
        value = side.values[block]
        return math.log(value) if kind is EffectKind.RATIO else value

    by_block = {
        block: y(tuning, block) - sum(y(side, block) for side in references) / len(references)
        for block in blocks
    }
    floor = _floor(sides, blocks, kind)
    return Effects(
        kind=kind,
        fallback=fallback,
        by_block=by_block,
        spread=spread(by_block.values(), resolution, floor),
        floor=floor,
    )


def by_ratio(sides: Sequence[Series]) -> bool:
    """Whether values that share no block are compared by ratio: 0 is no usual value of them, and
    all are positive."""
    sample = sides[0].sample
    if natural(sample.metric, sample.unit, against_native=False):
        return False
    return min(value for side in sides for value in side.values.values()) > 0


def alone(side: Series, *, logs: bool) -> Spread:
    """The values of one series by themselves, on the log scale if `logs`. Their deviation is at
    least (bin width) / sqrt(12), that of one value rounded to the middle of its bin (METHOD 16).
    """
    values = [math.log(value) if logs else value for value in side.values.values()]
    resolution = _LOG_RESOLUTION * (1.0 if logs else max(abs(value) for value in values))
    kind = EffectKind.RATIO if logs else EffectKind.DIFFERENCE
    return spread(values, resolution, _floor([side], list(side.values), kind) / math.sqrt(2))


def _floor(sides: Sequence[Series], blocks: Sequence[int], kind: EffectKind) -> float:
    """(bin width) / sqrt(6): the standard deviation of the difference of two values, each
    rounded to the middle of its bin (METHOD 16). 0 for what is no percentile of a histogram.

    The width is that of the coarsest side, as the root mean square over its blocks: a side that
    ties in every block has no spread of its own to tell. On the log scale it is relative to the
    bin's middle.
    """
    return max(
        math.sqrt(math.fsum(_width(side, block, kind) ** 2 for block in blocks) / len(blocks))
        for side in sides
    ) / math.sqrt(6)


def _width(side: Series, block: int, kind: EffectKind) -> float:
    relative = side.bin_widths.get(block, 0.0)
    return relative if kind is EffectKind.RATIO else relative * abs(side.values[block])


def towards_better(interval: Interval, better: Better) -> Interval:
    """The same interval with positive meaning better."""
    return interval.mirrored() if better is Better.LOWER else interval


def on_scale(margin: float, kind: EffectKind) -> float:
    """A margin on the scale of effects. For ratios log(1 + margin): 5 % faster and its inverse
    are then equally far from no effect, whichever side is called the tuning."""
    return math.log1p(margin) if kind is EffectKind.RATIO else margin


def ratio_of(log_ratio: float) -> float:
    return math.exp(max(-_LARGEST_LOG, min(_LARGEST_LOG, log_ratio)))
