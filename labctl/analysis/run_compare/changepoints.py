"""Find where a series changes its level, though its noise may be autocorrelated.

Every step is fitted by generalized least squares in noise of first-order autocorrelation, which is
reckoned with as larger than it was estimated. How clear the clearest step gets where nothing
changes comes from the series itself: what the autocorrelation doesn't explain is put in other
orders, and scanned in the same way. Simulations, and what else was tried:
docs/decisions/change-points.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

FEWEST_BESIDE = 3
"""Values on each side of a change: with fewer, a step can't be told from an outlier."""

_ORDERS_PER_TAIL = 20
"""Orders are so many that this number of them is expected beyond alpha."""
_FEWEST_ORDERS = 499
_MOST_ORDERS = 9_999
_MOST_AT_ONCE = 2_000_000
"""Numbers that are worked on together, to bound memory."""

_ESTIMATED = tuple(round(0.05 * step, 2) for step in range(-10, 20))
_MOST_STEPS = 3
"""Steps that are taken out before it is estimated."""
_LEAST, _MOST = 0.4, 0.95
"""The autocorrelation that is reckoned with at least, and at most."""

_ROUNDING = 1e-20
"""Sums of squares below are rounding, in series that span 1."""
_UNEXPLAINED = 1e-12
"""The least share that a step leaves unexplained."""

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Segment = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """Hold where a level begins.

    `index`: of the first value of the new level. `p`: how often a series of the same
    autocorrelation without the change shows one as clear anywhere, itself counted in.
    """

    index: int
    p: float


def change_points(values: Sequence[float], alpha: float, seed: int = 0) -> list[ChangePoint]:
    """Return the changes of a series, by index; each with p <= alpha when it was found.

    Found one after the other, the clearest first, in what the former have left of the series. The
    chance that a series without a change gets one is alpha. Values must be finite.
    """
    if len(values) < 2 * FEWEST_BESIDE:
        return []
    series = np.asarray(values, dtype=float)
    series = (series - series.mean()) / (np.ptp(series) or 1.0)
    rng = np.random.default_rng(seed)
    # So many that alpha can be reached at all, whatever the number of series that share it.
    most = max(_MOST_ORDERS, math.ceil(1 / alpha))
    orders = min(max(math.ceil(_ORDERS_PER_TAIL / alpha), _FEWEST_ORDERS), most)
    found: list[ChangePoint] = []
    while True:
        levels = [0, *sorted(point.index for point in found)]
        segments = _segments(series, levels)
        if not segments:
            break
        r = autocorrelation(series, levels)
        step = _clearest(series, segments, r)
        p = _p_value(series, segments, r, step.ratio, orders, alpha, rng)
        if p > alpha:
            break
        found.extend(ChangePoint(place, p) for place in step.places)
    return sorted(found, key=lambda point: point.index)


def _segments(series: Floats, levels: Sequence[int]) -> list[Segment]:
    """Return the segments between levels' beginnings in which there may be a step."""
    return [
        (a, b)
        for a, b in itertools.pairwise([*levels, len(series)])
        if b - a >= 2 * FEWEST_BESIDE and np.ptp(series[a:b]) > 0
    ]


@dataclass(frozen=True, slots=True)
class _Step:
    """Hold how clear a step is, and the `places` where its levels begin: one, or two for a level
    that ends."""

    ratio: float
    places: tuple[int, ...]


def _clearest(series: Floats, segments: Sequence[Segment], r: float) -> _Step:
    """Return the clearest step of all segments."""
    steps = []
    for a, b in segments:
        (ratios,) = _ratios(_whitened(series[np.newaxis, a:b], r), r)
        starts, ends = _places(b - a)
        best = int(ratios.argmax())
        places = (int(starts[best]), int(ends[best]))
        steps.append(
            _Step(float(ratios[best]), tuple(a + place for place in places if place < b - a))
        )
    return max(steps, key=lambda step: step.ratio)


@cache
def _places(n: int) -> tuple[Whole, Whole]:
    """Return every start of a new level in n values, with each end: the last one's or before."""
    starts, ends = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    fit = (starts >= FEWEST_BESIDE) & (ends - starts >= FEWEST_BESIDE)
    fit &= (ends == n) | (ends <= n - FEWEST_BESIDE)
    return starts[fit], ends[fit]


def _ratios(white: Floats, r: float) -> Floats:
    """Return, for each row of whitened values, how clear each step of `_places` is.

    That is -n log(1 - R^2), twice the logarithm of a likelihood ratio with R^2 the share of the
    squares that the step explains beside the level. A level that ends is one of some n, and pays
    2 log n: then each kind is about as rare as the other where nothing changes.
    """
    n = white.shape[1]
    starts, ends = _places(n)
    later = 1 - r
    ended = (ends < n).astype(float)
    level = _whitened(np.ones(n), r)
    own = float(level @ level)
    rest = white - np.outer(white @ level / own, level)
    sums = np.concatenate((np.zeros((len(rest), 1)), rest.cumsum(axis=1)), axis=1)
    padded = np.concatenate((rest, np.zeros((len(rest), 1))), axis=1)
    # A whitened step is 1 where it starts, 1 - r after that, and -r where it has ended.
    along = rest[:, starts] + later * (sums[:, ends] - sums[:, starts + 1]) - r * padded[:, ends]
    inside = ends - starts - 1
    with_level = later * (1 + later * inside - r * ended)
    square = 1 + later**2 * inside + r**2 * ended - with_level**2 / own
    squares = np.maximum((rest * rest).sum(axis=1, keepdims=True), _ROUNDING)
    left = np.maximum(1 - along * along / (square * squares), _UNEXPLAINED)
    return np.asarray(-n * np.log(left) - 2 * math.log(n) * ended)


def _whitened(values: Floats, r: float) -> Floats:
    """Return what is independent along the last axis, of noise of autocorrelation r."""
    white = values.copy()
    white[..., 0] *= math.sqrt(1 - r * r)
    white[..., 1:] -= r * values[..., :-1]
    return white


def autocorrelation(series: Floats, levels: Sequence[int]) -> float:
    """Return the autocorrelation to reckon with, where levels begin at `levels` (the first at 0)
    and perhaps elsewhere.

    Steps that are still to be found pass for autocorrelation. So up to _MOST_STEPS more are taken
    out, the clearest first, and the least figure counts. On top of each estimate come 4 (1 + r)/n
    for each of these steps, since their places were chosen, and its standard error,
    sqrt((1 - r^2)/n). Simulations set these figures.
    """
    n, surely, chosen = len(series), _MOST, list(levels)
    for steps in range(1, _MOST_STEPS + 1):
        segments = _segments(series, chosen)
        if not segments:
            break
        chosen = sorted({*chosen, *_clearest(series, segments, _LEAST).places})
        r = _estimate(series, chosen)
        surely = min(surely, r + 4 * steps * (1 + r) / n + math.sqrt((1 - r * r) / n))
    return max(surely, _LEAST)


def _estimate(values: Floats, places: Sequence[int]) -> float:
    """Return the autocorrelation of noise around levels that begin at `places`, by restricted
    likelihood (D. A. Harville, JASA 72, 1977), which pays for the levels."""
    n = len(values)
    levels = np.array([np.arange(n) >= place for place in places], dtype=float)
    likeliest, estimate = math.inf, 0.0
    for r in _ESTIMATED:
        rows, y = _whitened(levels, r), _whitened(values, r)
        square, along = rows @ rows.T, rows @ y
        left = max(float(y @ y - along @ np.linalg.solve(square, along)), _ROUNDING)
        found = (n - len(places)) * math.log(left) - math.log(1 - r * r)
        found += math.log(np.linalg.det(square))
        if found < likeliest:
            likeliest, estimate = found, r
    return estimate


def _p_value(
    series: Floats,
    segments: Sequence[Segment],
    r: float,
    ratio: float,
    orders: int,
    alpha: float,
    rng: np.random.Generator,
) -> float:
    """Return (1 + orders with a step at least as clear) / (1 + orders).

    Orders are those of what the segments' levels leave of the whitened values. Ends early once p
    can't be alpha or less any more.
    """
    left = np.concatenate([_around_level(series[a:b], r) for a, b in segments])
    starts = np.cumsum([0, *(b - a for a, b in segments)])
    at_once = max(1, min(100, _MOST_AT_ONCE // len(left) ** 2))
    enough = alpha * (orders + 1)
    as_clear, done = 0, 0
    while done < orders and as_clear + 1 <= enough:
        count = min(at_once, orders - done)
        made = rng.permuted(np.tile(left, (count, 1)), axis=1)
        clearest = [
            _ratios(made[:, a:b], r).max(axis=1) for a, b in itertools.pairwise(starts.tolist())
        ]
        # What differs by rounding alone is as clear: the same step, summed in another order.
        as_clear += int((np.max(clearest, axis=0) >= ratio * (1 - 1e-9)).sum())
        done += count
    return (as_clear + 1) / (done + 1)


def _around_level(values: Floats, r: float) -> Floats:
    white, level = _whitened(values, r), _whitened(np.ones(len(values)), r)
    return np.asarray(white - level * (white @ level / (level @ level)))
