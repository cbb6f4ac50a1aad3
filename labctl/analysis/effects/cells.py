"""Reduce a run's trials to one value per block of each metric in each cell.

An invalid trial gives no value; of several valid attempts the last one counts. Missing values are
not imputed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np

from labctl.analysis.effects.intervals import ByBlock, Floats
from labctl.analysis.model import MissingMetric
from labctl.base.metrics.row import Counts
from labctl.base.metrics.table import metric_of
from labctl.base.units import Unit
from labctl.base.wording import place_in_words
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.samples import (
    Kind,
    Kinds,
    Reading,
    Readings,
    Sample,
    Unavailable,
    sample,
    sample_key,
)
from labctl.store.trial import TrialStatus

# Decide whether a run's arms may be paired within its blocks (METHOD 30).


def is_interleaved(run: LoadedRun) -> bool:
    """Return whether each block of a run holds its arms side by side, so that differences within a
    block are free of changes between blocks.

    labctl's own plans are, and have a seed. The plan of an imported run declares it; older imports
    do not, and then it is unknown.
    """
    if not run.run.imported:
        return True
    return run.plan.interleaved is True or run.plan.seed is not None


# Name the threads that had the CPUs for which a machine's threads waited, by the same names in all
# trials of a run.
#
# A trial's trace names all threads that ran, so a name that it lacks had no time. The names that
# are worth a line are chosen over all trials. If each trial chose its largest ones, a name would
# be missing in trials in which it had little, and its time in the others could not be compared.


METRIC = "preempted_time"
OTHERS = "others"
MOST = 10
"""Limit on names in a run."""

_UNKNOWN = "unknown"
_MOST_UNKNOWN = 0.05
"""Limit on the share of unnamed threads in the waits: with more, a missing name may be among them,
so its time is unknown."""

_WITNESS = "sched_delay"
"""Metric of trials whose trace names the threads that ran meanwhile."""

_Of = tuple[tuple[str, str], ...]
"""All labels but the name."""


@dataclass(slots=True)
class _Told:
    witness: Sample | None = None
    by: dict[str, float] = field(default_factory=dict)


def by_same_names(trials: Collection[LoadedTrial]) -> list[LoadedTrial]:
    """Return the same trials; in traced ones `preempted_time` has the ten names with the most time
    in any trial, with 0 for a name without time, and `others` for the rest.

    A trial that does not name all threads that ran keeps its readings.
    """
    kinds = Kinds()
    is_traced: dict[int, bool] = {}
    told: dict[int, Mapping[_Of, _Told]] = {}
    for number, trial in enumerate(trials):
        packed = kinds.pack(trial.readings)
        # The tuple of kinds lives as long as `trials` or `kinds`, so its id is unique.
        key = id(packed.kinds)
        if key not in is_traced:
            is_traced[key] = any(kind.metric == _WITNESS for kind in packed.kinds)
        if is_traced[key]:
            told[number] = _told(packed)
    names = _names(told.values())
    if not names:
        return list(trials)
    return [
        replace(trial, readings=tuple(_renamed(trial.readings, told[number], names)))
        if number in told
        else trial
        for number, trial in enumerate(trials)
    ]


def _told(readings: Iterable[Reading]) -> dict[_Of, _Told]:
    """Return a trial's times by name, for the labels whose trace names all threads that ran."""
    found: defaultdict[_Of, _Told] = defaultdict(_Told)
    for one in readings:
        if isinstance(one, Sample) and one.metric == _WITNESS:
            found[_of(one)].witness = one
        elif isinstance(one, Sample) and one.metric == METRIC:
            found[_of(one)].by[one.labels.get("by", OTHERS)] = one.value
    return {of: one for of, one in found.items() if one.witness and _knows_all(one.by)}


def _knows_all(by: Mapping[str, float]) -> bool:
    return OTHERS not in by and by.get(_UNKNOWN, 0.0) <= _MOST_UNKNOWN * math.fsum(by.values())


def _of(sample: Sample) -> _Of:
    return tuple(sorted(label for label in sample.labels.items() if label[0] != "by"))


def _names(told: Iterable[Mapping[_Of, _Told]]) -> dict[_Of, list[str]]:
    largest: defaultdict[_Of, dict[str, float]] = defaultdict(dict)
    for trial in told:
        for of, one in trial.items():
            for name, value in one.by.items():
                largest[of][name] = max(largest[of].get(name, 0.0), value)
    return {
        of: sorted(sorted(own, key=lambda name: (-own[name], name))[:MOST])
        for of, own in largest.items()
    }


def _renamed(
    readings: Iterable[Reading], told: Mapping[_Of, _Told], names: Mapping[_Of, Collection[str]]
) -> Iterator[Reading]:
    for one in readings:
        if not (isinstance(one, Sample) and one.metric == METRIC and _of(one) in told):
            yield one
    for of, known in told.items():
        if known.witness is None or of not in names:
            continue
        values = {name: known.by.get(name, 0.0) for name in names[of]}
        values[OTHERS] = math.fsum(v for name, v in known.by.items() if name not in values)
        for name, value in values.items():
            labels = {"by": name, **dict(of)}
            yield sample(METRIC, value, source=known.witness.source, labels=labels)


# Set limits of quantification: the least value that allows a ratio (METHOD 15).
#
# Each source has a resolution: events are counted in ones, percentiles come in bins. Below the
# limit a ratio is a ratio of roundings, so such values are compared by difference. At the limit the
# standard deviation that the resolution alone causes is a tenth of the value, the "determination
# limit" of L. A. Currie (Analytical Chemistry 40, 1968, p. 586). No constant is added to lift a
# value above the limit.


_RELATIVE = 0.1

_EVENTS = 1 / _RELATIVE**2
"""Least number of random events: the count N of a trial has a standard deviation of sqrt(N)."""

_OPERATIONS = 1 / (_RELATIVE * math.sqrt(6))
"""Least number of consecutive operations: the count is rounded at both ends of the trial, which
together has a standard deviation of 1 / sqrt(6) operations."""

_BINS = 1 / (_RELATIVE * math.sqrt(12))
"""Least number of bins: a value rounded to the middle of a bin has a standard deviation of
1 / sqrt(12) bins."""

LEAST: Mapping[Counts, float] = {Counts.EVENTS: _EVENTS, Counts.OPERATIONS: _OPERATIONS}
"""Least values by the kind of things that a metric's row counts. Other metrics need only be above
0: quotients of large totals (bandwidth, cycles, operations per CPU-second), and times from a clock
of nanoseconds. Metrics that are often 0 are never compared by ratio (`effects.natural`)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold limits of quantification. `by_block`: in the metric's unit, for blocks whose limit is
    known; `why`: the name of the limit that a value is below."""

    why: str = ""
    by_block: Mapping[int, float] = field(default_factory=dict)

    def undercut(self, values: Mapping[int, float]) -> list[int]:
        """Return the blocks whose value is below its limit."""
        if not self.by_block:
            return []
        known = dict(values.items())
        return [block for block, least in self.by_block.items() if known[block] < least]


def limits(
    metric: str,
    unit: Unit,
    *,
    values: Mapping[int, float],
    seconds: Mapping[int, float],
    bin_widths: Mapping[int, float],
) -> Limits:
    """Return the limits of one metric's values. By block, `seconds`: duration of the measurement;
    `bin_widths`: width of a percentile's bin divided by its middle."""
    if bin_widths:
        widths = dict(bin_widths.items())
        return Limits(
            f"less than {_BINS:.1f} bins of its histogram",
            {
                block: _BINS * widths[block] * abs(value)
                for block, value in values.items()
                if block in widths
            },
        )
    row = metric_of(metric)
    if row is None or row.counts is None:
        return Limits()
    least = LEAST[row.counts]
    why = f"fewer than {math.ceil(least)} {row.counts} in a trial"
    if unit is Unit.COUNT:
        return Limits(why, dict.fromkeys(values, least))
    if unit is not Unit.PER_SECOND:
        return Limits()
    known = {block: seconds.get(block, 0.0) for block in values}
    return Limits(why, {block: least / taken for block, taken in known.items() if taken > 0})


BIN_WIDTH = "bin_width"
"""Resolution of a percentile (METHOD 16); not shown as a metric."""

BATCH_ERROR = "batch_error"
"""Standard error of a trial's rate by batch means (METHOD 21); not shown as a metric."""


class Scenario(NamedTuple):
    """Name a place of comparisons: one workload under one condition."""

    workload: str
    condition: str

    def __str__(self) -> str:
        return place_in_words(self.workload, self.condition, quote="'")

    @property
    def title(self) -> str:
        """Return the title for headings."""
        return place_in_words(self.workload, self.condition)


class Placed(Protocol):
    """Describe an object with a place: a comparison, a level, a check."""

    @property
    def workload(self) -> str: ...
    @property
    def condition(self) -> str: ...


def scenario_of(item: Placed) -> Scenario:
    """Return the place of a comparison, a level, a check, a diagnostic."""
    return Scenario(item.workload, item.condition)


class Cell(NamedTuple):
    tuning: str
    place: Scenario

    def __str__(self) -> str:
        return f"'{self.tuning}' in {self.place}"


@dataclass(frozen=True)  # no slots: cached properties keep repeated results
class Series:
    """Hold the values of one metric in one cell by block; `sample` is one of them, for its names.

    `bin_widths`: of a percentile, by block, the width of its histogram's bin divided by its middle.
    `batch_errors`: of a rate, by the number of batches, each trial's relative standard error.
    `boots`: the guest's boot by block; `seconds`: the measured time by block; both are the cell's.
    `interleaved`: whether other arms share its blocks (METHOD 30)."""

    sample: Sample
    values: Mapping[int, float]
    bin_widths: Mapping[int, float] = field(default_factory=dict)
    boots: Mapping[int, int] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)
    batch_errors: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    interleaved: bool = True

    @property
    def source(self) -> str:
        """Return the number's source: the `source` label if there is one, else the raw file."""
        return self.sample.labels.get("source", self.sample.source)

    @property
    def is_maximum(self) -> bool:
        """Tell whether it is a maximum, which grows with the number of samples and is never
        averaged (METHOD 16).
        """
        return self.sample.metric.endswith("_max")

    @cached_property
    def numbers(self) -> ByBlock:
        """Return the values, in the order of the blocks."""
        return ByBlock.of(self.values)

    @cached_property
    def logs(self) -> ByBlock:
        """Return the values' logarithms if all values are above 0."""
        # A block that is not compared by ratio may hold any value.
        with np.errstate(divide="ignore", invalid="ignore"):
            return ByBlock(self.numbers.blocks, np.log(self.numbers.array))

    @cached_property
    def widths(self) -> ByBlock:
        """Return `bin_widths` of all its blocks, 0 for blocks without one."""
        known, blocks = dict(self.bin_widths.items()), self.numbers.blocks
        return ByBlock(blocks, np.array([known.get(block, 0.0) for block in blocks]))

    @cached_property
    def least(self) -> float:
        return float(self.numbers.array.min())

    @cached_property
    def largest(self) -> float:
        """Return the largest absolute value."""
        return float(np.abs(self.numbers.array).max())

    @cached_property
    def unquantified(self) -> frozenset[int]:
        """Return the blocks whose value is below its limit (METHOD 15)."""
        return frozenset(self.limits.undercut(self.values))

    @property
    def limits(self) -> Limits:
        """Return the least values that allow a ratio (METHOD 15)."""
        return limits(
            self.sample.metric,
            self.sample.unit,
            values=self.values,
            seconds=self.seconds,
            bin_widths=self.bin_widths,
        )

    @property
    def typical(self) -> float:
        """Return the geometric mean over blocks if all values are positive, else the mean; for
        maxima the largest."""
        values: list[float] = self.numbers.array.tolist()
        if self.is_maximum:
            return max(values)
        if min(values) > 0:
            return math.exp(math.fsum(self.logs.array.tolist()) / len(values))
        return math.fsum(values) / len(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Hold a run's series: `series` by cell and metric key. `tried`: blocks in which a cell has a
    trial of any kind. `blocks` and `boots` count those with a valid trial."""

    series: Mapping[Cell, Mapping[str, Series]]
    tried: Mapping[Cell, frozenset[int]]
    missing: tuple[MissingMetric, ...]
    blocks: int
    boots: int
    problems: tuple[str, ...]

    def get(self, tuning: str | None, place: Scenario, key: str) -> Series | None:
        if tuning is None:
            return None
        return self.at(tuning, place).get(key)

    def at(self, tuning: str, place: Scenario) -> Mapping[str, Series]:
        """Return the series of one cell, by metric key."""
        return self.series.get(Cell(tuning, place), {})


def cell_of(assignment: Mapping[str, Any]) -> Cell | None:
    """Return the cell of a trial; None when it names no tuning or no workload.

    Factors beyond tuning, workload and condition are part of the condition, so that cells that
    differ in them are never compared.
    """
    if "tuning" not in assignment or "workload" not in assignment:
        return None
    condition = assignment.get("condition") or ""
    if others := assignment.keys() - {"tuning", "workload", "condition"}:
        levels = [f"{factor}={assignment[factor]}" for factor in sorted(others)]
        condition = ", ".join([*filter(None, [condition]), *levels])
    return _cell(assignment["tuning"], assignment["workload"], condition or "any condition")


@cache  # every trial of a run asks several times for one of few cells
def _cell(tuning: str, workload: str, condition: str) -> Cell:
    return Cell(tuning, Scenario(workload, condition))


def read_cells(run: LoadedRun) -> Cells:
    """Return every usable value of a run, with sentences on unusable ones in `problems`."""
    chosen, tried, nameless = _choose(run.trials)
    chosen = dict(zip(chosen, by_same_names(chosen.values()), strict=True))
    problems = []
    if nameless:
        problems.append(f"{nameless} trials without a tuning or a workload are left out.")
    series, refused = _series(chosen, interleaved=is_interleaved(run))
    problems.extend(f"{text}: {count} values left out." for text, count in refused.items())
    return Cells(
        series=series,
        tried=tried,
        missing=_missing(chosen),
        blocks=len({block for _, block in chosen}),
        boots=len({trial.record.boot for trial in chosen.values()}),
        problems=tuple(problems),
    )


_Chosen = dict[tuple[Cell, int], LoadedTrial]


def _choose(trials: Iterable[LoadedTrial]) -> tuple[_Chosen, dict[Cell, frozenset[int]], int]:
    """Return the last valid attempt by cell and block; the blocks tried by cell; nameless
    trials."""
    valid: _Chosen = {}
    tried: defaultdict[Cell, set[int]] = defaultdict(set)
    nameless = 0
    for trial in sorted(trials, key=lambda t: (t.record.number, t.record.attempt)):
        cell = cell_of(trial.record.cell)
        if cell is None:
            nameless += 1
            continue
        tried[cell].add(trial.record.block)
        if trial.record.status is TrialStatus.DONE:
            valid[cell, trial.record.block] = trial
    return valid, {cell: frozenset(blocks) for cell, blocks in tried.items()}, nameless


@dataclass(slots=True)
class _Gathered:
    """Hold the values of one kind of sample in one cell. `aside`: its role for the metric `key` if
    it is not a metric itself. `refusal`: the reason if it is not usable, apart from values that are
    not finite."""

    kind: Kind
    key: str
    aside: str
    refusal: str | None
    pieces: list[ByBlock] = field(default_factory=list)

    def add(self, blocks: tuple[int, ...], values: Floats, *, whole: bool) -> int:
        """Keep usable values; returns the number of others. `whole`: all of them are finite."""
        if self.refusal is not None:
            return len(values)
        if whole:
            self.pieces.append(ByBlock(blocks, values))
            return 0
        finite = np.isfinite(values)
        kept = tuple(block for block, good in zip(blocks, finite, strict=True) if good)
        if kept:
            self.pieces.append(ByBlock(kept, values[finite]))
        return len(blocks) - len(kept)

    def values(self) -> ByBlock:
        if len(self.pieces) == 1:
            return self.pieces[0]
        merged: dict[int, float] = {}
        for piece in self.pieces:
            merged.update(piece.items())
        return ByBlock.of(merged)


_Slots = dict[tuple[str, str], _Gathered]


def _series(
    chosen: _Chosen, *, interleaved: bool
) -> tuple[dict[Cell, dict[str, Series]], Counter[str]]:
    """Take the values of a cell's trials, which usually have the same kinds, as rows of one
    array."""
    kinds = Kinds()
    first: dict[str, Kind] = {}
    alike: dict[Cell, dict[int, list[tuple[int, Readings]]]] = {}
    boots: defaultdict[Cell, dict[int, int]] = defaultdict(dict)
    seconds: defaultdict[Cell, dict[int, float]] = defaultdict(dict)
    for (cell, block), trial in chosen.items():
        seconds[cell][block] = trial.record.measured_s
        # Native programs do not come from a boot, whatever number they have.
        if trial.record.parsed_with.get("kind") != "native":
            boots[cell][block] = trial.record.boot
        readings = kinds.pack(trial.readings)
        # The tuple of kinds lives as long as `chosen` or `kinds`, so its id is unique.
        group = alike.setdefault(cell, {}).setdefault(id(readings.kinds), [])
        group.append((block, readings))
    refused: Counter[str] = Counter()
    series = {}
    for cell, groups in alike.items():
        slots: _Slots = {}
        for group in groups.values():
            _gather(group, slots, first, cell, refused)
        if by_key := _by_key(slots, boots[cell], seconds[cell], interleaved=interleaved):
            series[cell] = by_key
    return series, refused


def _gather(
    group: list[tuple[int, Readings]],
    slots: _Slots,
    first: dict[str, Kind],
    cell: Cell,
    refused: Counter[str],
) -> None:
    """Add the values of trials with the same kinds to the slots of their cell."""
    group.sort(key=itemgetter(0))
    blocks = tuple(block for block, _ in group)
    columns = np.array([readings.values for _, readings in group]).T.copy()
    are_whole = np.isfinite(columns).all(axis=1).tolist()
    for kind, values, whole in zip(group[0][1].kinds, columns, are_whole, strict=True):
        if isinstance(kind, Unavailable):
            continue
        slot = _slot(kind, slots, first)
        unusable = slot.add(blocks, values, whole=whole)
        if unusable and not slot.aside:
            refused[f"{slot.key} in {cell} {slot.refusal or 'is not a finite number'}"] += unusable


def _slot(kind: Kind, slots: _Slots, first: dict[str, Kind]) -> _Gathered:
    """Return the slot of a kind's values in a cell."""
    aside, key = _beside(kind) or ("", kind.key)
    like = kind if aside else first.setdefault(key, kind)
    if (kind.unit, kind.better) != (like.unit, like.better):
        why = "has a different unit or direction elsewhere"
        return _Gathered(kind, key, "", why)
    if (aside, key) not in slots:
        slots[aside, key] = _Gathered(kind, key, aside, None)
    return slots[aside, key]


def _by_key(
    slots: _Slots, boots: Mapping[int, int], seconds: Mapping[int, float], *, interleaved: bool
) -> dict[str, Series]:
    found = {}
    errors: defaultdict[str, dict[int, ByBlock]] = defaultdict(dict)
    for (aside, key), slot in slots.items():
        if aside.startswith(BATCH_ERROR) and slot.pieces:
            errors[key][int(aside.removeprefix(BATCH_ERROR))] = slot.values()
    for (aside, key), slot in slots.items():
        if not aside and slot.pieces:
            widths = slots.get((BIN_WIDTH, key))
            values = slot.values()
            found[key] = Series(
                slot.kind.sample(float(values.array[0])),
                values,
                widths.values() if widths is not None else {},
                boots,
                seconds,
                errors.get(key, {}),
                interleaved,
            )
    return found


def _beside(kind: Kind) -> tuple[str, str] | None:
    """Return a kind's role for a metric, and that metric's key; None for a kind that is a metric
    itself."""
    if kind.metric not in (BIN_WIDTH, BATCH_ERROR) or "of" not in kind.labels:
        return None
    batches = kind.labels.get("batches", "") if kind.metric == BATCH_ERROR else ""
    if kind.metric == BATCH_ERROR and not (batches.isdecimal() and len(batches) < 4):
        return None
    others = {n: value for n, value in kind.labels.items() if n not in ("of", "batches")}
    return f"{kind.metric}{batches}", sample_key(kind.labels["of"], others)


@dataclass(slots=True)
class _Absence:
    trials: int = 0
    tunings: dict[str, None] = field(default_factory=dict)
    workloads: dict[str, None] = field(default_factory=dict)


def _missing(chosen: _Chosen) -> tuple[MissingMetric, ...]:
    absences: defaultdict[tuple[str, str], _Absence] = defaultdict(_Absence)
    kinds = Kinds()
    known: dict[int, list[Unavailable]] = {}
    for (cell, _), trial in chosen.items():
        readings = kinds.pack(trial.readings)
        absent = known.get(id(readings.kinds))
        if absent is None:
            absent = [one for one in readings.kinds if isinstance(one, Unavailable)]
            known[id(readings.kinds)] = absent
        for one in absent:
            absence = absences[one.metric, one.reason]
            absence.trials += 1
            absence.tunings[cell.tuning] = None
            absence.workloads[cell.place.workload] = None
    return tuple(
        MissingMetric(
            metric=metric,
            reason=reason,
            trials=absence.trials,
            tunings=tuple(absence.tunings),
            workloads=tuple(absence.workloads),
        )
        for (metric, reason), absence in sorted(absences.items())
    )


# Name the parts that a run left out because its host does not support them.


def skipped(plan: PlanRecord, run: RunRecord | None = None) -> dict[str, str]:
    """Return tunings, conditions, and workloads with the side that can't run them ("timerlat
    (native)"), each with its reason. `run`: the run's record, which has the tunings even if the
    plan is lost."""
    tunings = (run.skipped if run else {}) or plan.skipped
    workloads = {
        f"{workload} ({side})": str(why)
        for workload, sides in plan.skipped_workloads.items()
        for side, why in sides.items()
    }
    conditions = plan.skipped_conditions
    return {name: str(why) for name, why in [*tunings.items(), *conditions.items()]} | workloads
