"""Reduce a run's trials to one value per block of each metric in each cell.

A trial that is invalid gives no value; of several valid attempts the last one counts. Nothing is
imputed: a block without a value has none.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np

from labctl.analysis.byblock import ByBlock, Floats
from labctl.analysis.model import MissingMetric
from labctl.analysis.pairing import is_interleaved
from labctl.analysis.preemptors import by_same_names
from labctl.analysis.quantification import Limits, limits
from labctl.base.wording import place_in_words
from labctl.store.readings import Kind, Kinds, Readings
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.samples import Sample, Unavailable, sample_key
from labctl.store.trial import TrialStatus

BIN_WIDTH = "bin_width"
"""No metric of its own: how coarsely a percentile was read (METHOD 16)."""

BATCH_ERROR = "batch_error"
"""Nor this one: how sure each trial is of a rate, by batch means (METHOD 21)."""


class Scenario(NamedTuple):
    """Name where arms are compared: one workload under one condition."""

    workload: str
    condition: str

    def __str__(self) -> str:
        return place_in_words(self.workload, self.condition, quote="'")

    @property
    def title(self) -> str:
        """Return the title for headings."""
        return place_in_words(self.workload, self.condition)


class Placed(Protocol):
    """Name where something was found: a comparison, a level, a check."""

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


@dataclass(frozen=True)  # no slots: what is asked of a series again and again is kept
class Series:
    """Hold the values of one metric in one cell by block; `sample` is one of them, for its names.

    `bin_widths`: of a percentile, the width of its histogram's bin over its middle, by block.
    `batch_errors`: of a rate, by the number of batches, each trial's standard error over its value.
    `boots`: by block the boot that a guest came from, and `seconds` what was measured; both are
    the cell's. `interleaved`: whether its blocks are those of other arms too (METHOD 30)."""

    sample: Sample
    values: Mapping[int, float]
    bin_widths: Mapping[int, float] = field(default_factory=dict)
    boots: Mapping[int, int] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)
    batch_errors: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    interleaved: bool = True

    @property
    def source(self) -> str:
        """Return how the number came about: the `source` label where there is one, else the raw
        file."""
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
        """Return their logarithms, where all of them are above 0."""
        # A block that no ratio is taken of may hold anything.
        with np.errstate(divide="ignore", invalid="ignore"):
            return ByBlock(self.numbers.blocks, np.log(self.numbers.array))

    @cached_property
    def widths(self) -> ByBlock:
        """Return `bin_widths` of all its blocks, 0 where there is none."""
        known, blocks = dict(self.bin_widths.items()), self.numbers.blocks
        return ByBlock(blocks, np.array([known.get(block, 0.0) for block in blocks]))

    @cached_property
    def least(self) -> float:
        return float(self.numbers.array.min())

    @cached_property
    def largest(self) -> float:
        """Return the largest size, whichever the sign."""
        return float(np.abs(self.numbers.array).max())

    @cached_property
    def unquantified(self) -> frozenset[int]:
        """Return the blocks whose value is below its limit (METHOD 15)."""
        return frozenset(self.limits.undercut(self.values))

    @property
    def limits(self) -> Limits:
        """Return the least values of it that a ratio may be taken of (METHOD 15)."""
        return limits(
            self.sample.metric,
            self.sample.unit,
            values=self.values,
            seconds=self.seconds,
            bin_widths=self.bin_widths,
        )

    @property
    def typical(self) -> float:
        """Return the geometric mean over blocks where all values are positive, else the mean; of a
        maximum the largest."""
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
        """Return what was measured in one cell, by metric key."""
        return self.series.get(Cell(tuning, place), {})


def cell_of(assignment: Mapping[str, Any]) -> Cell | None:
    """Return the cell of a trial; None when it names no tuning or no workload.

    Factors beyond tuning, workload and condition are part of the condition, so that what differs
    in them is never compared.
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
    """Return every usable value of a run, and what isn't usable as sentences in `problems`."""
    chosen, tried, nameless = _choose(run.trials)
    chosen = dict(zip(chosen, by_same_names(chosen.values()), strict=True))
    problems = []
    if nameless:
        problems.append(f"{nameless} trials name no tuning or no workload and are left out.")
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
    """Hold what one kind of sample gave in one cell. `aside`: what it tells of the metric `key`
    where it is none itself. `refusal`: why it isn't usable, beside values that are no finite
    number."""

    kind: Kind
    key: str
    aside: str
    refusal: str | None
    pieces: list[ByBlock] = field(default_factory=list)

    def add(self, blocks: tuple[int, ...], values: Floats, *, whole: bool) -> int:
        """Keep what is usable; returns how many values are not. `whole`: all of them are finite."""
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
    """Trials of a cell are mostly alike, so their values are taken as the rows of one array."""
    kinds = Kinds()
    first: dict[str, Kind] = {}
    alike: dict[Cell, dict[int, list[tuple[int, Readings]]]] = {}
    boots: defaultdict[Cell, dict[int, int]] = defaultdict(dict)
    seconds: defaultdict[Cell, dict[int, float]] = defaultdict(dict)
    for (cell, block), trial in chosen.items():
        seconds[cell][block] = trial.record.measured_s
        # The host's own programs come from no boot of a run, whatever number they bear.
        if trial.record.parsed_with.get("kind") != "native":
            boots[cell][block] = trial.record.boot
        readings = kinds.pack(trial.readings)
        # Their tuple of kinds lives as long as `chosen` or `kinds`, so its id is its own.
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
    """Add the values of trials alike to the slots of their cell."""
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
            refused[f"{slot.key} in {cell} {slot.refusal or 'is no finite number'}"] += unusable


def _slot(kind: Kind, slots: _Slots, first: dict[str, Kind]) -> _Gathered:
    """Return where the values of a kind go in a cell."""
    aside, key = _beside(kind) or ("", kind.key)
    like = kind if aside else first.setdefault(key, kind)
    if (kind.unit, kind.better) != (like.unit, like.better):
        why = "has another unit or direction than elsewhere"
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
    """Return what it tells of a metric, and of which one by its key; None of what is a metric
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
