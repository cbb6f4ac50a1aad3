"""Order a judgement as people read it: by workload and condition, arm by arm.

Finds and orders; every number in it comes from the judgement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

from labctl.analysis.effects.cells import Placed, Scenario, is_interleaved, scenario_of
from labctl.analysis.model import Comparison, Diagnostic, Judged, Judgement, Level, Role, RunCheck
from labctl.analysis.verdicts.table import Says, says
from labctl.base.errors import UsageError, nearest
from labctl.base.metrics.table import beside_primary
from labctl.base.units import OPEN
from labctl.base.wording import metric_title
from labctl.store.records.factor_record import base_of
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import base_name, labels_of, sample_key

K = TypeVar("K")
V = TypeVar("V")
P = TypeVar("P", bound=Placed)

_MEASURED = "not measured in this run"

_STALL_TIME = "stall_time"
"""Time that percentiles hide when a program misses periods; a column where trials lack the
open-loop latencies, which put these periods back (METHOD 9)."""

_MOST_VARIANTS = 2
"""Columns of one metric by label, e.g. p95 latency of reads and of writes."""

_MOST_OTHERS = 3
"""Columns beside the primary metric's that fit a terminal."""


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """Describe one metric of a table; `names`: the series that it shows, the preferred one
    first.
    """

    title: str
    names: tuple[str, ...]
    primary: bool = False


@cache  # each is asked for by every cell and comparison
def series_name(metric: str) -> str:
    """Return the metric's key without its `source`: `ipc{source=pmu}` is a series of "ipc", while
    `latency_p95{direction=read}` is one of its own."""
    kept = {name: value for name, value in labels_of(metric).items() if name != "source"}
    return sample_key(base_name(metric), kept)


def only_label(metric: str, base: str, name: str) -> str | None:
    """Return the value of a label of a `base` that has no other: exits by reason are
    "exits{reason=HLT}", and "exits{reason=HLT,vcpu=0}" is a part of them."""
    if base_name(metric) != base:
        return None
    labels = labels_of(metric)
    return labels.get(name) if len(labels) == 1 else None


def of_workloads(run: LoadedRun, judgement: Judgement, names: Collection[str]) -> Judgement:
    """Return the judgement with numbers of these workloads alone; all of them without names. A
    cell of factors counts as its workload. The answer stays that of the whole run.

    Raises UsageError, with the nearest name, for a workload that the run doesn't have.
    """
    if not names:
        return judgement
    known = {*run.plan.workloads, *map(base_of, run.plan.workloads)}
    for name in names:
        if name not in known:
            raise UsageError(f"run {run.name} has no workload '{name}'", hint=nearest(name, known))

    wanted = {*names}

    def chosen(items: Sequence[P]) -> tuple[P, ...]:
        return tuple(one for one in items if {one.workload, base_of(one.workload)} & wanted)

    factors = judgement.factors
    return replace(
        judgement,
        comparisons=chosen(judgement.comparisons),
        levels=chosen(judgement.levels),
        control=chosen(judgement.control),
        known_loss=chosen(judgement.known_loss),
        restored=chosen(judgement.restored),
        diagnostics=chosen(judgement.diagnostics),
        precision=chosen(judgement.precision),
        factors=factors and replace(factors, contrasts=chosen(factors.contrasts)),
    )


class View:
    """Look things up in a run's judgement."""

    def __init__(self, run: LoadedRun, judgement: Judged) -> None:
        self.run = run
        self.judgement = judgement
        self.paired = is_interleaved(run)
        self._plan_tunings = run.plan.tunings
        self.baseline = run.plan.baseline or "baseline"
        self.control = run.plan.control or "control"
        self.known_loss = run.plan.handicap or "handicap"
        # By place too: a run may have thousands of cells, and whatever is shown is of one place.
        self._levels_of: dict[Scenario, list[Level]] = {}
        self._comparisons_of: dict[Scenario, list[Comparison]] = {}
        self._levels: dict[tuple[str, Scenario, str], list[Level]] = {}
        for level in judgement.levels:
            self._levels_of.setdefault(scenario_of(level), []).append(level)
            key = (level.tuning, scenario_of(level), series_name(level.metric))
            self._levels.setdefault(key, []).append(level)
        self._comparisons: dict[tuple[str, str, Scenario, str], list[Comparison]] = {}
        self._against: dict[str, set[str]] = {}
        for item in judgement.comparisons:
            self._against.setdefault(item.tuning, set()).add(item.against)
            self._comparisons_of.setdefault(scenario_of(item), []).append(item)
            pair = (item.tuning, item.against, scenario_of(item), series_name(item.metric))
            self._comparisons.setdefault(pair, []).append(item)
        self._open_loop = {
            level.workload for level in judgement.levels if level.metric.startswith(OPEN)
        }
        for missing in judgement.unavailable:
            if missing.metric.startswith(OPEN):
                self._open_loop.update(missing.workloads)
        self.tunings = self._ordered_tunings()
        self.places = self._ordered_places()

    def is_native(self, tuning: str) -> bool:
        arm = self._plan_tunings.get(tuning)
        return arm.kind == "native" if arm else tuning.startswith("native")

    def twin(self, tuning: str) -> str | None:
        """Return the native arm with the tuning's placement and policy, as planned or as
        compared.
        """
        arm = self._plan_tunings.get(tuning)
        if arm and arm.twin is not None:
            return arm.twin
        against = self._against.get(tuning, ())
        return next(
            (name for name in self.tunings if name in against and self.is_native(name)), None
        )

    def description(self, tuning: str) -> str:
        arm = self._plan_tunings.get(tuning)
        return arm.description if arm else ""

    @property
    def candidates(self) -> list[str]:
        """Return the tunings on trial: guests that are neither baseline nor a check of the run."""
        booted = {name for name, arm in self._plan_tunings.items() if arm.restored_as}
        checks = {self.baseline, self.control, self.known_loss} | booted
        return [t for t in self.tunings if t not in checks and not self.is_native(t)]

    @property
    def other_problems(self) -> list[str]:
        """Return damaged parts of the folder that no warning names already."""
        return [text for text in self.run.problems if text not in self.judgement.warnings]

    def primary(self, workload: str) -> str | None:
        """Return the key of the workload's primary metric."""
        if workload in self.judgement.primaries:
            return self.judgement.primaries[workload]
        return next(
            (
                item.metric
                for item in self.judgement.comparisons
                if item.workload == workload and item.role is Role.PRIMARY
            ),
            None,
        )

    def title(self, workload: str, metric: str) -> str:
        """Return the metric in words; of a latency that it is closed-loop, where the workload has
        open-loop ones as well."""
        return metric_title(metric, closed_loop=workload in self._open_loop)

    def latency(self, workload: str, prefix: str) -> str:
        """Return what metrics that begin like this are: "open-loop latency", or "latency"."""
        if workload not in self._open_loop:
            return "latency"
        return "open-loop latency" if prefix == OPEN else "closed-loop latency"

    def columns(self, workload: str) -> list[MetricColumn]:
        """Return the primary metric first, then IPC, p95 latency (open-loop as well, where that is
        known) and VM exits, each once, then what only some workloads have."""
        primary = self.primary(workload)
        columns = []
        if primary is not None:
            columns.append(replace(primary_column(primary), title=self.title(workload, primary)))
        if self.run.run.imported:
            return columns + self._others_measured(workload, primary)
        for names in beside_primary():
            if names[0].startswith(OPEN) and workload not in self._open_loop:
                continue
            if primary is None or base_name(primary) not in names:
                columns += self._columns_of(workload, names)
        if workload not in self._open_loop and any(
            level.workload == workload and level.metric == _STALL_TIME != primary
            for level in self.judgement.levels
        ):
            columns.append(MetricColumn(metric_title(_STALL_TIME), (_STALL_TIME,)))
        return columns

    def _others_measured(self, workload: str, primary: str | None) -> list[MetricColumn]:
        """Return the metrics of trials from elsewhere, whose metrics are not ours to choose
        among."""
        levels = (level for level in self.judgement.levels if level.workload == workload)
        names = dict.fromkeys(series_name(level.metric) for level in levels)
        others = [name for name in names if primary is None or name != series_name(primary)]
        return [MetricColumn(metric_title(name), (name,)) for name in others[:_MOST_OTHERS]]

    def _columns_of(self, workload: str, names: tuple[str, ...]) -> list[MetricColumn]:
        """Return one column, or one per label set where the metric was recorded only by labels."""
        metrics = [level.metric for level in self.judgement.levels if level.workload == workload]
        for missing in self.judgement.unavailable:
            if workload in missing.workloads:
                metrics.append(missing.metric)
        there = {series_name(metric) for metric in metrics if base_name(metric) in names}
        if there.isdisjoint(names) and 0 < len(there) <= _MOST_VARIANTS:
            return [MetricColumn(self.title(workload, name), (name,)) for name in sorted(there)]
        # The shortest title: the values have their units.
        return [MetricColumn(self.title(workload, names[-1]), names)]

    def level(self, tuning: str, place: Scenario, column: MetricColumn) -> Level | None:
        return _first(self._levels, ((tuning, place, name) for name in column.names))

    def comparison(
        self, tuning: str, against: str, place: Scenario, column: MetricColumn
    ) -> Comparison | None:
        keys = ((tuning, against, place, name) for name in column.names)
        return _first(self._comparisons, keys)

    def levels(self, place: Scenario) -> list[Level]:
        """Return all comparisons of one place, in the judgement's order."""
        return self._levels_of.get(place, [])

    def comparisons(self, place: Scenario) -> list[Comparison]:
        """Return all comparisons of one place: primaries first, then by metric, against and
        tuning.
        """
        rank = {name: at for at, name in enumerate(self.tunings)}
        return sorted(
            self._comparisons_of.get(place, ()),
            key=lambda item: (
                item.role is not Role.PRIMARY,
                item.metric,
                item.against != self.baseline,
                rank.get(item.tuning, len(rank)),
            ),
        )

    def judged(self, place: Scenario, tuning: str) -> list[Comparison]:
        """Return the tuning's comparisons with baseline that its verdicts belong to."""
        return [
            item
            for item in self._comparisons_of.get(place, ())
            if item.role is Role.PRIMARY and item.tuning == tuning and item.against == self.baseline
        ]

    def primary_comparison(self, place: Scenario) -> Comparison | None:
        """Return any judged comparison of the place: it shows metric, direction and margin."""
        return next((item for t in self.tunings for item in self.judged(place, t)), None)

    def control_as_comparison(self, place: Scenario) -> Comparison | None:
        """Return the control's check in the shape of the tunings' comparisons, to be shown beside
        them; None when it could not be checked."""
        judged = [item for tuning in self.tunings for item in self.judged(place, tuning)]
        check = next((c for c in self.judgement.control if scenario_of(c) == place), None)
        if check is None or check.estimate is None or len({item.kind for item in judged}) != 1:
            return None  # without one kind for all, its number might be of another
        return replace(
            judged[0],
            tuning=self.control,
            metric=check.metric,
            estimate=check.estimate,
            low=check.low,
            high=check.high,
            confidence=check.confidence,
            verdict=None,
            role=Role.EXPLORATORY,
            blocks={},
        )

    def pictured(self, place: Scenario) -> list[Comparison]:
        """Return the primary metric of control, known loss and all candidates against baseline."""
        primary = self.primary(place.workload)
        if primary is None:
            return []
        column = primary_column(primary)
        found = [self.control_as_comparison(place)]
        for arm in (self.known_loss, *self.candidates):
            found.append(self.comparison(arm, self.baseline, place, column))
        return [item for item in found if item is not None]

    def column_titles(self, place: Scenario, columns: list[MetricColumn]) -> list[str]:
        """Return the titles, with the source where the numbers have one (METHOD 13)."""
        titles = []
        for column in columns:
            sources = {
                level.source
                for tuning in self.tunings
                if (level := self.level(tuning, place, column)) and "source=" in level.metric
            }
            titles.append(
                f"{column.title} ({', '.join(sorted(sources))})" if sources else column.title
            )
        return titles

    def reason(self, tuning: str, place: Scenario, column: MetricColumn) -> str:
        """Return why a number that the column would show isn't there."""
        if self.is_native(tuning) and "exits" in column.names:
            return "VM exits: a native run has none"
        missing = [
            item
            for item in self.judgement.unavailable
            if series_name(item.metric) in column.names and place.workload in item.workloads
        ]
        missing.sort(key=lambda item: tuning not in item.tunings)
        if missing and tuning in missing[0].tunings:
            return f"{column.title}: {missing[0].reason}"
        return f"{column.title}: {_MEASURED}"

    def why_not_compared(
        self, tuning: str, against: str, place: Scenario, column: MetricColumn
    ) -> str:
        """Return why a comparison isn't there: either side has no number, or they aren't of one
        kind."""
        for arm in (tuning, against):
            if self.level(arm, place, column) is None:
                return self.reason(arm, place, column)
        sources = {
            level.source
            for arm in (tuning, against)
            if (level := self.level(arm, place, column)) is not None
        }
        if len(sources) > 1:
            return f"{column.title}: measured in different ways on both sides"
        return f"{column.title}: no block has both {tuning} and {against}"

    def spotlight(self, place: Scenario, most: int) -> list[str]:
        """Return at most `most` arms for a picture: the references first, then the tunings, those
        with a clear effect before the others."""
        candidates = self.candidates
        measures = [arm for arm in self.tunings if arm not in candidates]
        candidates.sort(
            key=lambda arm: not any(says(c.verdict, Says.EFFECT) for c in self.judged(place, arm))
        )
        kept = {*measures, *candidates[: max(1, most - len(measures))]}
        return [arm for arm in self.tunings if arm in kept]

    def diagnostics(self, place: Scenario) -> list[Diagnostic]:
        """Return what makes the intervals of one place less sure than they say, grave ones
        first."""
        found = [one for one in self.judgement.diagnostics if scenario_of(one) == place]
        return sorted(found, key=lambda one: not one.grave)

    def checks(self, place: Scenario) -> list[RunCheck]:
        """Control, known loss and what restoring did, of one place."""
        made = (*self.judgement.control, *self.judgement.known_loss, *self.judgement.restored)
        return [check for check in made if scenario_of(check) == place]

    def _ordered_tunings(self) -> list[str]:
        names = [str(name) for name in self._plan_tunings]
        for level in self.judgement.levels:
            names.append(level.tuning)
        for item in self.judgement.comparisons:
            names += [item.tuning, item.against]
        order = {self.baseline: 1, self.control: 2, self.known_loss: 3}
        return sorted(
            dict.fromkeys(names),
            key=lambda name: order.get(name, 0 if self.is_native(name) else 4),
        )

    def _ordered_places(self) -> list[Scenario]:
        planned = [
            Scenario(workload, condition)
            for workload in self.run.plan.workloads
            for condition in self.run.plan.conditions
        ]
        found: list[Scenario] = [scenario_of(level) for level in self.judgement.levels]
        found += [scenario_of(item) for item in self.judgement.comparisons]
        there = set(found)
        return list(dict.fromkeys([place for place in planned if place in there] + found))


def primary_column(metric: str) -> MetricColumn:
    return MetricColumn(metric_title(metric), (series_name(metric),), primary=True)


def _first(found: Mapping[K, list[V]], keys: Iterable[K]) -> V | None:
    return next(_found(found, keys), None)


def _found(found: Mapping[K, list[V]], keys: Iterable[K]) -> Iterator[V]:
    for key in keys:
        yield from found.get(key, ())
