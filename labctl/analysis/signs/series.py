"""Tests of one series of numbers, in the order of the blocks: outliers, modes, trend, lag-1.

Each is chosen for ten to thirty values. The two on order are rank tests, so that neither a heavy
tail nor an outlier raises their false alarms. docs/signs.md has level and power of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, ndtr

from labctl.analysis.intervals import quantile

Values = npt.NDArray[np.float64]

_SHARE_OF_OUTLIERS = 5
_MOST_OUTLIERS = 10
"""At most one value of five is an outlier, as more are a second mode, and ten in all: past that
no block has a story of its own."""

_ROSNERS_FEWEST = 25
"""Where his tables begin. With ten to twenty values the formula gives nearly twice the false
alarms that are asked for, so it is asked for half."""

FEWEST_PER_MODE = 3
"""Fewer values away from the others are outliers, not a mode."""

_MOST_STEPS = 100
"""A longer run is looked at for a trend in so many stretches, so that the cost stays linear."""

_MOST_PAIRS = 5_000
"""With more the distribution of Kendall's S is normal to all digits that count."""

Groups = Sequence[Sequence[int]]
"""Indices of values between which order means something: of the blocks of each boot."""


def coarse(values: Values) -> bool:
    """Whether half of the values or more repeat another: their spread is then the tool's
    resolution, and no rule on it holds."""
    return 2 * len(set(values.tolist())) <= len(values)


def outliers(values: Values, alpha: float, floor: float = 0.0) -> tuple[int, ...]:
    """Indices of outliers by the generalized extreme Studentized deviate test, the farthest first.

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


SPLIT_LEVELS = (0.01, 0.005, 0.0025, 0.001, 0.0005, 0.0002, 0.0001)
SPLIT_RATIOS = {
    10: (10.65, 12.65, 14.96, 18.85, 22.44, 27.65, 33.12),
    11: (9.57, 11.10, 12.89, 15.98, 18.47, 22.65, 26.16),
    12: (8.74, 10.07, 11.49, 13.71, 15.64, 18.81, 21.60),
    14: (7.58, 8.51, 9.57, 11.15, 12.37, 14.41, 16.51),
    17: (6.54, 7.19, 7.91, 8.92, 9.74, 10.96, 11.99),
    20: (5.89, 6.41, 6.93, 7.68, 8.28, 9.16, 9.78),
    25: (5.26, 5.64, 6.04, 6.60, 7.02, 7.61, 8.12),
    30: (4.86, 5.16, 5.48, 5.92, 6.27, 6.74, 7.09),
    40: (4.39, 4.62, 4.84, 5.14, 5.37, 5.68, 5.94),
    60: (3.94, 4.10, 4.24, 4.45, 4.60, 4.79, 4.93),
    100: (3.58, 3.68, 3.77, 3.90, 3.99, 4.11, 4.19),
}
"""Quantiles of `split`'s ratio in so many normal values at those levels: a million draws each,
printed by `python -m tools.signs --critical --runs 1000000`."""


@dataclass(frozen=True, slots=True)
class Split:
    """The best division of values in two: total / within sum of squares (infinite where each part
    is one number), and the indices of both parts."""

    ratio: float
    lower: tuple[int, ...]
    upper: tuple[int, ...]


def split(values: Values) -> Split:
    """The division in a lower and an upper part, each of FEWEST_PER_MODE values or more, that
    leaves the smallest sum of squares within them.

    L. Engelman and J. A. Hartigan, "Percentage points of a test for clusters", JASA 64 (1969),
    1647-1648. `values` holds twice FEWEST_PER_MODE or more.
    """
    n = len(values)
    by_size = values.argsort()
    ordered = values[by_size]
    ordered = ordered - ordered.sum() / n
    total = float(ordered @ ordered)
    sizes = np.arange(FEWEST_PER_MODE, n - FEWEST_PER_MODE + 1)
    # About mean 0 the parts' sums are -s and s, so what is between them is s^2 (1/k + 1/(n - k)).
    between = np.square(ordered.cumsum()[sizes - 1]) * n / (sizes * (n - sizes))
    best = int(between.argmax())
    within = total - float(between[best])
    k = int(sizes[best])
    return Split(
        total / within if within > 1e-12 * total else math.inf,
        tuple(sorted(by_size[:k].tolist())),
        tuple(sorted(by_size[k:].tolist())),
    )


@cache
def critical_split(n: int, alpha: float) -> float:
    """The ratio that n normal values exceed with the chance `alpha`, by SPLIT_RATIOS: linear in
    log(alpha) and in 1/n, and beyond the table's ends that of the end."""
    levels = [-math.log(level) for level in SPLIT_LEVELS]
    at = [float(np.interp(-math.log(alpha), levels, ratios)) for ratios in SPLIT_RATIOS.values()]
    return float(np.interp(-1 / n, [-1 / size for size in SPLIT_RATIOS], at))


def trend(values: Values, groups: Groups) -> float:
    """The two-sided p-value of Mann and Kendall's test for a trend that the groups share.

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
    """1 where the column's value comes after the row's, else 0."""
    return np.triu(np.ones((n, n)), 1)


def slope(values: Values, at: Sequence[int], groups: Groups) -> float:
    """The median of the slopes of all pairs within a group (P. K. Sen, "Estimates of the
    regression coefficient based on Kendall's tau", JASA 63 (1968), 1379-1389)."""
    x = np.asarray(at, dtype=float)
    found = []
    for group in groups:
        there, here = _stretches(x[list(group)]), _stretches(values[list(group)])
        first, second = np.triu_indices(len(here), 1)
        found.append((here[second] - here[first]) / (there[second] - there[first]))
    return float(np.median(np.concatenate(found)))


def _stretches(values: Values) -> Values:
    """The values, or of many the means of consecutive stretches of them."""
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


def lag_one(values: Values) -> float:
    """r_1, the correlation of each value with the one before it."""
    away = values - values.mean()
    total = float(away @ away)
    return float(away[1:] @ away[:-1]) / total if total > 0 else 0.0


def alike_neighbours(values: Values) -> float:
    """The one-sided p-value of Bartels' rank version of von Neumann's ratio, small where
    neighbours are alike.

    R. Bartels, "The rank version of von Neumann's ratio test for randomness", JASA 77 (1982),
    40-46: sum (R_i - R_i+1)^2 / sum (R_i - mean)^2, over 4, is about Beta(p, p) with
    p = 5n(n + 1)(n - 1)^2 / (2(n - 2)(5n^2 - 2n - 9)) - 1/2. One-sided, since neighbours that
    differ make an interval too wide, which claims nothing false.
    """
    n = len(values)
    ranks = _ranks(values)
    away, steps = ranks - (n + 1) / 2, ranks[1:] - ranks[:-1]
    total = float(away @ away)
    if total == 0.0:
        return 1.0
    p = 5 * n * (n + 1) * (n - 1) ** 2 / (2 * (n - 2) * (5 * n * n - 2 * n - 9)) - 0.5
    return float(betainc(p, p, min(1.0, float(steps @ steps) / total / 4)))


def _ranks(values: Values) -> Values:
    """Ranks from 1, ties at the mean of theirs."""
    ordered = np.sort(values)
    below, up_to = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return (below + up_to + 1) / 2
