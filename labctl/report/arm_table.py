"""Build a report's first table: each arm's primary metric, p95 latency, IPC and VM exits.

Terminal, page and JSON show the same records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labctl.analysis.answer.view import MetricColumn, View, primary_column
from labctl.analysis.answer.words import listed, shown
from labctl.analysis.effects.cells import Scenario
from labctl.analysis.model import Comparison, EffectKind, Level, Role
from labctl.analysis.verdicts.table import VERDICTS, Verdict
from labctl.base.metrics.table import beside_primary
from labctl.base.notation import TIMES, quantity, significant
from labctl.base.units import Better
from labctl.store.samples import base_name

_P95 = "latency_p95"
_OPEN_P95 = "open_latency_p95"
_IPC = ("ipc",)
_EXITS = next(names for names in beside_primary() if "exits" in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCell:
    """Hold an arm's number.

    `against`: its comparison with baseline; for a primary metric with the interval that decides,
    else with a 95 % interval. `ratio`: a native arm's level divided by baseline's, without an
    interval. `note`: number of the note that explains a missing number.
    """

    level: Level | None
    against: Comparison | None = None
    ratio: float | None = None
    note: int | None = None

    @property
    def value(self) -> str:
        """Return the number with its unit, "" without one."""
        return "" if self.level is None else quantity(self.level.typical, self.level.unit)

    @property
    def change(self) -> str:
        """Return the change against baseline, "" without one."""
        if self.against is not None:
            return shown(self.against).estimate
        return "" if self.ratio is None else f"{TIMES}{significant(self.ratio, 2)}"

    @property
    def interval(self) -> str:
        """Return the change's interval: "−2.5 to +12 %"."""
        return "" if self.against is None else shown(self.against).interval

    @property
    def verdict(self) -> Verdict | None:
        return None if self.against is None else self.against.verdict

    @property
    def leans(self) -> str:
        """Return "better" or "worse" if the interval excludes no change, else "". For a metric
        without a verdict this is a hint, not a claim."""
        item = self.against
        if item is None or item.low is None or item.high is None or item.better is Better.NEITHER:
            return ""
        same = 1.0 if item.kind is EffectKind.RATIO else 0.0
        if item.low <= same <= item.high:
            return ""
        return "better" if (item.low > same) is (item.better is Better.HIGHER) else "worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """Hold an arm. `role`: "native", "baseline", "tuning", or "check" of the A/A control and the
    known-loss arm."""

    arm: str
    role: str
    cells: tuple[ArmCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTable:
    """Hold the table of one workload under one condition. `titles`: of the columns, the primary
    metric first. `notes`: reasons for missing numbers, numbered over all tables."""

    place: Scenario
    titles: tuple[str, ...]
    rows: tuple[ArmRow, ...]
    notes: tuple[tuple[int, str], ...]

    @property
    def checks(self) -> list[ArmRow]:
        return [row for row in self.rows if row.role == "check"]

    @property
    def arms(self) -> list[ArmRow]:
        return [row for row in self.rows if row.role != "check"]


def arm_tables(view: View) -> list[ArmTable]:
    """Return a table for each place that has a primary metric."""
    notes: dict[str, int] = {}
    found = (_table(view, place, notes) for place in view.places)
    return [table for table in found if table is not None]


def _table(view: View, place: Scenario, notes: dict[str, int]) -> ArmTable | None:
    columns = _columns(view, place)
    if not columns:
        return None
    rows = tuple(
        ArmRow(
            arm=arm,
            role=_role(view, arm),
            cells=tuple(_cell(view, arm, place, column, notes) for column in columns),
        )
        for arm in view.tunings
    )
    return ArmTable(
        place=place,
        titles=tuple(view.column_titles(place, columns)),
        rows=tuple(row for row in rows if any(cell.level for cell in row.cells)),
        notes=tuple((number, note) for note, number in notes.items() if number in _used(rows)),
    )


def _used(rows: Sequence[ArmRow]) -> set[int | None]:
    return {cell.note for row in rows for cell in row.cells}


def _columns(view: View, place: Scenario) -> list[MetricColumn]:
    primary = view.primary(place.workload)
    if primary is None:
        return []
    found = [MetricColumn(view.title(place.workload, primary), primary_column(primary).names)]
    if view.run.run.imported:
        return view.columns(place.workload)[:4]
    p95 = _OPEN_P95 if _has(view, place, _OPEN_P95) else _P95
    if base_name(primary) != p95:
        found.append(MetricColumn(view.title(place.workload, p95), (p95,)))
    if base_name(primary) not in _IPC:
        found.append(MetricColumn("IPC", _IPC))
    if base_name(primary) not in _EXITS:
        per_second = _has(view, place, "exits") and not _has(view, place, "exits_per_op")
        found.append(MetricColumn("exits/s" if per_second else "exits/op", _EXITS))
    return found


def _has(view: View, place: Scenario, metric: str) -> bool:
    guests = (level for level in view.levels(place) if not view.is_native(level.tuning))
    return any(level.metric == metric for level in guests)


def _role(view: View, arm: str) -> str:
    if view.is_native(arm):
        return "native"
    if arm == view.baseline:
        return "baseline"
    return "tuning" if arm in view.candidates else "check"


def _cell(
    view: View, arm: str, place: Scenario, column: MetricColumn, notes: dict[str, int]
) -> ArmCell:
    level = view.level(arm, place, column)
    if level is None:
        reason = view.reason(arm, place, column)
        return ArmCell(level=None, note=notes.setdefault(reason, len(notes) + 1))
    if arm == view.baseline:
        return ArmCell(level=level)
    if not view.is_native(arm):
        return ArmCell(level=level, against=view.comparison(arm, view.baseline, place, column))
    base = view.level(view.baseline, place, column)
    alike = (
        base is not None
        and base.typical > 0
        and (base.unit, base.source)
        == (
            level.unit,
            level.source,
        )
    )
    ratio = level.typical / base.typical if alike and base and level.typical > 0 else None
    return ArmCell(level=level, ratio=ratio)


_IN_WORDS = {
    Verdict.SUSPENDED: "no verdict because of the A/A control",
    Verdict.DEMONSTRATION: "no verdict",
    Verdict.BEFORE_LOOK: "no verdict yet",
}
"""Verdicts whose name does not say what they mean."""


def explanation(tables: Sequence[ArmTable]) -> str:
    """Return how to read the tables, with the symbols that they have."""
    primaries = [
        cell.against
        for table in tables
        for row in table.arms
        for cell in row.cells
        if cell.against is not None and cell.against.role is Role.PRIMARY
    ]
    family = " simultaneous" if primaries else " shown"
    found = {item.verdict for item in primaries}
    symbols = [
        f", {row.symbol} {_IN_WORDS.get(verdict, verdict)}"
        for verdict, row in VERDICTS.items()
        if verdict in found
    ]
    by_holm = [
        f"{row.arm} in {table.place}"
        for table in tables
        for row in table.arms
        if any(cell.against is not None and cell.against.by_holm for cell in row.cells)
    ]
    holm = f" Holm's procedure, not the interval, decides {listed(by_holm, 4)}." if by_holm else ""
    return (
        "Change against baseline (95 % CI). The first metric decides: its interval is"
        f"{family}{''.join(symbols)}.{holm} Other metrics have no verdict. "
        f"Native: {TIMES} baseline."
    )


def host_line(view: View) -> str:
    """Return the host's facts in a line: CPU, cores, kernel, QEMU, libvirt, accelerator, date."""
    host, record = view.run.run.host, view.run.run
    known = (
        host.get("cpu_model"),
        f"{host['cpus']} CPUs" if host.get("cpus") else None,
        f"kernel {host['kernel_release']}" if host.get("kernel_release") else None,
        f"QEMU {host['qemu']}" if host.get("qemu") else None,
        f"libvirt {host['libvirt']}" if host.get("libvirt") else None,
        record.accelerator,
        (record.started_at or "")[:10] or None,
    )
    return ", ".join(str(fact) for fact in known if fact)


def tables_as_json(tables: Sequence[ArmTable]) -> list[dict[str, object]]:
    """Return the tables as plain JSON values (docs/report-schema.md)."""
    return [
        {
            "workload": table.place.workload,
            "condition": table.place.condition,
            "columns": list(table.titles),
            "arms": [
                {"arm": row.arm, "role": row.role, "cells": list(map(_cell_json, row.cells))}
                for row in table.rows
            ],
            "notes": {str(number): note for number, note in table.notes},
        }
        for table in tables
    ]


def _cell_json(cell: ArmCell) -> dict[str, object]:
    level, against = cell.level, cell.against
    return {
        "metric": None if level is None else level.metric,
        "value": None if level is None else level.typical,
        "unit": None if level is None else str(level.unit),
        "kind": None if against is None else str(against.kind),
        "estimate": cell.ratio if against is None else against.estimate,
        "low": None if against is None else against.low,
        "high": None if against is None else against.high,
        "confidence": None if against is None else against.confidence,
        "verdict": None if cell.verdict is None else str(cell.verdict),
        "note": cell.note,
    }
