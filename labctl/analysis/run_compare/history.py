"""Follow a metric over the runs of a host, and find where it changed.

The run is the unit: a value is a cell's typical one, and blocks of one run have more in common
with each other than with those of another day. Pure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labctl.analysis.cells import Cell, Series, read_cells
from labctl.analysis.design import ALPHA
from labctl.analysis.run_compare.changepoints import ChangePoint, change_points
from labctl.analysis.run_compare.run_facts import FactDifference, fact_differences
from labctl.analysis.run_compare.two_runs import MADE_BY, accelerator_title, builds
from labctl.base.units import Better, Unit
from labctl.store.jsonfile import canonical
from labctl.store.records.plan_record import HOG
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun

FEWEST = 8
"""Runs of a series in which a change is looked for: fewer tell too little of their noise."""

_HARDWARE = ("cpu_model", "topology", "hypervisor_vendor")
"""Facts that identify a host. They include no serial number, so equal hosts look alike; all else
(kernel, microcode, settings) may change on a host and stands beside its changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Hold one run's value, from `blocks` blocks."""

    run: str
    at: str
    value: float
    blocks: int
    record: RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """Describe a level that ends before `run`. `before` and `after`: typical values of the runs
    between this change and its neighbours, and `p` how often chance alone makes as large a change.
    """

    run: str
    index: int
    p: float
    before: float
    after: float
    facts: tuple[FactDifference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """Hold a metric of one cell over comparable runs, oldest first. `apart`: how it differs from
    other series of the same cell; `unmarked`: why no change was looked for."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Hold a host's history. `metrics`: those that exist, where no run has the requested one."""

    metric: str
    series: tuple[RunSeries, ...]
    runs: int
    alpha: float
    metrics: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Hold what to look at; None is everything. `metric` may leave out its labels."""

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
    """Return the series of a metric over runs, each run looked at once; nothing raises."""
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
            left_out.append(f"{run.name} has no valid value of it.")
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
    """Hold a cell's series in one run, with all that must agree for two runs to be compared."""

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
        """Order by workload and condition, then tunings as the plans have them."""
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
    """Return a digest of what ran beside the trials of a condition; "none" where nothing did, and
    for the hogs, of which plans of an older labctl say nothing."""
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
    """Return in words how each differs from the others of its cell and accelerator."""
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
    unmarked, changes = None, []
    if len(points) >= FEWEST:
        scaled = [math.log(value) for value in values] if logs else values
        changes = change_points(scaled, alpha)
    else:
        unmarked = f"{len(points)} of the {FEWEST} runs that a change takes"
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
        changes=tuple(_changes(points, changes, logs)),
        unmarked=unmarked,
    )


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
            facts=tuple(fact_differences(points[here - 1].record, points[here].record)),
        )


def _typical(points: Sequence[Point], logs: bool) -> float:
    values = [point.value for point in points]
    if logs:
        return math.exp(math.fsum(map(math.log, values)) / len(values))
    return math.fsum(values) / len(values)
