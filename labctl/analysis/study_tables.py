"""Fill in the tables that a study declares of its report, one for each finding that it is after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labctl.analysis.added import confirmatory
from labctl.analysis.cells import Scenario
from labctl.analysis.own_numbers import Measured, Own
from labctl.store.records.factor_record import base_of
from labctl.store.records.plan_record import PlanRecord, PublishedResult, ReportRow, ReportTable
from labctl.store.run_folder import LoadedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """Hold this run's number, and what others published of the same."""

    own: Own
    published: tuple[PublishedResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """Hold what the run found of a row's arms in one place, by the table's metrics."""

    tuning: str
    against: str | None
    place: Scenario
    cells: tuple[TableCell, ...]


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
        TableRow(
            tuning=row.tuning,
            against=row.against,
            place=place,
            cells=tuple(_cell(measured, row, place, metric) for metric in table.metrics),
        )
        for row in table.rows
        for place in measured.design.places
        if table.workloads is None or {place.workload, base_of(place.workload)} & {*table.workloads}
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
        rows=tuple(
            TableRow(
                tuning=row.tuning,
                against=row.against,
                place=row.place,
                cells=tuple(row.cells[number] for number in kept),
            )
            for row in rows
        ),
        missing=tuple(_missing(table.metrics, every)),
    )


def _cell(measured: Measured, row: ReportRow, place: Scenario, metric: str) -> TableCell:
    if row.against is None:
        return TableCell(own=measured.value(metric, row.tuning, place))
    own = measured.ratio(metric, row.tuning, place, row.against, place)
    return TableCell(own=own, published=tuple(_published(measured.run.plan, row, place, metric)))


def _published(
    plan: PlanRecord, row: ReportRow, place: Scenario, metric: str
) -> Iterator[PublishedResult]:
    for source in plan.published:
        for item in source.results:
            if (
                (item.tuning, item.against, item.metric) == (row.tuning, row.against, metric)
                and item.workload in (None, place.workload)
                and item.condition in (None, place.condition)
                and item.against_workload is None
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
