"""Fill in a study's own tables, and set published figures beside the run's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from labctl.analysis.caveats.run import Measured, Own
from labctl.analysis.effects.cells import Scenario, cell_of
from labctl.analysis.verdicts.checks import control_failed
from labctl.analysis.verdicts.decide import confirmatory
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.store.records.factor_record import Factorial, base_of
from labctl.store.records.plan_record import PlanRecord, PublishedResult, ReportRow, ReportTable
from labctl.store.run_folder import LoadedRun

# Compare published results with this run's: ratio and direction, never absolute values.


class Agreement(StrEnum):
    SAME = "same direction"
    OTHER = "other direction"
    NOT_SHOWN = "not shown"
    """The interval includes no change, or the run may not judge: `why` has the reason."""
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Pair a published result with this run's number. `published` and `ratio`: tuning / against
    (`published` None: only the direction is known). `low`, `high`: its 95 % interval; of higher
    confidence if a rule may end the run (METHOD 22). `source`: the number of the source in
    `Published.sources`. `why`: the reason if they can't be compared."""

    tuning: str
    against: str
    workload: str
    against_workload: str | None
    """Cell of factors with which `workload` is compared; None if it is the same."""
    condition: str
    metric: str
    published: float | None
    direction: str
    ratio: float | None
    low: float | None
    high: float | None
    blocks: int
    agreement: Agreement
    why: str
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    sources: tuple[str, ...]
    results: tuple[Repeated, ...]


def published(run: LoadedRun) -> Published:
    """Return the published results in a run's plan, each beside the run's own ratio.

    Against baseline the reference is the mean of baseline and control, as everywhere (METHOD 17).
    A metric with some of its labels is the sum by block of the series that have them, unless a
    series has exactly these. The run has a direction if the interval of at least ten blocks
    excludes no change. As with a verdict, only the deciding blocks count, and the control may
    forbid it (METHOD 18, 22).
    """
    run = confirmatory(run)
    sources = run.plan.published
    if not sources:
        return Published(sources=(), results=())
    measured = Measured.of(run)
    results = (
        _repeated(measured, item, place, number)
        for place in measured.design.places
        for number, source in enumerate(sources)
        for item in source.results
        if item.workload in (None, place.workload) and item.condition in (None, place.condition)
    )
    return Published(sources=tuple(source.source for source in sources), results=tuple(results))


def _repeated(measured: Measured, item: PublishedResult, place: Scenario, source: int) -> Repeated:
    other = Scenario(item.against_workload or place.workload, place.condition)
    found = measured.ratio(item.metric, item.tuning, place, item.against, other)
    agreement, why = Agreement.NOT_MEASURED, found.why
    if found.number is not None:
        if why := _forbidden(measured, place, item.against):
            agreement = Agreement.NOT_SHOWN
        else:
            agreement, why = _agreement(found, item.direction)
    return Repeated(
        tuning=item.tuning,
        against=item.against,
        workload=place.workload,
        against_workload=item.against_workload,
        condition=place.condition,
        metric=item.metric,
        published=item.ratio,
        direction=item.direction,
        ratio=found.number,
        low=found.low,
        high=found.high,
        blocks=found.blocks,
        agreement=agreement,
        why=why,
        source=source,
    )


def _forbidden(measured: Measured, place: Scenario, against: str) -> str:
    """Return why this run may not claim a direction; "" if it may."""
    design = measured.design
    if design.before_look:
        return "before the first look that the plan declares"
    return control_failed(design, measured.cells, place) if against == design.baseline else ""


def _agreement(found: Own, direction: str) -> tuple[Agreement, str]:
    blocks, low, high = found.blocks, found.low, found.high
    if blocks < FEWEST_BLOCKS:
        return Agreement.NOT_SHOWN, f"{blocks} of the {FEWEST_BLOCKS} blocks that it needs"
    if low is None or high is None:
        return Agreement.NOT_SHOWN, "the same ratio in every block, too coarse to judge by"
    if low <= 1 <= high:
        return Agreement.NOT_SHOWN, "the interval includes no change"
    same = (low > 1) is (direction == "higher")
    return (Agreement.SAME if same else Agreement.OTHER), ""


# Fill in the tables that a study declares for its report, one for each finding.


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """Hold this run's number, and the published one."""

    own: Own
    published: tuple[PublishedResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """Hold the run's results on a row's arms in one place, by the table's metrics. `other`: the
    place of the comparison, if a factor distinguishes the two; `change` names that in words."""

    tuning: str
    against: str | None
    place: Scenario
    cells: tuple[TableCell, ...]
    other: Scenario | None = None
    change: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledTable:
    """Hold a table with the metrics and rows of which the run has values. `missing`: the others, by
    reason."""

    title: str
    metrics: tuple[str, ...]
    rows: tuple[TableRow, ...]
    missing: tuple[tuple[str, tuple[str, ...]], ...]


def study_tables(run: LoadedRun) -> tuple[FilledTable, ...]:
    """Return the tables that a run's plan declares, in its order.

    Ratios and intervals are those beside published results; only the deciding blocks count.
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
    """Hold the sides of a row: an arm in a place, and another arm or the same in another place."""

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
    """Yield each cell of an arm at another level than the factor's first, with the cell at the
    first level whose other levels are equal."""
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
    """Yield each known reason for missing numbers, with its metrics: a workload that does not have
    the metric needs no reason."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        for metric, cell in zip(metrics, row.cells, strict=True):
            if cell.own.why and not cell.own.is_no_metric:
                found.setdefault(cell.own.why, {})[metric] = None
    for why, names in found.items():
        yield why, tuple(names)
