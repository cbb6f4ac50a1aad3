"""Follow a metric over the runs of a host, and find where it changed.

The run is the unit: a value is a cell's typical one, and blocks of one run have more in common
with each other than with those of another day. Pure.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from labctl.analysis.compare.two_runs import (
    MADE_BY,
    FactDifference,
    accelerator_title,
    builds,
    fact_differences,
)
from labctl.analysis.effects.cells import Cell, Series, read_cells
from labctl.analysis.effects.design import ALPHA
from labctl.base.units import Better, Unit
from labctl.store.jsonfile import canonical
from labctl.store.records.plan_record import HOG
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun

# Find changes of level in a series whose noise may be autocorrelated.
#
# Every step is fitted by generalized least squares in noise of first-order autocorrelation, whose
# assumed value exceeds its estimate. The clearness that the clearest step reaches without any
# change comes from the series itself: the part that the autocorrelation does not explain is
# permuted and scanned in the same way. A straight line over all values is an alternative among the
# steps, and counts where no step is clear. Simulations and alternatives:
# docs/decisions/change-points.md.


FEWEST_BESIDE = 3
"""Values on each side of a change: with fewer, a step can't be told from an outlier."""

_ORDERS_PER_TAIL = 20
"""Expected number of orders beyond alpha, which sets the number of orders."""
_FEWEST_ORDERS = 499
_MOST_ORDERS = 9_999
_MOST_AT_ONCE = 2_000_000
"""Limit on numbers that are processed together, to bound memory."""

_ESTIMATED = tuple(round(0.05 * step, 2) for step in range(-10, 20))
_MOST_STEPS = 3
"""Limit on steps that are removed before the autocorrelation is estimated."""
_LEAST, _MOST = 0.4, 0.95
"""Bounds of the assumed autocorrelation."""

_ROUNDING = 1e-20
"""Sum of squares up to which differences are rounding, in series that span 1."""
_UNEXPLAINED = 1e-12
"""The least share that a step leaves unexplained."""

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Segment = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """Hold the begin of a level.

    `index`: of the first value of the new level. `p`: share of series of the same autocorrelation
    without the change that show an equally clear one, or trend, this series included.
    """

    index: int
    p: float


@dataclass(frozen=True, slots=True)
class Trend:
    """Hold a straight line over all values, from `first` to `last`. `p`: as of a ChangePoint."""

    p: float
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Found:
    """Hold the changes of a series, or its trend; never both."""

    changes: tuple[ChangePoint, ...] = ()
    trend: Trend | None = None


def search(values: Sequence[float], alpha: float, seed: int = 0) -> Found:
    """Return the changes of a series, by index, each with p <= alpha when it was found; or, if no
    change is clear, its trend.

    Changes are found one after the other, the clearest first, in the remainder of the series. The
    chance that a series without change and trend gets either is alpha. Values must be finite.
    """
    if len(values) < 2 * FEWEST_BESIDE:
        return Found()
    series = np.asarray(values, dtype=float)
    middle, span = series.mean(), np.ptp(series) or 1.0
    series = (series - middle) / span
    rng = np.random.default_rng(seed)
    # Enough orders that p can reach alpha, whatever the number of series that share it.
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
            line = _trend_ratio(_whitened(series[np.newaxis], r), r)[0] if not found else 0.0
            if line > step.ratio:
                p = _p_value(series, segments, r, float(line), orders, alpha, rng)
                if p <= alpha:
                    first, last = (end * span + middle for end in _line(series, r))
                    return Found(trend=Trend(p, float(first), float(last)))
            break
        found.extend(ChangePoint(place, p) for place in step.places)
    return Found(tuple(sorted(found, key=lambda point: point.index)))


def _segments(series: Floats, levels: Sequence[int]) -> list[Segment]:
    """Return the segments between levels' begins that may have a step."""
    return [
        (a, b)
        for a, b in itertools.pairwise([*levels, len(series)])
        if b - a >= 2 * FEWEST_BESIDE and np.ptp(series[a:b]) > 0
    ]


@dataclass(frozen=True, slots=True)
class _Step:
    """Hold the clearness of a step, and the `places` where its levels begin: one, or two if the
    level ends."""

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
    """Return every start of a new level in n values, each with every end up to the last value's."""
    starts, ends = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    fit = (starts >= FEWEST_BESIDE) & (ends - starts >= FEWEST_BESIDE)
    fit &= (ends == n) | (ends <= n - FEWEST_BESIDE)
    return starts[fit], ends[fit]


def _ratios(white: Floats, r: float) -> Floats:
    """Return the clearness of each step of `_places` for each row of whitened values.

    It is -n log(1 - R^2), twice the logarithm of a likelihood ratio, where R^2 is the share of the
    squares that the step explains beside the level. A level that ends has about n possible lengths,
    and a penalty of 2 log n makes both kinds about equally rare without a change.
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


def _trend_ratio(white: Floats, r: float) -> Floats:
    """Return the clearness of a straight line for each row of whitened values, on the scale of
    `_ratios`. A step has about n possible places; log n more makes a line about as rare."""
    n = white.shape[1]
    level, slope = _line_parts(n, r)
    rest = white - np.outer(white @ level / (level @ level), level)
    along = rest @ slope
    squares = np.maximum((rest * rest).sum(axis=1), _ROUNDING)
    left = np.maximum(1 - along * along / (slope @ slope * squares), _UNEXPLAINED)
    return np.asarray(-n * np.log(left) + math.log(n))


def _line_parts(n: int, r: float) -> tuple[Floats, Floats]:
    """Return the whitened level, and the whitened slope without its part along the level."""
    level = _whitened(np.ones(n), r)
    slope = _whitened(np.arange(n, dtype=np.float64) - (n - 1) / 2, r)
    return level, slope - level * (slope @ level / (level @ level))


def _line(series: Floats, r: float) -> tuple[float, float]:
    """Return both ends of the straight line through a series, by generalized least squares."""
    n = len(series)
    rows = _whitened(np.stack((np.ones(n), np.arange(n, dtype=float))), r)
    start, slope = np.linalg.lstsq(rows.T, _whitened(series, r), rcond=None)[0].tolist()
    return start, start + slope * (n - 1)


def _whitened(values: Floats, r: float) -> Floats:
    """Return the values, whose noise has autocorrelation r, whitened along the last axis."""
    white = values.copy()
    white[..., 0] *= math.sqrt(1 - r * r)
    white[..., 1:] -= r * values[..., :-1]
    return white


def autocorrelation(series: Floats, levels: Sequence[int]) -> float:
    """Return the assumed autocorrelation if levels begin at `levels` (the first at 0) and perhaps
    elsewhere.

    Steps that are not found yet look like autocorrelation, and so does a trend. So a trend, or up
    to _MOST_STEPS more steps, the clearest first, are removed, and the least result counts. Added
    to each estimate are 4 (1 + r)/n for the trend or each of these steps, whose places were chosen,
    and its standard error, sqrt((1 - r^2)/n). Simulations set these figures.
    """
    n, surely, chosen = len(series), _MOST, list(levels)
    if len(levels) == 1:
        r = _estimate(series, levels, with_slope=True)
        surely = min(surely, r + 4 * (1 + r) / n + math.sqrt((1 - r * r) / n))
    for steps in range(1, _MOST_STEPS + 1):
        segments = _segments(series, chosen)
        if not segments:
            break
        chosen = sorted({*chosen, *_clearest(series, segments, _LEAST).places})
        r = _estimate(series, chosen)
        surely = min(surely, r + 4 * steps * (1 + r) / n + math.sqrt((1 - r * r) / n))
    return max(surely, _LEAST)


def _estimate(values: Floats, places: Sequence[int], *, with_slope: bool = False) -> float:
    """Return the autocorrelation of noise around levels that begin at `places`, and around a slope,
    by restricted likelihood (D. A. Harville, JASA 72, 1977), which corrects for them."""
    n = len(values)
    levels = np.array([np.arange(n) >= place for place in places], dtype=float)
    if with_slope:
        levels = np.vstack((levels, (np.arange(n) - (n - 1) / 2) / n))
    likeliest, estimate = math.inf, 0.0
    for r in _ESTIMATED:
        rows, y = _whitened(levels, r), _whitened(values, r)
        square, along = rows @ rows.T, rows @ y
        left = max(float(y @ y - along @ np.linalg.solve(square, along)), _ROUNDING)
        found = (n - len(levels)) * math.log(left) - math.log(1 - r * r)
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

    Orders are permutations of the whitened values' residuals from the segments' levels. In a series
    without a change so far an order may have a trend that is as clear, instead. The count ends
    early if p can't be alpha or less any more.
    """
    has_trends = segments == [(0, len(series))]
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
        if has_trends:
            clearest.append(_trend_ratio(made, r))
        # A difference by rounding counts as equal: the same step, summed in another order.
        as_clear += int((np.max(clearest, axis=0) >= ratio * (1 - 1e-9)).sum())
        done += count
    return (as_clear + 1) / (done + 1)


def _around_level(values: Floats, r: float) -> Floats:
    white, level = _whitened(values, r), _whitened(np.ones(len(values)), r)
    return np.asarray(white - level * (white @ level / (level @ level)))


FEWEST = 8
"""Fewest runs of a series that is searched for changes: fewer do not show their noise."""

_HARDWARE = ("cpu_model", "topology", "hypervisor_vendor")
"""Facts that identify a host. They do not include a serial number, so equal hosts look alike. All
other facts (kernel, microcode, settings) may change on a host and stand beside its changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Hold one run's value, from `blocks` blocks."""

    run: str
    at: str
    value: float
    blocks: int
    record: RunRecord


NEAR = 2
"""Runs by which a mark may miss the begin of a level: small changes were marked late by so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactNear:
    """Hold a fact that changed with `run`, which is `distance` runs after the mark (negative:
    before)."""

    fact: FactDifference
    run: str
    distance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """Describe a level that ends before `run`. `before` and `after`: typical values of the runs
    between this change and its neighbours. `p`: probability of such a change by chance.
    """

    run: str
    index: int
    p: float
    before: float
    after: float
    facts: tuple[FactNear, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """Hold a metric of one cell over comparable runs, oldest first. `apart`: difference from other
    series of the same cell. `trend`: of a series without changes. `unmarked`: reason if the series
    was not searched for changes."""

    tuning: str
    workload: str
    condition: str
    metric: str
    unit: Unit
    better: Better
    accelerator: str
    host: str
    apart: str
    points: tuple[Point, ...]
    changes: tuple[LevelChange, ...]
    unmarked: str | None
    trend: Trend | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Hold a host's history. `metrics`: those that exist, if no run has the requested one."""

    metric: str
    series: tuple[RunSeries, ...]
    runs: int
    alpha: float
    metrics: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Hold a selection; None selects everything. `metric` may leave out its labels."""

    metric: str
    tuning: str | None = None
    workload: str | None = None
    condition: str | None = None
    study: str | None = None

    def has(self, cell: Cell) -> bool:
        wanted = (self.tuning, self.workload, self.condition)
        return all(
            want is None or want == found
            for want, found in zip(wanted, (cell.tuning, *cell.place), strict=True)
        )


def history(runs: Iterable[LoadedRun], choice: Choice) -> History:
    """Return the series of a metric over runs. Reads each run once, and never raises."""
    found: dict[str, list[tuple[_Kept, Point]]] = {}
    ranks: dict[str, int] = {}
    metrics: set[str] = set()
    left_out: list[str] = []
    count = 0
    for run in runs:
        if choice.study is not None and run.run.study != choice.study:
            continue
        count += 1
        for name in run.plan.tunings:
            ranks.setdefault(name, len(ranks))
        kept = list(_kept(run, choice, metrics))
        if not kept:
            left_out.append(f"{run.name} has no valid value for it.")
        for one in kept:
            found.setdefault(one.identity, []).append((one, _point(run, one.series)))
    ordered = [sorted(group, key=lambda kept: kept[1].at) for group in found.values()]
    ordered.sort(key=lambda group: group[0][0].order(ranks))
    alpha = ALPHA / max(1, sum(len(group) >= FEWEST for group in ordered))
    twins = _apart([group[0][0] for group in ordered])
    series = [_run_series(group, alpha, apart) for group, apart in zip(ordered, twins, strict=True)]
    return History(
        metric=choice.metric,
        series=tuple(series),
        runs=count,
        alpha=alpha,
        metrics=tuple(sorted(metrics)) if not series else (),
        left_out=tuple(left_out),
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """Hold a cell's series in one run, with everything that must agree in comparable runs."""

    cell: Cell
    key: str
    series: Series
    traits: Mapping[str, str]

    @property
    def shown_as(self) -> tuple[Any, ...]:
        return self.cell, self.key, self.traits["accelerator"]

    @property
    def identity(self) -> str:
        return canonical([self.cell.tuning, *self.cell.place, self.key, dict(self.traits)])

    def order(self, ranks: Mapping[str, int]) -> tuple[Any, ...]:
        """Return the order: workload and condition, then tunings in plan order."""
        tuning = self.cell.tuning
        return *self.cell.place, ranks.get(tuning, len(ranks)), tuning, self.key


def _kept(run: LoadedRun, choice: Choice, metrics: set[str]) -> Iterator[_Kept]:
    for cell, by_key in read_cells(run).series.items():
        if not choice.has(cell):
            continue
        metrics.update(by_key)
        arm = run.plan.tunings.get(cell.tuning)
        workload = run.plan.workloads.get(cell.place.workload)
        for key, series in by_key.items():
            if choice.metric in (key, series.sample.metric):
                programs = [str(workload and workload.program)]
                traits = {
                    "accelerator": accelerator_title(run.run.accelerator),
                    "host": _host(run.run.host),
                    "definition": str(arm and arm.digest)[:12],
                    "workload": canonical([getattr(workload, name, None) for name in MADE_BY]),
                    "neighbours": _neighbours(run, cell.place.condition),
                    "build": canonical(builds(run.run, programs)),
                    "unit": f"{series.sample.unit} {series.sample.better}",
                }
                yield _Kept(cell, key, series, traits)


def _neighbours(run: LoadedRun, condition: str) -> str:
    """Return a digest of the programs that ran beside the trials of a condition; "none" if there
    were none, and for CPU hogs, which plans of older versions do not describe."""
    declared = run.plan.neighbours.get(condition)
    if declared is None or condition == HOG:
        return "none"
    return hashlib.sha256(canonical(declared.to_json()).encode()).hexdigest()[:12]


def _host(facts: Mapping[str, Any]) -> str:
    known = {name: facts[name] for name in _HARDWARE if name in facts}
    parts = [str(known.get("cpu_model", "unknown CPU"))]
    topology = known.get("topology")
    if isinstance(topology, Mapping):
        parts.append(", ".join(f"{count} {name}" for name, count in topology.items()))
    if (vendor := known.get("hypervisor_vendor")) not in (None, "none"):
        parts.append(f"under {vendor}")
    return ", ".join(parts)


def _point(run: LoadedRun, series: Series) -> Point:
    return Point(
        run=run.name,
        at=str(run.run.started_at or run.name),
        value=series.typical,
        blocks=len(series.values),
        record=run.run,
    )


def _apart(kept: Sequence[_Kept]) -> list[str]:
    """Return each series' difference from the others of its cell and accelerator, in words."""
    words = {
        "host": "on {}",
        "definition": "definition {}",
        "workload": "workload as {}",
        "neighbours": "neighbours {}",
        "build": "programs {}",
        "unit": "in {}",
    }
    found = []
    for one in kept:
        alike = [other for other in kept if other.shown_as == one.shown_as]
        differing = [name for name in words if len({other.traits[name] for other in alike}) > 1]
        found.append("; ".join(words[name].format(one.traits[name]) for name in differing))
    return found


def _run_series(group: Sequence[tuple[_Kept, Point]], alpha: float, apart: str) -> RunSeries:
    kept, points = group[0][0], [point for _, point in group]
    values = [point.value for point in points]
    logs = min(values) > 0
    unmarked, found = None, Found()
    if len(points) >= FEWEST:
        scaled = [math.log(value) for value in values] if logs else values
        found = search(scaled, alpha)
    else:
        unmarked = f"{len(points)} of the {FEWEST} runs that a change needs"
    sample = kept.series.sample
    return RunSeries(
        tuning=kept.cell.tuning,
        workload=kept.cell.place.workload,
        condition=kept.cell.place.condition,
        metric=kept.key,
        unit=sample.unit,
        better=sample.better,
        accelerator=kept.traits["accelerator"],
        host=kept.traits["host"],
        apart=apart,
        points=tuple(points),
        changes=tuple(_changes(points, found.changes, logs)),
        unmarked=unmarked,
        trend=_unscaled(found.trend, logs),
    )


def _unscaled(trend: Trend | None, logs: bool) -> Trend | None:
    if trend is None or not logs:
        return trend
    return Trend(trend.p, math.exp(trend.first), math.exp(trend.last))


def _near(points: Sequence[Point], here: int) -> list[FactNear]:
    """Return the facts that changed within NEAR runs of a mark, the nearest first."""
    around = range(max(1, here - NEAR), min(len(points), here + NEAR + 1))
    found = [
        FactNear(fact=fact, run=points[at].run, distance=at - here)
        for at in around
        for fact in fact_differences(points[at - 1].record, points[at].record)
    ]
    return sorted(found, key=lambda one: abs(one.distance))


def _changes(
    points: Sequence[Point], changes: Sequence[ChangePoint], logs: bool
) -> Iterator[LevelChange]:
    ends = [0, *(change.index for change in changes), len(points)]
    for start, change, end in zip(ends, changes, ends[2:], strict=False):
        here = change.index
        yield LevelChange(
            run=points[here].run,
            index=here,
            p=change.p,
            before=_typical(points[start:here], logs),
            after=_typical(points[here:end], logs),
            facts=tuple(_near(points, here)),
        )


def _typical(points: Sequence[Point], logs: bool) -> float:
    values = [point.value for point in points]
    if logs:
        return math.exp(math.fsum(map(math.log, values)) / len(values))
    return math.fsum(values) / len(values)
