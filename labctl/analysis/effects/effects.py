"""Compute effects of blocks: paired log-ratios, or differences where zeros occur.

d_b = y_T - mean of the references' y, with y the logarithm for ratios (METHOD 17: against
baseline the references are baseline and control). Pairing within a block removes everything that
affects all arms of the block. Arms that did not run side by side share nothing within a block: then
their means are compared, unpaired (METHOD 30).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from labctl.analysis.effects.cells import Series
from labctl.analysis.effects.intervals import (
    ByBlock,
    Floats,
    Interval,
    Spread,
    spread_over,
    unpaired,
)
from labctl.analysis.model import EffectKind
from labctl.base.metrics.row import Zero
from labctl.base.metrics.table import metric_of
from labctl.base.units import ZERO_IS_USUAL, Better, Unit

_LOG_RESOLUTION = 1e-9
_LARGEST_LOG = 700.0
"""Limit on logarithms: exp of more overflows, and so wide an interval includes any effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Hold effects by block, in natural direction: on the log scale for ratios, else in the unit.

    `paired`: if False, by_block holds each of the tuning's values minus the references' mean.
    `fallback`: the reason why a metric for ratios is compared by difference. `boots`: each side's
    boot by block.
    """

    kind: EffectKind
    fallback: str | None
    by_block: ByBlock
    spread: Spread
    paired: bool = True
    boots: Sequence[Mapping[int, int]] = ()
    floor: float = 0.0
    """Least credible standard deviation for histograms as coarse as these."""
    of_trials: Mapping[int, float] = field(default_factory=dict)
    """Variance that trials' errors add to an effect (mean over blocks), by the number of batches;
    empty for differences, and if a side has no batches."""

    def shown(self, value: float) -> float:
        """Return a value of this scale in the form of reports: a ratio, or a difference."""
        return ratio_of(value) if self.kind is EffectKind.RATIO else value

    def shown_by_block(self) -> ByBlock:
        """Return each block's effect in the form of reports."""
        if self.kind is not EffectKind.RATIO:
            return self.by_block
        # np.clip takes four times as long for some ten numbers.
        within = np.minimum(np.maximum(self.by_block.array, -_LARGEST_LOG), _LARGEST_LOG)
        return ByBlock(self.by_block.blocks, np.exp(within))

    def as_size(self, value: float) -> float:
        """Return a size on this scale (a margin, a reach) in the form of reports: 0.05, or in the
        unit.
        """
        return ratio_of(value) - 1 if self.kind is EffectKind.RATIO else value


def natural(metric: str, unit: Unit, *, against_native: bool) -> bool:
    """Return whether a metric is compared by difference (METHOD 15), because 0 is one of its usual
    values."""
    row = metric_of(metric)
    zero = Zero.RARE if row is None else row.zero
    return unit in ZERO_IS_USUAL or zero is Zero.USUAL or (against_native and zero is Zero.NATIVE)


def effects_of(
    tuning: Series, references: Sequence[Series], *, against_native: bool
) -> Effects | None:
    """Return effects in the blocks in which every side has a value, or of all values if arms were
    not interleaved; None without any."""
    sides = [tuning, *references]
    interleaved = all(side.interleaved for side in sides)
    blocks = _common(sides)
    if interleaved and not blocks:
        return None
    sample = tuning.sample
    by_difference = natural(sample.metric, sample.unit, against_native=against_native)
    fallback = None if by_difference else _why_no_ratio(sides, blocks, interleaved=interleaved)
    by_ratio = not by_difference and fallback is None
    kind = EffectKind.RATIO if by_ratio else EffectKind.DIFFERENCE
    if not interleaved:
        return _unpaired(sides, kind, fallback)
    return _effects(sides, blocks, kind, fallback)


def ratios(tuning: Series, references: Sequence[Series]) -> Effects | str:
    """Return effects as ratios for any metric, for figures that exist only as ratios; or the reason
    why there are none, as the predicate of a sentence about the metric."""
    sides = [tuning, *references]
    interleaved = all(side.interleaved for side in sides)
    blocks = _common(sides)
    if interleaved and not blocks:
        return "has no block with both sides"
    if why := _why_no_ratio(sides, blocks, interleaved=interleaved):
        return why
    if not interleaved:
        return _unpaired(sides, EffectKind.RATIO, None)
    return _effects(sides, blocks, EffectKind.RATIO, None)


def _why_no_ratio(
    sides: Sequence[Series], blocks: tuple[int, ...], *, interleaved: bool
) -> str | None:
    if interleaved:
        return _no_ratio(sides, blocks)
    return next(filter(None, (_no_ratio([side], side.numbers.blocks) for side in sides)), None)


def _unpaired(sides: Sequence[Series], kind: EffectKind, fallback: str | None) -> Effects:
    """Compare the first side's mean with the mean of the others'."""
    logs = kind is EffectKind.RATIO
    one, *others = (alone(side, logs=logs) for side in sides)
    values = sides[0].logs if logs else sides[0].numbers
    reference = sum(other.mean for other in others) / len(others)
    return Effects(
        kind=kind,
        fallback=fallback,
        by_block=ByBlock(values.blocks, values.array - reference),
        spread=unpaired(one, others),
        paired=False,
        boots=[side.boots for side in sides],
    )


def _effects(
    sides: Sequence[Series], blocks: tuple[int, ...], kind: EffectKind, fallback: str | None
) -> Effects:
    """Compare the first side with the mean of the others."""
    if kind is EffectKind.RATIO:
        scale = [side.logs.at(blocks) for side in sides]
        resolution = _LOG_RESOLUTION
    else:
        scale = [side.numbers.at(blocks) for side in sides]
        resolution = _LOG_RESOLUTION * max(_largest(side, blocks) for side in sides)
    by_block = ByBlock(blocks, scale[0] - sum(scale[1:]) / (len(sides) - 1))
    floor = _floor(sides, blocks, kind)
    boots = [side.boots for side in sides]
    return Effects(
        kind=kind,
        fallback=fallback,
        by_block=by_block,
        spread=spread_over(by_block, boots, resolution, floor),
        boots=boots,
        floor=floor,
        of_trials=_of_trials(sides, blocks) if kind is EffectKind.RATIO else {},
    )


def _of_trials(sides: Sequence[Series], blocks: tuple[int, ...]) -> dict[int, float]:
    """Return the variances of trials' errors in the effects, by the number of batches.

    Windows of different trials are independent, so their variances add as their values do: the
    first side's, plus the others' sum divided by the square of their number. A relative error is an
    error of the logarithm.
    """
    if not all(side.batch_errors for side in sides):
        return {}
    found = {}
    for count in set.intersection(*(set(side.batch_errors) for side in sides)):
        shares = []
        for side in sides:
            errors = dict(side.batch_errors[count].items())
            squares = [errors[block] * errors[block] for block in blocks if block in errors]
            shares.append(sum(squares) / len(squares) if squares else math.nan)
        found[count] = shares[0] + sum(shares[1:]) / (len(sides) - 1) ** 2
    return {count: variance for count, variance in found.items() if math.isfinite(variance)}


def _common(sides: Sequence[Series]) -> tuple[int, ...]:
    """Return the blocks that all sides have: usually every side's blocks."""
    first, *others = (side.numbers.blocks for side in sides)
    if all(blocks == first for blocks in others):
        return first
    return tuple(sorted(set(first).intersection(*others)))


def by_ratio(sides: Sequence[Series]) -> bool:
    """Return whether unpaired values are compared by ratio: 0 is not a usual value of the metric,
    and all values can be quantified."""
    sample = sides[0].sample
    if natural(sample.metric, sample.unit, against_native=False):
        return False
    return all(_no_ratio([side], side.numbers.blocks) is None for side in sides)


def _no_ratio(sides: Sequence[Series], blocks: tuple[int, ...]) -> str | None:
    """Return the reason why these values allow no ratio, as the predicate of a sentence (METHOD
    15)."""
    if any(_least(side, blocks) <= 0 for side in sides):
        return "is 0 or less in some block"
    for side in sides:
        if side.unquantified and (few := sorted(side.unquantified.intersection(blocks))):
            noun = "block" if len(few) == 1 else "blocks"
            which = ", ".join(map(str, few[:3])) + (", ..." if len(few) > 3 else "")
            return f"is too small to be quantified ({side.limits.why}, {noun} {which})"
    return None


def _least(side: Series, blocks: tuple[int, ...]) -> float:
    if blocks == side.numbers.blocks:
        return side.least
    return float(side.numbers.at(blocks).min())


def _largest(side: Series, blocks: tuple[int, ...]) -> float:
    if blocks == side.numbers.blocks:
        return side.largest
    return float(np.abs(side.numbers.at(blocks)).max())


def alone(side: Series, *, logs: bool) -> Spread:
    """Return the spread of one series, on the log scale if `logs`. Its deviation is at least
    (bin width) / sqrt(12), that of one value rounded to the middle of its bin (METHOD 16).
    """
    values = side.logs if logs else side.numbers
    resolution = _LOG_RESOLUTION * (1.0 if logs else max(abs(v) for v in values.values()))
    kind = EffectKind.RATIO if logs else EffectKind.DIFFERENCE
    floor = _floor([side], values.blocks, kind) / math.sqrt(2)
    return spread_over(values, [side.boots], resolution, floor)


def _floor(sides: Sequence[Series], blocks: tuple[int, ...], kind: EffectKind) -> float:
    """Return (bin width) / sqrt(6), the standard deviation of the difference of two values, each
    rounded to the middle of its bin (METHOD 16); 0 for metrics that are not percentiles of a
    histogram.

    The width is that of the coarsest side, as the root mean square over its blocks, because a side
    with equal values in all blocks shows no spread. On the log scale it is relative to the bin's
    middle.
    """
    widths = (_root_mean_square(_widths(side, blocks, kind)) for side in sides if side.bin_widths)
    return max(widths, default=0.0) / math.sqrt(6)


def _widths(side: Series, blocks: tuple[int, ...], kind: EffectKind) -> Floats:
    relative = side.widths.at(blocks)
    return relative if kind is EffectKind.RATIO else relative * np.abs(side.numbers.at(blocks))


def _root_mean_square(values: Floats) -> float:
    return math.sqrt(float((values * values).sum()) / len(values))


def towards_better(interval: Interval, better: Better) -> Interval:
    """Return the same interval with positive meaning better."""
    return interval.mirrored() if better is Better.LOWER else interval


def on_scale(margin: float, kind: EffectKind) -> float:
    """Return a margin on the scale of effects. For ratios it is log(1 + margin), so that 5 % faster
    and its inverse are equally far from no effect, whichever side is the tuning."""
    return math.log1p(margin) if kind is EffectKind.RATIO else margin


def ratio_of(log_ratio: float) -> float:
    return math.exp(max(-_LARGEST_LOG, min(_LARGEST_LOG, log_ratio)))
