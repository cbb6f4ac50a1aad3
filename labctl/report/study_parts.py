"""Show the tables that a study requests, with published results, in every form of the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.console import RenderableType
from rich.text import Text

from labctl.analysis.caveats.run import Own
from labctl.analysis.studies import FilledTable, TableCell, TableRow, study_tables
from labctl.base.notation import NOT_AVAILABLE, Shown, changes, quantities
from labctl.base.wording import metric_title, place_in_words
from labctl.report.parts import bare_table, small, text
from labctl.report.published_parts import (
    PublishedPart,
    published_change,
    published_part,
    published_table,
)
from labctl.store.records.factor_record import base_of
from labctl.store.run_folder import LoadedRun

_MOST_COLUMNS = 3
"""Metrics beside each other in a terminal; more stand in a table below."""
_SHORT_WHERE, _LONG_WHERE = 14, 30
"""Widths of the column of places in a terminal. In rows of a factor's changes, only the place
differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellText:
    """Show a number; `published`: somebody else's result, "" if there is none."""

    estimate: str
    interval: str
    published: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowText:
    arms: str
    where: str
    cells: tuple[CellText, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableText:
    title: str
    metrics: tuple[str, ...]
    rows: tuple[RowText, ...]
    notes: tuple[str, ...]
    is_of_factor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPart:
    tables: tuple[TableText, ...]
    published: PublishedPart | None


def study_part(run: LoadedRun) -> StudyPart:
    """Return the part for the page, empty if the run's study requests nothing."""
    return StudyPart(tables=tuple(map(_table, study_tables(run))), published=published_part(run))


def study_shown(run: LoadedRun) -> Iterator[RenderableType]:
    """Yield the study's tables for a terminal of 80 columns."""
    for table in map(_table, study_tables(run)):
        for at in range(0, len(table.metrics), _MOST_COLUMNS):
            columns = range(at, min(at + _MOST_COLUMNS, len(table.metrics)))
            shown = bare_table(table.title if at == 0 else f"{table.title} (continued)")
            shown.add_column("arms", min_width=9, max_width=22, overflow="fold")
            width = _LONG_WHERE if table.is_of_factor else _SHORT_WHERE
            shown.add_column("where", min_width=9, max_width=width, overflow="fold")
            for column in columns:
                shown.add_column(table.metrics[column], justify="right", overflow="fold")
            for row in table.rows:
                shown.add_row(
                    text(row.arms),
                    text(row.where),
                    *(text(_lines(row.cells[column])) for column in columns),
                )
            yield from (Text(), shown)
        yield from (small(note) for note in table.notes)
    yield from published_table(run)


def tables_json(run: LoadedRun) -> list[dict[str, object]] | None:
    """Return JSON with the keys of docs/report-schema.md; None if the run's study declares no
    table."""
    return [_json(table) for table in study_tables(run)] or None


def _table(table: FilledTable) -> TableText:
    notes = [
        f"{NOT_AVAILABLE}  {', '.join(map(metric_title, of))}: {why}" for why, of in table.missing
    ]
    if not table.rows:
        notes.insert(0, "Not measured in this run.")
    return TableText(
        title=table.title,
        metrics=tuple(map(metric_title, table.metrics)),
        rows=tuple(map(_row, table.rows)),
        notes=tuple(notes),
        is_of_factor=any(row.change for row in table.rows),
    )


def _row(row: TableRow) -> RowText:
    return RowText(
        arms=_arms(row),
        where=_where(row),
        cells=tuple(map(_cell, row.cells)),
    )


def _arms(row: TableRow) -> str:
    return row.tuning if row.against in (None, row.tuning) else f"{row.tuning} : {row.against}"


def _where(row: TableRow) -> str:
    """Return the place of a row's arms; if a factor distinguishes them, the change of its level."""
    if not row.change:
        return place_in_words(row.place.workload, row.place.condition)
    return place_in_words(f"{base_of(row.place.workload)}: {row.change},", row.place.condition)


def _cell(cell: TableCell) -> CellText:
    own = _own(cell.own)
    published = dict.fromkeys(map(published_change, cell.published))
    return CellText(estimate=own.estimate, interval=own.interval, published=" or ".join(published))


def _own(own: Own) -> Shown:
    if own.number is None:
        return Shown("–" if own.is_no_metric else NOT_AVAILABLE, "")
    if own.unit is None:
        return changes(own.number, own.low, own.high)
    return quantities(own.number, own.low, own.high, own.unit)


def _lines(cell: CellText) -> str:
    published = f"publ. {cell.published}" if cell.published else ""
    return "\n".join(filter(None, (cell.estimate, cell.interval, published)))


def _json(table: FilledTable) -> dict[str, object]:
    return {
        "title": table.title,
        "rows": [
            {
                "tuning": row.tuning,
                "against": row.against,
                "workload": row.place.workload,
                "condition": row.place.condition,
                "against_workload": None if row.other is None else row.other.workload,
                "against_condition": None if row.other is None else row.other.condition,
                "cells": [
                    _cell_json(metric, cell)
                    for metric, cell in zip(table.metrics, row.cells, strict=True)
                ],
            }
            for row in table.rows
        ],
        "missing": [{"why": why, "metrics": list(metrics)} for why, metrics in table.missing],
    }


def _cell_json(metric: str, cell: TableCell) -> dict[str, object]:
    own = asdict(cell.own)
    del own["is_no_metric"]
    return {
        "metric": metric,
        **own,
        "unit": None if cell.own.unit is None else str(cell.own.unit),
        "why": cell.own.why or None,
        "published": [
            {"ratio": item.ratio, "direction": item.direction} for item in cell.published
        ],
    }
