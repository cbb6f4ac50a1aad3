"""Read columns of tables (CSV) by pyarrow: whole numbers stay whole until they are subtracted, as a
clock has more nanoseconds than a double can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from labctl.base.errors import BrokenError, nearest
from labctl.base.quantities import quantity
from labctl.workloads.readers.declaration import CsvFile, MetricFile, SourceFile
from labctl.workloads.readers.found import Found
from labctl.workloads.readers.output import NoValueError, Part, number_of

# Else the first table that is read leaves a pipe for signals, which a child of a child that closed
# all files closes again when it is forked, and aborts over it: libvirt starts QEMU in such a one.
pa.enable_signal_handlers(False)

MOST_COLUMNS = 1000
_NUMBER = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?$"
_WHOLE = r"^[+-]?\d{1,19}$"
_SHOWN = 10
_IN_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class Column:
    """Hold a column's numbers, whole ones as such, and its printed step (0: unknown)."""

    values: NDArray[np.int64] | NDArray[np.float64]
    step: float


def by_column(metric: MetricFile, parts: Sequence[Part], skip_s: float) -> Found:
    """Return the numbers of a column, of all rows that count. `skip_s`: of the first seconds none
    do, where it is known when a row was."""
    wanted = metric.csv
    assert wanted is not None
    assert metric.scale is not None
    values: list[NDArray[np.float64]] = []
    steps: list[float] = []
    for part in parts:
        table = _rows(metric, wanted, part)
        column = _column(table, wanted.column, metric, part)
        numbers, step = column.values, column.step
        if wanted.minus is not None:
            less = _column(table, wanted.minus, metric, part)
            numbers, step = numbers - less.values, min(step, less.step)
        kept = _in_time(metric, wanted, table, part, skip_s)
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
    table = _rows(one, one.csv, part)
    done = np.asarray(_column(table, operations, one, part).values, dtype=np.float64)
    if not isinstance(seconds, str):
        return np.full(len(done), seconds), done
    return np.asarray(_column(table, seconds, one, part).values, dtype=np.float64), done


def column_values(one: SourceFile, part: Part) -> NDArray[np.float64]:
    """Return a column's numbers."""
    assert one.csv is not None
    found = _column(_rows(one, one.csv, part), one.csv.column, one, part).values
    return np.asarray(found, dtype=np.float64)


def _rows(one: SourceFile, wanted: CsvFile, part: Part) -> pa.Table:
    """Return the rows that `where` names, all as text."""
    if not part.text.strip():
        raise BrokenError(f"{part.name} has no row")
    if not part.text.endswith("\n") and one.whole is None:
        raise BrokenError(
            f"{part.name}: its last line has no line end, so it may be truncated; {part.end}",
            hint="If the program ends it this way, add a 'whole' that the end must match.",
        )
    if part.text.count('"') % 2:
        raise BrokenError(f"{part.name} has an unclosed quote; {part.end}")
    first = part.text.lstrip("\n").partition("\n")[0]
    if first.count(wanted.separator) >= MOST_COLUMNS:
        raise BrokenError(f"{part.name} has more than {MOST_COLUMNS} columns")
    if wanted.names is None and "\0" in first:
        raise BrokenError(f"{part.name} is not text")
    try:
        names = wanted.names or _names(first, wanted.separator)
        table = csv.read_csv(
            BytesIO(part.text.encode()),
            read_options=csv.ReadOptions(
                column_names=names,
                skip_rows=0 if wanted.names else 1 + _blank_lines(part.text),
                use_threads=False,
            ),
            parse_options=csv.ParseOptions(delimiter=wanted.separator),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=False,
                check_utf8=False,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise BrokenError(f"{part.name}: {_said(error)}; {part.end}") from error
    for column, value in wanted.where.items():
        _check_there(column, table, part)
        table = table.filter(pc.equal(table[column], str(value)))
    if not table.num_rows:
        told = ", ".join(f"{column} is {value}" for column, value in wanted.where.items())
        among = f" in which {told}" if told else ""
        raise BrokenError(f"{part.name} has no row{among}; {part.end}")
    return table


def _names(first: str, separator: str) -> list[str]:
    """Return the columns' names in a table's first line."""
    options = csv.ParseOptions(delimiter=separator)
    line = csv.read_csv(
        BytesIO(f"{first}\n".encode()),
        read_options=csv.ReadOptions(autogenerate_column_names=True),
        parse_options=options,
        convert_options=csv.ConvertOptions(
            column_types={f"f{n}": pa.string() for n in range(first.count(separator) + 1)}
        ),
    )
    names = [str(column[0].as_py()).strip() for column in line.columns]
    if len(set(names)) < len(names):
        raise pa.ArrowInvalid("its first line has a column twice")
    return names


def _blank_lines(text: str) -> int:
    return len(text) - len(text.lstrip("\n"))


def _check_there(column: str, table: pa.Table, part: Part) -> None:
    if column not in table.column_names:
        raise BrokenError(
            f"{part.name} has no column '{column}'", hint=nearest(column, table.column_names)
        )


def _column(table: pa.Table, name: str, one: SourceFile, part: Part) -> Column:
    _check_there(name, table, part)
    texts = pc.utf8_trim_whitespace(table[name].combine_chunks())
    if one.thousands is not None:
        texts = pa.array([_without(t, one.thousands) for t in texts.to_pylist()], pa.string())
    is_whole = pc.all(pc.match_substring_regex(texts, _WHOLE)).as_py()
    if is_whole:
        texts = pc.utf8_ltrim(texts, "+")
        with suppress(pa.ArrowInvalid):  # beyond 64 bits: a number like others
            return Column(pc.cast(texts, pa.int64()).to_numpy(), 1.0)
    wrong = pc.invert(pc.match_substring_regex(texts, _NUMBER))
    if (first := pc.index(wrong, True).as_py()) >= 0:
        _complain(str(texts[first].as_py()), name, part)
    texts = pc.utf8_ltrim(texts, "+")
    values = pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False)
    if not np.isfinite(values).all():
        raise NoValueError(f"{part.name} has a number in column '{name}' that is out of range.")
    return Column(values, _step(texts))


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


def _step(texts: pa.Array) -> float:
    """Return the finest step of printed numbers; 0 where one has an exponent."""
    if pc.any(pc.match_substring_regex(texts, "[eE]")).as_py():
        return 0.0
    found = pc.extract_regex(texts, r"\.(?P<rest>\d*)$")
    digits = pc.max(pc.utf8_length(pc.struct_field(found, "rest"))).as_py()
    return float(10.0 ** -(digits or 0))


def _in_time(
    metric: MetricFile, wanted: CsvFile, table: pa.Table, part: Part, skip_s: float
) -> NDArray[np.bool_]:
    """Return which rows lie between `after` and `until`."""
    if wanted.time is None:
        return np.ones(table.num_rows, dtype=bool)
    after_s, until_s = _seconds(wanted.after), _seconds(wanted.until)
    after_s = max(after_s or 0.0, skip_s)
    if isinstance(wanted.time, str):
        ticks = _column(table, wanted.time, metric, part).values
        scale = metric.scale
        assert scale is not None
        in_s = _IN_S[wanted.time_unit] if wanted.time_unit else scale.factor
        since_s = np.asarray(ticks - ticks.min(), dtype=np.float64) * in_s
    else:
        whole, rest = (_column(table, name, metric, part).values for name in wanted.time)
        since_s = np.asarray(whole - whole.min(), dtype=np.float64) + rest * 1e-6
        since_s = since_s - since_s.min()
    return (since_s >= after_s) & (since_s < (np.inf if until_s is None else until_s))


def _seconds(text: str | float | None) -> float | None:
    """Return seconds of `10s` or of 10."""
    if not isinstance(text, str):
        return text
    number, scale = quantity(text)
    return number * (scale.factor if scale is not None else 1.0)


def _said(error: Exception) -> str:
    return str(error).removeprefix("CSV parse error: ").splitlines()[0][:200]
