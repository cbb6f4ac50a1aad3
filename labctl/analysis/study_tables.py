"""Fill in the tables that a study declares of its report, one for each finding that it is after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from labctl.analysis.added import confirmatory
from labctl.analysis.cells import Scenario, cell_of
from labctl.analysis.own_numbers import Measured, Own
from labctl.store.records.factor_record import Factorial, base_of
from labctl.store.records.plan_record import PlanRecord, PublishedResult, ReportRow, ReportTable
from labctl.store.run_folder import LoadedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """Hold this run's number, and what others published of the same."""

    own: Own
    published: tuple[PublishedResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """Hold what the run found of a row's arms in one place, by the table's metrics. `other`: the
    place of what it is compared with, where a factor tells the two apart, which `change` words."""

    tuning: str
    against: str | None
    place: Scenario
    cells: tuple[TableCell, ...]
    other: Scenario | None = None
    change: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledTable:
    """Hold a table of which only metrics and rows are left that the run has something of.
    `missing`: what is said of the others, by reason."""

    title: str
    metrics: tuple[str, ...]
    rows: tuple[TableRow, ...]
    missing: tuple[tuple[str, tuple[str, ...]], ...]


def study_tables(run: LoadedRun) -> tuple[FilledTable, ...]:
    """Return the tables that a run's plan declares, in its order.

    Ratios and intervals are those that stand beside published results; the blocks are those that
    decide.
    """
    run = confirmatory(run)
    if not run.plan.tables:
        return ()
    measured = Measured.of(run)
    return tuple(_filled(measured, table) for table in run.plan.tables)


def _filled(measured: Measured, table: ReportTable) -> FilledTable:
    every = [
        _row(measured, table, pair)
        for row in table.rows
        for pair in _pairs(measured, table, row)
        if table.workloads is None or _is_of(pair.place.workload, table.workloads)
    ]
    rows = [row for row in every if any(cell.own.number is not None for cell in row.cells)]
    kept = [
        number
        for number in range(len(table.metrics))
        if any(row.cells[number].own.number is not None for row in rows)
    ]
    return FilledTable(
        title=table.title,
        metrics=tuple(table.metrics[number] for number in kept),
        rows=tuple(replace(row, cells=tuple(row.cells[number] for number in kept)) for row in rows),
        missing=tuple(_missing(table.metrics, every)),
    )


def _is_of(workload: str, names: Sequence[str]) -> bool:
    return bool({workload, base_of(workload)} & {*names})


@dataclass(frozen=True, slots=True)
class _Pair:
    """Hold what a row compares: an arm in a place, and another arm or the same in another place."""

    tuning: str
    place: Scenario
    against: str | None = None
    other: Scenario | None = None
    change: str = ""


def _pairs(measured: Measured, table: ReportTable, row: ReportRow) -> Iterator[_Pair]:
    if table.factor is None:
        for place in measured.design.places:
            yield _Pair(row.tuning, place, row.against)
    elif (factorial := measured.run.plan.factorial) is not None:
        yield from _by_factor(factorial, table.factor, row.tuning)


def _by_factor(factorial: Factorial, factor: str, arm: str) -> Iterator[_Pair]:
    """Yield each cell of an arm that is at another level than the factor's first, with the cell at
    the first whose other levels are the same."""
    planned = factorial.factors.get(factor)
    if planned is None or not planned.levels:
        return
    first, cells = planned.levels[0], [cell for cell in factorial.cells if cell.arm == arm]
    at = {
        (c.group, c.under, frozenset(c.levels.items())): cell_of(c.place._asdict()) for c in cells
    }
    for cell in cells:
        level = cell.levels.get(factor, first)
        before = frozenset({**cell.levels, factor: first}.items())
        ours, theirs = cell_of(cell.place._asdict()), at.get((cell.group, cell.under, before))
        if level != first and ours is not None and theirs is not None:
            rest = [f"{name} {of}" for name, of in cell.levels.items() if name != factor]
            change = ", ".join([*rest, f"{factor} {first} → {level}"])
            yield _Pair(ours.tuning, ours.place, theirs.tuning, theirs.place, change)


def _row(measured: Measured, table: ReportTable, pair: _Pair) -> TableRow:
    return TableRow(
        tuning=pair.tuning,
        against=pair.against,
        place=pair.place,
        cells=tuple(_cell(measured, pair, metric) for metric in table.metrics),
        other=pair.other,
        change=pair.change,
    )


def _cell(measured: Measured, pair: _Pair, metric: str) -> TableCell:
    if pair.against is None:
        return TableCell(own=measured.value(metric, pair.tuning, pair.place))
    other = pair.other or pair.place
    own = measured.ratio(metric, pair.tuning, pair.place, pair.against, other)
    return TableCell(own=own, published=tuple(_published(measured.run.plan, pair, metric)))


def _published(plan: PlanRecord, pair: _Pair, metric: str) -> Iterator[PublishedResult]:
    other = pair.other.workload if pair.other is not None else None
    for source in plan.published:
        for item in source.results:
            if (
                (item.tuning, item.against, item.metric) == (pair.tuning, pair.against, metric)
                and item.workload in (None, pair.place.workload)
                and item.condition in (None, pair.place.condition)
                and item.against_workload == other
            ):
                yield item


def _missing(
    metrics: Sequence[str], rows: Sequence[TableRow]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each reason why a number isn't there, with the metrics that it holds for, where a
    reason is known: a workload that has no such metric needs none."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        for metric, cell in zip(metrics, row.cells, strict=True):
            if cell.own.why and not cell.own.is_no_metric:
                found.setdefault(cell.own.why, {})[metric] = None
    for why, names in found.items():
        yield why, tuple(names)
