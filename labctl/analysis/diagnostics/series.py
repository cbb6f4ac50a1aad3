"""Test one series of numbers, in the order of the blocks, for outliers and trend.

Both are chosen for ten to thirty values. The trend test is one of ranks, so that neither a heavy
tail nor an outlier raises its false alarms. docs/diagnostics.md has level and power of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from labctl.analysis.intervals import quantile
from labctl.analysis.special import ndtr

Values = npt.NDArray[np.float64]

_SHARE_OF_OUTLIERS = 5
_MOST_OUTLIERS = 10
"""Limit on outliers: one value of five, as more are a second mode, and ten in all: beyond that no
single block explains them."""

_ROSNERS_FEWEST = 25
"""Start of Rosner's tables. With ten to twenty values the formula gives nearly twice the requested
false alarms, so half are requested."""

_MOST_STEPS = 100
"""A longer run is looked at for a trend in so many stretches, so that the cost stays linear."""

_MOST_PAIRS = 5_000
"""Limit for the exact test: with more pairs the distribution of Kendall's S is normal to all digits
that count.
"""

Groups = Sequence[Sequence[int]]
"""Indices of values between which order means something: of the blocks of each boot."""


def coarse(values: Values) -> bool:
    """Return whether half of the values or more repeat another: their spread is then the tool's
    resolution, and no rule on it holds."""
    return 2 * len(set(values.tolist())) <= len(values)


def outliers(values: Values, alpha: float, floor: float = 0.0) -> tuple[int, ...]:
    """Return indices of outliers by the generalized extreme Studentized deviate test, the farthest
    first.

    B. Rosner, "Percentage points for a generalized ESD many-outlier procedure", Technometrics 25
    (1983), 165-172: R_i = max |x - mean| / s of what is left after i - 1 removals, and as many are
    outliers as the largest i with R_i beyond its critical value. So it finds two that hide each
    other, which a single test misses. `alpha`: the chance of any in normal values; `floor`: the
    least s to believe in.
    """
    n = len(values)
    if coarse(values):
        return ()
    if n < _ROSNERS_FEWEST:
        alpha /= 2
    left = np.arange(n)
    removed: list[int] = []
    found = 0
    for i in range(1, min(n // _SHARE_OF_OUTLIERS, _MOST_OUTLIERS) + 1):
        away = values[left]
        away = away - away.sum() / len(left)
        sd = max(math.sqrt(float(away @ away) / (len(left) - 1)), floor)
        if sd == 0.0:
            break
        farthest = int(np.abs(away).argmax())
        removed.append(int(left[farthest]))
        if abs(away[farthest]) > _critical_deviate(n - i + 1, alpha) * sd:
            found = i
        left = np.concatenate((left[:farthest], left[farthest + 1 :]))
    return tuple(removed[:found])


@cache
def _critical_deviate(n: int, alpha: float) -> float:
    """(n - 1) t / sqrt(n (n - 2 + t^2)) with t = t(1 - alpha / 2n, n - 2): Rosner's lambda of a
    step that has n values left."""
    t = quantile(1 - alpha / (2 * n), n - 2)
    return (n - 1) * t / math.sqrt(n * (n - 2 + t * t))


def trend(values: Values, groups: Groups) -> float:
    """Return the two-sided p-value of Mann and Kendall's test for a trend that the groups share.

    S adds up over groups: R. M. Hirsch, J. R. Slack, R. A. Smith, "Techniques of trend analysis
    for monthly water quality data", Water Resources Research 18 (1982), 107-121. Exact for values
    without ties; tied pairs count as neither, which errs to the safe side.
    """
    parts = [_stretches(values[list(group)]) for group in groups]
    signs = (np.sign(part - part[:, None]) * _later(len(part)) for part in parts)
    s = abs(int(sum(float(of_pairs.sum()) for of_pairs in signs)))
    sizes = tuple(sorted(map(len, parts)))
    pairs = sum(n * (n - 1) // 2 for n in sizes)
    if pairs > _MOST_PAIRS:
        sd = math.sqrt(sum(n * (n - 1) * (2 * n + 5) for n in sizes) / 18)
        return min(1.0, 2 * float(ndtr(-(s - 1) / sd)))
    return min(1.0, 2 * float(_inversions(sizes)[(pairs - s) // 2]))


@cache
def _later(n: int) -> Values:
    """Return 1 where the column's value comes after the row's, else 0."""
    return np.triu(np.ones((n, n)), 1)


def slope(values: Values, at: Sequence[int], groups: Groups) -> float:
    """Return the median of the slopes of all pairs within a group (P. K. Sen, "Estimates of the
    regression coefficient based on Kendall's tau", JASA 63 (1968), 1379-1389)."""
    x = np.asarray(at, dtype=float)
    found = []
    for group in groups:
        there, here = _stretches(x[list(group)]), _stretches(values[list(group)])
        first, second = np.triu_indices(len(here), 1)
        found.append((here[second] - here[first]) / (there[second] - there[first]))
    return float(np.median(np.concatenate(found)))


def _stretches(values: Values) -> Values:
    """Return the values, or of many the means of consecutive stretches of them."""
    if len(values) <= _MOST_STEPS:
        return values
    return np.array([part.mean() for part in np.array_split(values, _MOST_STEPS)])


@cache
def _inversions(sizes: tuple[int, ...]) -> Values:
    """P(random permutations of so many items have at most k inversions in all), by k (M. G.
    Kendall, "A new measure of rank correlation", Biometrika 30 (1938), 81-93)."""
    chances = np.ones(1)
    for n in sizes:
        for k in range(2, n + 1):
            # Item k comes before none to k - 1 of those that it should follow, all equally likely.
            chances = np.convolve(chances, np.full(k, 1 / k))
    return chances.cumsum()
