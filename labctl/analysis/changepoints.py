"""Find where a series changes: E-divisive, with a permutation test of each change.

D. S. Matteson and N. A. James, "A Nonparametric Approach for Multiple Change Point Analysis of
Multivariate Data", JASA 109 (2014), with the Euclidean distance (alpha = 1) and one dimension.
Why not a library: docs/decisions/change-points.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FEWEST_BESIDE = 3
"""Values on each side of a change: of fewer, within-distances say too little."""

_PERMUTATIONS_PER_TAIL = 20
"""Permutations are so many that this number of them is expected beyond alpha."""
_FEWEST_PERMUTATIONS = 499
_MOST_PERMUTATIONS = 9_999

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """`index`: of the first value of the new level. `p`: how often the values in another order
    show a change as large anywhere, the order that was counted in."""

    index: int
    p: float


def change_points(values: Sequence[float], alpha: float, seed: int = 0) -> list[ChangePoint]:
    """The changes of a series, by index; each with p <= alpha when it was found.

    Found one after the other, the largest first, in what the former have left of the series. The
    chance that a series without a change gets one is alpha. Values must be finite.
    """
    series = np.asarray(values, dtype=float)
    rng = np.random.default_rng(seed)
    rounds = math.ceil(_PERMUTATIONS_PER_TAIL / alpha)
    # So many that alpha can be reached at all, whatever the number of series that share it.
    most = max(_MOST_PERMUTATIONS, math.ceil(1 / alpha))
    rounds = min(max(rounds, _FEWEST_PERMUTATIONS), most)
    found: list[ChangePoint] = []
    while True:
        ends = [0, *sorted(point.index for point in found), len(series)]
        segments = list(itertools.pairwise(ends))
        best, index = max(_largest(series[a:b], a) for a, b in segments)
        if best <= 0:
            return sorted(found, key=lambda point: point.index)
        p = _p_value(series, segments, best, rounds, alpha, rng)
        if p > alpha:
            return sorted(found, key=lambda point: point.index)
        found.append(ChangePoint(index, p))


def smallest_p(n: int) -> float:
    """The smallest p that n values can show: of their orders, those that put the same values on
    the same sides in the middle are this share."""
    return min(1.0, 2 / math.comb(n, n // 2))


def _p_value(
    series: Floats,
    segments: Sequence[tuple[int, int]],
    best: float,
    rounds: int,
    alpha: float,
    rng: np.random.Generator,
) -> float:
    """(1 + orders with a change at least as large) / (1 + orders), values changing places within
    their segment only. Ends early once it can't be alpha or less any more."""
    as_large = 0
    enough = alpha * (rounds + 1)
    for done in range(1, rounds + 1):
        largest = max(_largest(rng.permutation(series[a:b]), a)[0] for a, b in segments)
        # What differs by rounding alone is as large: the same split, summed in another order.
        as_large += largest >= best * (1 - 1e-9)
        if as_large + 1 > enough:
            return (as_large + 1) / (done + 1)
    return (as_large + 1) / (rounds + 1)


def _largest(values: Floats, offset: int) -> tuple[float, int]:
    """The largest Q over all splits into values[:t] and values[t:k], with offset + t; 0 where it
    is too short or has no distance.

    Q = mn / (m + n) * (2 * mean distance between - mean within the left - mean within the right),
    equations 5 to 7. The right side may end anywhere, so that a level that comes back hides no
    change.
    """
    n = len(values)
    if n < 2 * FEWEST_BESIDE or float(np.ptp(values)) == 0.0:
        return 0.0, offset
    distances = np.abs(values[:, None] - values[None, :])
    sums = np.zeros((n + 1, n + 1))
    sums[1:, 1:] = distances.cumsum(axis=0).cumsum(axis=1)
    own = np.diagonal(sums)
    t = np.arange(FEWEST_BESIDE, n - FEWEST_BESIDE + 1)[:, None]
    k = np.arange(2 * FEWEST_BESIDE, n + 1)[None, :]
    right = np.maximum(k - t, FEWEST_BESIDE)
    between = 2 * (sums[t, k] - own[t]) / (t * right)
    within_left = own[t] / (t * (t - 1))
    within_right = (own[k] - 2 * sums[t, k] + own[t]) / (right * (right - 1))
    q = t * right / (t + right) * (between - within_left - within_right)
    q = np.where(k - t >= FEWEST_BESIDE, q, -np.inf)
    at = int(np.argmax(q))
    return float(q.flat[at]), offset + int(t[at // q.shape[1], 0])
