"""A bootstrap beside Student's t, where there are blocks enough for one.

BCa intervals (bias-corrected and accelerated): B. Efron, "Better bootstrap confidence intervals",
JASA 82 (1987); formulae as in Efron and Tibshirani, "An Introduction to the Bootstrap" (1993),
section 14.3. t assumes that the mean is nearly normal. The bootstrap doesn't, but takes the blocks
at hand for all that there could be, which ten are not: with few units its intervals are too
narrow (by sqrt((n - 1) / n) and for want of t's tails), and the ends of a simultaneous interval
lie beyond the extremes that so few values can make. Hence the least number of units, and hence t
decides: where the bootstrap says otherwise, that is a sign that t's assumption fails.

Where blocks share boots, boots are drawn, and then blocks within each (Kalibera and Jones,
"Quantifying performance changes with effect size confidence intervals", 2012, section 6).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from labctl.analysis.boots import sharing
from labctl.analysis.compare import Compared
from labctl.analysis.effects import on_scale
from labctl.analysis.intervals import Interval
from labctl.analysis.model import Comparison, EffectKind, Sign, SignKind
from labctl.analysis.words import ends_text, interval_text
from labctl.base.wording import metric_title

FEWEST_UNITS = 20
"""Boots, or blocks where none are shared."""

_IN_TAIL = 25
"""Resamples beyond either end of the interval, of which an end is made."""
_FEWEST_IN_TAIL = 5
"""With fewer the end itself would be a matter of luck, so there is no interval."""
_FEWEST_RESAMPLES = 2_000
_MOST_DRAWS = 1_000_000
"""Resamples times blocks: some 10 ms."""

_WIDER, _NARROWER = 1.2, 1 / 1.5
"""The bootstrap's width over t's at which they disagree. Of normal noise it is 0.8 to 1, the
smaller the fewer the units and the higher the confidence, as t has the longer tails."""


def bootstrapped(made: Iterable[Compared], seed: int) -> Iterator[Compared]:
    """The comparisons; primaries with units enough have the bootstrap's interval, which is the
    same for the same seed."""
    for one in made:
        interval = _interval(one, seed)
        if interval is None:
            yield one
            continue
        comparison = replace(
            one.comparison,
            bootstrap_low=one.effects.shown(interval.low),
            bootstrap_high=one.effects.shown(interval.high),
        )
        yield replace(one, comparison=comparison)


def disagreements(compared: Iterable[Comparison]) -> Iterator[Sign]:
    """Where the bootstrap answers a question that a verdict hangs on otherwise than t does, or its
    interval is far from as wide."""
    for c in compared:
        t, other = _on_scale(c, c.low, c.high), _on_scale(c, c.bootstrap_low, c.bootstrap_high)
        if t is None or other is None:
            continue
        said = _difference(t, other, None if c.margin is None else on_scale(c.margin, c.kind))
        if said is None:
            continue
        where = f"{metric_title(c.metric)} of '{c.tuning}' in {c.workload} under '{c.condition}'"
        ends = ends_text(c.bootstrap_low, c.bootstrap_high, c.kind, c.unit)
        yield Sign(
            kind=SignKind.BOOTSTRAP,
            tuning=c.tuning,
            workload=c.workload,
            condition=c.condition,
            metric=c.metric,
            sentence=(
                f"The bootstrap's interval of {where}, {ends}, {said} ({interval_text(c)}): its "
                "blocks are far from normally distributed. Look at their dots before the verdict "
                "is relied on; more blocks bring the two together."
            ),
        )


def bca(groups: Sequence[Sequence[float]], alpha: float, seed: int) -> Interval | None:
    """The BCa interval of confidence 1 - alpha of the mean over all values.

    `groups` are the units: resampled first, and then the values within each. None where all units
    have the same mean, and where so many values leave no time for as many resamples as a
    confidence that high takes.
    """
    values = np.array([value for group in groups for value in group])
    sizes = tuple(len(group) for group in groups)
    mean = float(values.mean())
    sums = np.array([math.fsum(group) for group in groups])
    left = (values.sum() - sums) / (len(values) - np.array(sizes))  # each unit left out once
    apart = left.mean() - left
    scale = float((apart**2).sum()) ** 1.5
    resamples = _resamples(len(values), alpha)
    if scale == 0.0 or resamples * alpha / 2 < _FEWEST_IN_TAIL:
        return None
    acceleration = float((apart**3).sum()) / (6 * scale)
    drawn, counts = _draws(seed, sizes, resamples)
    means = np.append(values, 0.0)[drawn].sum(axis=1) / counts
    below = (np.count_nonzero(means < mean) + np.count_nonzero(means <= mean)) / (2 * len(means))
    bias = float(ndtri(below))
    z = bias + np.array([ndtri(alpha / 2), ndtri(1 - alpha / 2)])
    low, high = np.quantile(means, ndtr(bias + z / (1 - acceleration * z)))
    return Interval(float(low), float(high))


def _resamples(values: int, alpha: float) -> int:
    wanted = max(_FEWEST_RESAMPLES, math.ceil(2 * _IN_TAIL / alpha))
    return min(wanted, max(_FEWEST_RESAMPLES, _MOST_DRAWS // values))


@lru_cache(maxsize=2)
def _draws(
    seed: int, sizes: tuple[int, ...], resamples: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of the values of each resample, and how many they are; a place beyond the last value
    stands for none. Comparisons of one run share them: a bootstrap is of one comparison alone."""
    generator = np.random.default_rng(seed)
    size = np.array(sizes)
    units = generator.integers(len(size), size=(resamples, len(size)))
    if size.max() == 1:
        return units, np.full(resamples, len(size))
    first = np.concatenate(([0], np.cumsum(size)[:-1]))
    within = generator.random((*units.shape, size.max())) * size[units][..., None]
    places = first[units][..., None] + within.astype(np.intp)
    absent = np.arange(size.max()) >= size[units][..., None]
    places[absent] = size.sum()
    return places.reshape(resamples, -1), size[units].sum(axis=1)


def _interval(one: Compared, seed: int) -> Interval | None:
    of, effects = one.effects.spread, one.effects
    if not one.is_primary or of.units < FEWEST_UNITS or one.comparison.low is None:
        return None
    if of.sd <= effects.floor:
        return None  # the bins are coarser than what differs: to draw from ties shows nothing
    shared = of.boot_error is not None
    groups = sharing(effects.by_block, effects.boots if shared else ())
    values = [[effects.by_block[block] for block in group] for group in groups]
    return bca(values, 1 - one.comparison.confidence, seed)


def _on_scale(c: Comparison, low: float | None, high: float | None) -> Interval | None:
    if low is None or high is None:
        return None
    ratio = c.kind is EffectKind.RATIO
    return Interval(math.log(low), math.log(high)) if ratio else Interval(low, high)


def _difference(t: Interval, other: Interval, margin: float | None) -> str | None:
    """What the bootstrap says otherwise, as the predicate of a sentence; None if nothing."""
    if _excludes_0(t) != _excludes_0(other):
        return f"{'excludes' if _excludes_0(other) else 'includes'} no effect and t's doesn't"
    if margin is not None and t.within(margin) != other.within(margin):
        verb = "lies within" if other.within(margin) else "reaches beyond"
        return f"{verb} the threshold and t's doesn't"
    times = (other.high - other.low) / (t.high - t.low)
    if not _NARROWER <= times <= _WIDER:
        return f"is {times:.2g} times as wide as t's"
    return None


def _excludes_0(interval: Interval) -> bool:
    return interval.low > 0 or interval.high < 0
