"""Read columns of tables (CSV): whole numbers stay whole until they are subtracted, as a clock has
more nanoseconds than a double can tell apart.

A table is read a part at a time, and only the numbers of some columns are kept: its cells as texts
take ten times the memory of the file.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labctl.base.errors import BrokenError, nearest
from labctl.base.quantities import quantity
from labctl.workloads.readers.declaration import CsvFile, MetricFile, SourceFile
from labctl.workloads.readers.found import Found
from labctl.workloads.readers.output import NoValueError, Part, number_of, printed_step

MOST_COLUMNS = 1000
LONGEST_ROW = 1 << 20
"""Limit for the characters of one row, which may go on over lines in quotes."""
_CELLS_AT_ONCE = 100_000
_BLOCK = 1 << 20
# No digits match in two ways: a text of digits that is not a number would take its length squared.
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_SHOWN = 10
_IN_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class Column:
    """Hold a column's numbers, whole ones as such, and its printed step (0: unknown)."""

    values: NDArray[np.int64] | NDArray[np.float64]
    step: float


@dataclass(slots=True)
class _Cells:
    """Make numbers of a column's cells, a part of them at a time. What is wrong with one is raised
    at the end: the column may not be needed, and the table may be broken further down."""

    name: str
    part: Part
    thousands: str | None
    values: list[NDArray[np.int64] | NDArray[np.float64]] = field(default_factory=list)
    step: float = 1.0
    wrong: BrokenError | NoValueError | None = None

    def add(self, cells: Sequence[str]) -> None:
        if self.wrong is not None:
            return
        texts = [cell.strip() for cell in cells]
        try:
            if self.thousands is not None:
                texts = [_without(text, self.thousands) for text in texts]
            self.values.append(self._numbers(texts))
        except (BrokenError, NoValueError) as error:
            self.wrong = error

    def column(self) -> Column:
        if self.wrong is not None:
            raise self.wrong
        values: Any = np.concatenate(self.values)  # of whole numbers alone: whole ones
        if not np.isfinite(values).all():
            raise NoValueError(
                f"{self.part.name} has a number in column '{self.name}' that is out of range."
            )
        return Column(values, self.step)

    def _numbers(self, texts: Sequence[str]) -> NDArray[np.int64] | NDArray[np.float64]:
        if all(map(_WHOLE.fullmatch, texts)):
            with suppress(OverflowError):  # beyond 64 bits: a number like others
                return np.fromiter(map(int, texts), np.int64, len(texts))
        for text in texts:
            if not _NUMBER.fullmatch(text):
                _complain(text, self.name, self.part)
        self.step = min(self.step, min(map(printed_step, texts)))
        return np.fromiter(map(float, texts), np.float64, len(texts))


@dataclass(frozen=True, slots=True)
class _Table:
    """Hold the names of a table's columns, how many rows count, and the cells of some columns."""

    part: Part
    names: Sequence[str]
    rows: int
    cells: dict[str, _Cells]

    def column(self, name: str) -> Column:
        _check_there(name, self.names, self.part)
        return self.cells[name].column()


def by_column(metric: MetricFile, parts: Sequence[Part], skip_s: float) -> Found:
    """Return the numbers of a column, of all rows that count. `skip_s`: of the first seconds none
    do, where it is known when a row was."""
    wanted = metric.csv
    assert wanted is not None
    assert metric.scale is not None
    less = [wanted.minus] if wanted.minus is not None else []
    times = [wanted.time] if isinstance(wanted.time, str) else wanted.time or []
    values: list[NDArray[np.float64]] = []
    steps: list[float] = []
    for part in parts:
        table = _table(metric, wanted, part, [wanted.column, *less, *times])
        column = table.column(wanted.column)
        numbers, step = column.values, column.step
        for name in less:
            other = table.column(name)
            numbers, step = numbers - other.values, min(step, other.step)
        kept = _in_time(metric, wanted, table, skip_s)
        values.append(np.asarray(numbers, dtype=np.float64)[kept])
        steps.append(step)
    together = np.concatenate(values)
    if not len(together):
        raise BrokenError(f"all rows are excluded; {parts[-1].end}")
    shown = tuple(f"{one:.15g}" for one in together[:_SHOWN])
    return Found(together, metric.scale, min(steps), shown)


def pairs(
    one: SourceFile, part: Part, seconds: str | float, operations: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the columns of the windows' seconds and operations."""
    assert one.csv is not None
    lengths = [seconds] if isinstance(seconds, str) else []
    table = _table(one, one.csv, part, [operations, *lengths])
    done = np.asarray(table.column(operations).values, dtype=np.float64)
    if not isinstance(seconds, str):
        return np.full(len(done), seconds), done
    return np.asarray(table.column(seconds).values, dtype=np.float64), done


def column_values(one: SourceFile, part: Part) -> NDArray[np.float64]:
    """Return a column's numbers."""
    assert one.csv is not None
    table = _table(one, one.csv, part, [one.csv.column])
    return np.asarray(table.column(one.csv.column).values, dtype=np.float64)


def _table(one: SourceFile, wanted: CsvFile, part: Part, columns: Sequence[str]) -> _Table:
    """Return some columns of the rows that `where` names."""
    if not part.text.strip():
        raise BrokenError(f"{part.name} has no row")
    if not part.text.endswith("\n") and one.whole is None:
        raise BrokenError(
            f"{part.name}: its last line has no line end, so it may be truncated; {part.end}",
            hint="If the program ends it this way, add a 'whole' that the end must match.",
        )
    if part.text.count('"') % 2:
        raise BrokenError(f"{part.name} has an unclosed quote; {part.end}")
    first = next(line for line in _lines(part) if line != "\n")
    if first.count(wanted.separator) >= MOST_COLUMNS:
        raise BrokenError(f"{part.name} has more than {MOST_COLUMNS} columns")
    if wanted.names is None and "\0" in first:
        raise BrokenError(f"{part.name} is not text")
    rows = _rows(part, wanted)
    names = wanted.names or [name.strip() for name in next(rows)]
    if len(set(names)) < len(names):
        raise BrokenError(f"{part.name}: its first line has a column twice; {part.end}")
    for name in wanted.where:
        _check_there(name, names, part)
    where = [(names.index(name), str(value)) for name, value in wanted.where.items()]
    cells = {name: _Cells(name, part, one.thousands) for name in columns if name in names}
    places = {name: names.index(name) for name in cells}
    count = 0
    while some := list(islice(rows, max(1, _CELLS_AT_ONCE // len(names)))):
        if where:
            some = [row for row in some if all(row[n] == value for n, value in where)]
        count += len(some)
        for name, place in places.items():
            cells[name].add([row[place] for row in some])
    if not count:
        told = ", ".join(f"{column} is {value}" for column, value in wanted.where.items())
        among = f" in which {told}" if told else ""
        raise BrokenError(f"{part.name} has no row{among}; {part.end}")
    return _Table(part, names, count, cells)


def _rows(part: Part, wanted: CsvFile) -> Iterator[list[str]]:
    """Yield the rows, the names' one too, without blank lines. Each has one length."""
    length = 0

    def lines() -> Iterator[str]:
        nonlocal length
        for line in _lines(part):
            length += len(line)
            _check_length(length, part)
            yield line
        if length:
            raise BrokenError(f"{part.name} has an unclosed quote; {part.end}")

    width = len(wanted.names) if wanted.names else 0
    number = 0
    try:
        for row in csv.reader(lines(), delimiter=wanted.separator):
            length = 0
            if not row:
                continue
            number += 1
            if len(row) != (width := width or len(row)):
                shown = wanted.separator.join(row).partition("\n")[0][:200]
                raise BrokenError(
                    f"{part.name}: Row #{number}: Expected {width} columns, got {len(row)}: "
                    f"{shown}; {part.end}"
                )
            yield row
    except csv.Error as error:
        raise BrokenError(f"{part.name}: {error}; {part.end}") from error


def _lines(part: Part) -> Iterator[str]:
    """Yield a text's lines with their ends, of a block at a time."""
    start = 0
    while start < len(part.text):
        end = part.text.find("\n", start + _BLOCK) + 1 or len(part.text)
        _check_length(end - start - _BLOCK, part)
        yield from StringIO(part.text[start:end], newline="\n")
        start = end


def _check_length(characters: int, part: Part) -> None:
    if characters > LONGEST_ROW:
        raise BrokenError(f"{part.name} has a row of more than {LONGEST_ROW} characters")


def _check_there(column: str, names: Sequence[str], part: Part) -> None:
    if column not in names:
        raise BrokenError(f"{part.name} has no column '{column}'", hint=nearest(column, names))


def _without(text: str, thousands: str) -> str:
    return repr(number_of(text, thousands)) if thousands in text else text


def _complain(text: str, column: str, part: Part) -> None:
    """Raise what is wrong with a number's text."""
    try:
        number_of(text)
    except NoValueError as error:
        raise NoValueError(f"column '{column}' of {part.name}: {error}") from error
    except BrokenError as error:
        raise BrokenError(
            f"column '{column}' of {part.name}: {error.message}", hint=error.hint
        ) from error
    raise BrokenError(f"column '{column}' of {part.name}: {text[:40]!r} is not a number")


def _in_time(
    metric: MetricFile, wanted: CsvFile, table: _Table, skip_s: float
) -> NDArray[np.bool_]:
    """Return which rows lie between `after` and `until`."""
    if wanted.time is None:
        return np.ones(table.rows, dtype=bool)
    after_s, until_s = _seconds(wanted.after), _seconds(wanted.until)
    after_s = max(after_s or 0.0, skip_s)
    if isinstance(wanted.time, str):
        ticks = table.column(wanted.time).values
        scale = metric.scale
        assert scale is not None
        in_s = _IN_S[wanted.time_unit] if wanted.time_unit else scale.factor
        since_s = np.asarray(ticks - ticks.min(), dtype=np.float64) * in_s
    else:
        whole, rest = (table.column(name).values for name in wanted.time)
        since_s = np.asarray(whole - whole.min(), dtype=np.float64) + rest * 1e-6
        since_s = since_s - since_s.min()
    return (since_s >= after_s) & (since_s < (np.inf if until_s is None else until_s))


def _seconds(text: str | float | None) -> float | None:
    """Return seconds of `10s` or of 10."""
    if not isinstance(text, str):
        return text
    number, scale = quantity(text)
    return number * (scale.factor if scale is not None else 1.0)
