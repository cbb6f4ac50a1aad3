"""Define the schema of samples that CSV and Parquet share: a row for each reading.

docs/report-schema.md describes the columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labctl.base.wording import printable
from labctl.store.records.factor_record import Place
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.samples import Kind, Kinds, Readings, Unavailable

SCHEMA = 2
"""Raised when a column is removed, moves or changes its meaning; a new column at the end does not
raise it. Version 1 had no column `schema`."""

OF_TRIAL = (
    *("run", "study", "trial", "attempt", "status", "block", "boot", "position"),
    *("tuning", "workload", "condition"),
)
OF_KIND = ("metric", "labels", "unit", "better", "unavailable")
COLUMNS = (
    *OF_TRIAL,
    *("metric", "labels", "value", "unit", "better", "unavailable"),
    "schema",
)
WHOLE_NUMBERS = frozenset({"trial", "attempt", "block", "boot", "position", "schema"})


def factors_of(run: LoadedRun) -> tuple[str, ...]:
    """Return the run's factors. Each is a column after all others."""
    factors = run.plan.factorial.factors if run.plan.factorial is not None else {}
    return tuple(name for name in factors if name not in COLUMNS)


def levels_of(run: LoadedRun) -> Mapping[Place, Mapping[str, str]]:
    """Return the levels of each cell by factor."""
    return run.plan.factorial.levels_by_place() if run.plan.factorial is not None else {}


def packed(run: LoadedRun) -> Iterator[tuple[LoadedTrial, Readings]]:
    """Yield every attempt with its readings, including invalid ones (see `status`)."""
    kinds = Kinds()
    for trial in run.trials:
        yield trial, kinds.pack(trial.readings)


def of_trial(run: LoadedRun, trial: LoadedTrial) -> tuple[Any, ...]:
    """Return the values of `OF_TRIAL`; None where a trial has no such factor."""
    record = trial.record
    return (
        run.name,
        run.run.study,
        record.number,
        record.attempt,
        str(record.status),
        record.block,
        record.boot,
        record.position,
        *(record.cell.get(factor) for factor in ("tuning", "workload", "condition")),
    )


def of_factors(
    trial: LoadedTrial, factors: Sequence[str], levels: Mapping[Place, Mapping[str, str]]
) -> tuple[str | None, ...]:
    """Return a trial's level of each factor; None for factors that do not affect it."""
    cell = trial.record.cell
    place = Place(cell.get("tuning", ""), cell.get("workload", ""), cell.get("condition", ""))
    here = levels.get(place, {})
    return tuple(here.get(factor) for factor in factors)


def of_kind(kind: Kind | Unavailable) -> tuple[str | None, ...]:
    """Return the values of `OF_KIND`. An unavailable metric has the reason, and no unit."""
    if isinstance(kind, Unavailable):
        return kind.metric, "", None, None, kind.reason
    labels = ";".join(f"{name}={value}" for name, value in sorted(kind.labels.items()))
    return kind.metric, labels, str(kind.unit), str(kind.better), None


# Write every sample of a run as CSV (RFC 4180), one row each, for spreadsheets and data frames.


def samples_csv(run: LoadedRun) -> Iterator[str]:
    """Yield the header, then the rows attempt by attempt. An unavailable metric has no value, and
    the reason in `unavailable`."""
    text = io.StringIO()
    writer = csv.writer(text)
    factors, levels = factors_of(run), levels_of(run)
    writer.writerow([*COLUMNS, *factors])
    known: dict[Kind | Unavailable, list[object]] = {}
    for trial, readings in packed(run):
        about = _harmless(of_trial(run, trial))
        at = _harmless(of_factors(trial, factors, levels))
        for kind, value in zip(readings.kinds, readings.values, strict=True):
            if (named := known.get(kind)) is None:
                named = known[kind] = _harmless(of_kind(kind))
            metric, labels, *rest = named
            # repr: the shortest text that is this float again.
            shown = "" if isinstance(kind, Unavailable) else repr(value)
            writer.writerow([*about, metric, labels, shown, *rest, SCHEMA, *at])
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def _harmless(values: tuple[object, ...]) -> list[object]:
    """Return the values with harmless texts. A run folder's texts may come from anywhere: a
    spreadsheet computes those that begin like a formula (OWASP, "CSV injection"), and a terminal
    obeys control characters."""
    return [_as_text(value) if isinstance(value, str) else value for value in values]


def _as_text(value: str) -> str:
    shown = printable(value)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@", "\t")) else shown
