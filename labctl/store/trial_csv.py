"""Read trials from a CSV file: labctl's own export, or raw trials from elsewhere (docs/import.md).

Nothing is guessed: values that cannot be read unchanged are refused with their line and column.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from labctl.base.errors import UsageError, nearest
from labctl.base.units import Better, Unit
from labctl.store.records.factor_record import Place, base_of, cell_name
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialRecord, TrialStatus

NEEDED = ("tuning", "workload", "block", "metric", "value", "unit", "better")
OPTIONAL = (
    *("condition", "labels", "unavailable"),
    *("run", "study", "trial", "attempt", "status", "boot", "position", "schema"),
)

SCHEMA = 2
"""Newest readable version of labctl's own export (report/export/samples.py)."""

COPY = "imported.csv"
"""Name of the file in the run's folder: every sample's source."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WHOLE = re.compile(r"\d{1,9}")
_NO_LEVEL = re.compile(r"[\[\],=]")
_LONGEST_NAME = 150
_NO_NUMBERS = ("nan", "inf", "infinity")

_OTHER_UNITS = {
    "%": "Divide by 100, and give the unit '1'.",
    "percent": "Divide by 100, and give the unit '1'.",
    "ms": "Divide by 1000, and give the unit 's'.",
    "ns": "Divide by 1000, and give the unit 'us'.",
    "µs": "Give the unit 'us'.",
    "ops/s": "Give the unit '1/s'.",
    "seconds": "Give the unit 's'.",
}

_KNOWN_UNITS = frozenset(unit.lower() for unit in Unit)

Choice = TypeVar("Choice", Unit, Better, TrialStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvTrials:
    """Hold the content of a file. `columns`: those that were read; `unread`: the others; `levels`:
    of each cell, by factor."""

    trials: tuple[tuple[TrialRecord, tuple[Reading, ...]], ...]
    levels: Mapping[Place, Mapping[str, str]] = field(default_factory=dict)
    study: str | None
    columns: frozenset[str]
    unread: tuple[str, ...]
    rows: int


def read_trials(data: bytes, name: str, factors: Sequence[str] = ()) -> CsvTrials:
    """Return the trials of a CSV file (RFC 4180, UTF-8, with or without a byte order mark).

    `name` is the file's name in errors. Rows of one tuning, workload, condition and block, or of
    one number in the column 'trial', are one trial. `factors`: columns whose values are levels,
    which become a part of the workload's name. Raises UsageError naming line and column.
    """
    lines = _Lines(_text(data, name), name)
    header, unread = _header(lines, factors)
    levels: dict[Place, dict[str, str]] = {}
    gathered: dict[tuple[int, int], _Trial] = {}
    numbers: dict[tuple[object, ...], int] = {}
    like: dict[str, tuple[Sample, int]] = {}
    study: str | None = None
    rows = 0
    for line, fields in lines:
        if len(fields) != len(header):
            lines.refuse(
                line,
                None,
                f"expected {len(header)} fields, got {len(fields)}",
                "Put text with a comma in double quotes.",
            )
        row = _Row(lines, line, dict(zip(header, fields, strict=True)))
        rows += 1
        if row.whole("schema", SCHEMA) > SCHEMA:
            row.refuse(
                "schema", f"{row.text('schema')}: a newer labctl wrote this file", "Update labctl."
            )
        study = study or row.text("study") or None
        at = _levels(row, factors)
        record = _record(row, numbers, at)
        levels.setdefault(_place(record), at)
        trial = gathered.setdefault((record.number, record.attempt), _Trial(record, line))
        if trial.record != record:
            row.refuse(
                "trial",
                f"trial {record.number} differs from line {trial.line} in tuning, workload, "
                "condition, block or status",
            )
        _add(trial, row, like)
    if not rows:
        raise UsageError(f"{name}: has a header but no rows", hint=_FORM)
    _refuse_twins(lines, gathered)
    return CsvTrials(
        trials=tuple(
            (t.record, tuple(r for r, _ in t.readings.values())) for t in gathered.values()
        ),
        levels=levels,
        study=study,
        columns=frozenset(header) - set(unread),
        unread=unread,
        rows=rows,
    )


_FORM = f"The header needs at least these columns: {','.join(NEEDED)} (docs/import.md)."


@dataclass(slots=True)
class _Trial:
    record: TrialRecord
    line: int
    readings: dict[str, tuple[Reading, int]] = field(default_factory=dict)
    """Readings by metric key, with the line."""


class _Lines:
    """Hold the rows of a file with the numbers of the lines on which they end."""

    def __init__(self, text: str, name: str) -> None:
        self._reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        self._name = name

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        while True:
            try:
                fields = next(self._reader, None)
            except csv.Error as error:
                self.refuse(self._reader.line_num, None, f"is not CSV: {error}")
            if fields is None:
                return
            if fields:
                yield self._reader.line_num, fields

    def refuse(self, line: int, column: str | None, what: str, hint: str | None = None) -> NoReturn:
        place = f"{self._name}:{line}"
        raise UsageError(
            f"{place}: column '{column}': {what}" if column else f"{place}: {what}", hint=hint
        )


@dataclass(frozen=True, slots=True)
class _Row:
    lines: _Lines
    line: int
    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return the value; "" if the column or its value is missing."""
        value = self.values.get(column, "").strip()
        # The export puts ' before text that a spreadsheet would take for a formula.
        return value[1:] if value[:2] in ("'=", "'+", "'@", "'-") else value

    def named(self, column: str) -> str:
        """Return a name in the form that reports and tables can show, or ""."""
        name = self.text(column)
        if not name.isprintable():
            self.refuse(column, "has a control character or a line break")
        if len(name) > _LONGEST_NAME:
            self.refuse(column, f"has {len(name)} characters (limit: {_LONGEST_NAME})")
        return name

    def needed(self, column: str) -> str:
        return self.named(column) or self.refuse(column, "is empty")

    def whole(self, column: str, otherwise: int | None = None) -> int:
        text = self.text(column)
        if not text and otherwise is not None:
            return otherwise
        if not _WHOLE.fullmatch(text):
            self.refuse(column, f"expected a whole number ≥ 0, got '{text}'")
        return int(text)

    def number(self, column: str) -> float:
        text = self.needed(column)
        if text.lower().lstrip("+-") in _NO_NUMBERS:
            self.refuse(
                column,
                f"'{text}' is not a measured value",
                "Leave the row out, or leave 'value' empty and give the reason in a column "
                "'unavailable'.",
            )
        if not _NUMBER.fullmatch(text):
            comma = "Write decimals with a point: 1.5." if "," in text else None
            self.refuse(column, f"'{text}' is not a number", comma)
        value = float(text)
        if not math.isfinite(value):
            self.refuse(column, f"'{text}' is too large a number")
        return value

    def choice(self, column: str, kind: type[Choice], hints: Mapping[str, str]) -> Choice:
        text = self.needed(column)
        try:
            if text in hints:
                raise ValueError
            found = kind(text)
            if _is_nearly_known(found):
                raise ValueError
            return found
        except ValueError:
            allowed = [str(member) for member in kind]
            self.refuse(column, f"no {column} '{text}'", hints.get(text) or nearest(text, allowed))

    def refuse(self, column: str, what: str, hint: str | None = None) -> NoReturn:
        self.lines.refuse(self.line, column, what, hint)


def _is_nearly_known(value: object) -> bool:
    """Return whether a value differs only in case from a unit that labctl knows."""
    return isinstance(value, Unit) and value.is_own and value.lower() in _KNOWN_UNITS


def _text(data: bytes, name: str) -> str:
    if not data.strip():
        raise UsageError(f"{name}: is empty", hint=_FORM)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{name}: is UTF-16 text", hint="Save it as UTF-8.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{name}:{line}: is not UTF-8 text (byte 0x{data[error.start]:02x})",
            hint="Save it as UTF-8.",
        ) from error


def _header(lines: _Lines, factors: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the columns, and those that labctl does not read."""
    line, fields = next(iter(lines), (1, []))
    names = [field.strip() for field in fields]
    if len(names) == 1:
        for separator, words in ((";", "';'"), ("\t", "tabs")):
            if separator in names[0]:
                lines.refuse(
                    line,
                    None,
                    f"expected commas between columns, got {words}",
                    "Save it with commas, and decimals with a point.",
                )
    for name in names:
        if names.count(name) > 1:
            lines.refuse(line, name, "appears twice")
    missing = [name for name in NEEDED if name not in names]
    if missing:
        found = difflib.get_close_matches(missing[0], names, n=1)
        lines.refuse(
            line, missing[0], "is missing", f"Is it '{found[0]}'? {_FORM}" if found else _FORM
        )
    for name in factors:
        if name in NEEDED + OPTIONAL:
            lines.refuse(line, name, "is a reserved column, not a factor")
        if name not in names:
            lines.refuse(line, name, "is missing, but named as a factor", nearest(name, names))
    unread = tuple(name for name in names if name not in (*NEEDED, *OPTIONAL, *factors))
    absent = [name for name in OPTIONAL if name not in names]
    for name in unread:
        # Otherwise a misspelt column would silently be missing.
        if close := difflib.get_close_matches(name, absent, n=1, cutoff=0.8):
            lines.refuse(line, name, "no such column", f"Did you mean '{close[0]}'?")
    return names, unread


def _levels(row: _Row, factors: Sequence[str]) -> dict[str, str]:
    """Return the row's levels by factor; an empty one does not apply to the trial."""
    levels = {name: level for name in factors if (level := row.named(name))}
    for name, level in levels.items():
        if wrong := _NO_LEVEL.search(level):
            row.refuse(
                name, f"'{level}' is part of a workload's name and must not have a '{wrong[0]}'"
            )
    return levels


def _place(record: TrialRecord) -> Place:
    cell = record.cell
    return Place(cell["tuning"], cell["workload"], cell.get("condition", ""))


def _record(
    row: _Row, numbers: dict[tuple[object, ...], int], levels: Mapping[str, str]
) -> TrialRecord:
    """Return the trial of a row. Without a column 'trial' they are counted in order."""
    workload = row.needed("workload")
    if levels:
        workload = cell_name(base_of(workload), levels)
    cell = {"tuning": row.needed("tuning"), "workload": workload}
    if condition := row.named("condition"):
        cell["condition"] = condition
    block = row.whole("block")
    here = (*cell.values(), block)
    number = row.whole("trial") if row.text("trial") else numbers.setdefault(here, len(numbers) + 1)
    status = row.choice("status", TrialStatus, {}) if row.text("status") else TrialStatus.DONE
    return TrialRecord(
        number=number,
        attempt=max(1, row.whole("attempt", 1)),
        block=block,
        boot=row.whole("boot", block),
        position=row.whole("position", 0),
        cell=cell,
        status=status,
        reasons=() if status is TrialStatus.DONE else ("its file marks it as invalid",),
    )


def _add(trial: _Trial, row: _Row, like: dict[str, tuple[Sample, int]]) -> None:
    reading = _reading(row)
    key = reading.key if isinstance(reading, Sample) else reading.metric
    if key in trial.readings:
        row.refuse(
            "metric",
            f"{key} of this trial appears twice (also in line {trial.readings[key][1]})",
            "A trial has one value of a metric. Number repetitions in 'block'.",
        )
    if isinstance(reading, Sample):
        first, line = like.setdefault(key, (reading, row.line))
        for column in ("unit", "better"):
            ours, theirs = getattr(reading, column), getattr(first, column)
            if ours != theirs:
                row.refuse(column, f"{key} has '{ours}' here, but '{theirs}' in line {line}")
    trial.readings[key] = (reading, row.line)


def _reading(row: _Row) -> Reading:
    metric, why = row.needed("metric"), row.text("unavailable")
    if "{" in metric and not why:
        row.refuse("metric", f"'{metric}' includes labels", "Put them in a column 'labels'.")
    if not row.text("value"):
        if not why:
            row.refuse(
                "value",
                "is empty",
                "Leave the row out, or give the reason in a column 'unavailable'.",
            )
        return Unavailable(metric=metric, reason=why)
    if why:
        row.refuse("unavailable", "gives a reason for a missing value, but there is a value")
    return Sample(
        metric=metric,
        value=row.number("value"),
        unit=row.choice("unit", Unit, _OTHER_UNITS),
        better=row.choice("better", Better, {}),
        labels=_labels(row),
        source=COPY,
    )


def _labels(row: _Row) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in filter(None, row.named("labels").split(";")):
        name, equals, value = part.partition("=")
        if not equals or not name or name in labels:
            row.refuse(
                "labels", f"'{part}' is not a label", "Write labels as 'name=value;other=value'."
            )
        labels[name] = value
    return labels


def _refuse_twins(lines: _Lines, gathered: Mapping[tuple[int, int], _Trial]) -> None:
    """Refuse two trials of one cell in one block: the later would hide the earlier."""
    seen: dict[tuple[object, ...], _Trial] = {}
    for trial in gathered.values():
        record = trial.record
        here = (*sorted(record.cell.items()), record.block)
        first = seen.setdefault(here, trial)
        if first.record.number != record.number:
            lines.refuse(
                trial.line,
                "trial",
                f"trial {record.number} has the same tuning, workload, condition and block "
                f"as trial {first.record.number} (line {first.line})",
                "Number repetitions in 'block', or repeated attempts in 'attempt'.",
            )
