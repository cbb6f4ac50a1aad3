"""Define how a workload's file declares its metrics: the contents of `metrics:`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from labctl.base.errors import UsageError
from labctl.base.quantities import SCALES, Scale, quantity, scale_of
from labctl.base.templates import names_in
from labctl.base.units import Better, Unit
from labctl.base.yaml import FileModel
from labctl.workloads.readers import named
from labctl.workloads.readers.output import STDERR, STDOUT
from labctl.workloads.readers.path import parse_path

MOST_PATTERN = 2000
_SOURCES = ("regex", "json", "yaml", "csv", "hdr", "reader")
_ALIASES = {"json_path": "json", "yaml_path": "yaml", "source": "from", "as_": "as"}


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern, re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not a regular expression: {error}") from error
    return pattern


def _check_path(path: str) -> str:
    parse_path(path)
    return path


def _check_unit(unit: str) -> str:
    scale_of(unit)
    return unit


def _check_quantity(text: str | float) -> str | float:
    if isinstance(text, str):
        quantity(text)
    return text


def _check_formula(text: str) -> str:
    try:
        names_in(text, bare=True)
    except UsageError as error:
        raise ValueError(f"it is not an expression: {error.message}") from error
    return text


Pattern = Annotated[
    str, StringConstraints(min_length=1, max_length=MOST_PATTERN), AfterValidator(_check_pattern)
]
Path = Annotated[str, StringConstraints(min_length=1, max_length=400), AfterValidator(_check_path)]
Paths = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)], Path],
    Field(min_length=1, max_length=20),
]
"""Paths by their names in a formula."""
UnitWord = Annotated[str, AfterValidator(_check_unit)]
Quantity = Annotated[
    str | Annotated[float, Field(allow_inf_nan=False)], AfterValidator(_check_quantity)
]
"""A number in the metric's unit, or one with a unit: `55ms`."""
Formula = Annotated[
    str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_check_formula)
]
FileText = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_*?\[\]][A-Za-z0-9._+*?\[\]-]*$", max_length=100)
]
Column = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Which = Literal["only", "first", "last", "sum", "mean", "min", "max"]
As = Literal["value", "percentiles", "share", "count", "mean", "sum", "max"]


class CsvFile(FileModel):
    """Name the column of a table with one line for each row."""

    column: Column
    """The column of the numbers."""
    minus: Column | None = None
    """A column to subtract: the end minus the start."""
    time: Column | Annotated[list[Column], Field(min_length=2, max_length=2)] | None = None
    """The column with a row's time, or two of seconds and microseconds."""
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    """Unit of `time`, if it is not the metric's."""
    where: dict[Column, str | int | float] = {}
    """Rows that count: those with these values."""
    separator: Annotated[str, StringConstraints(min_length=1, max_length=1)] = ","
    """The separator of columns."""
    names: Annotated[list[Column], Field(min_length=1, max_length=1000)] | None = None
    """The columns' names, if the first line does not hold them."""
    after: Quantity | None = None
    """Seconds since the first row's time before which rows are left out."""
    until: Quantity | None = None
    """Seconds since the first row's time from which on rows are left out."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.after is not None or self.until is not None) and self.time is None:
            raise ValueError("'after' and 'until' need 'time', the column with the time of a row")
        if self.separator in '"\r\n':
            raise ValueError("'separator' is a quote or a line end, which separates no columns")
        if self.names is not None and len(set(self.names)) < len(self.names):
            raise ValueError("'names' has a column twice")
        for limit in (self.after, self.until):
            scale = quantity(limit)[1] if isinstance(limit, str) else None
            if scale is not None and scale.unit is not Unit.SECONDS:
                raise ValueError(f"'{limit}' is not a time: write it like '10s'")
        return self


class HdrFile(FileModel):
    """Name the histograms of an HdrHistogram interval log."""

    tag: Column | None = None
    """The tag of the histograms that count; without it, those without a tag."""


class SourceFile(FileModel):
    """Locate numbers: `from` a text, by exactly one of the readers."""

    source: Annotated[FileText, Field(alias="from")] = STDOUT
    """`stdout`, `stderr`, or a file that the command leaves, globs too."""
    regex: Pattern | None = None
    """A regular expression, multi-line, with a group `value`, or one group alone, and with `unit`
    where that is printed."""
    json_path: Annotated[Path | Paths | None, Field(alias="json")] = None
    """A path to a number: `jobs[0].read.iops`, `a."95.0"`, `[name=fork]`, `[*]`; or the paths of
    several by name, for a `formula`."""
    yaml_path: Annotated[Path | Paths | None, Field(alias="yaml")] = None
    """The same in YAML."""
    csv: CsvFile | None = None
    """A column of a table."""
    hdr: HdrFile | None = None
    """Histograms of an HdrHistogram interval log."""
    whole: Pattern | None = None
    """A regular expression that the text must match near its end; otherwise it is incomplete."""
    thousands: Literal[",", "'", " ", "_"] | None = None
    """The separator of groups of three digits."""

    @property
    def file(self) -> str | None:
        """Return the file that it reads, maybe a glob; None for the command's output."""
        return None if self.source in (STDOUT, STDERR) else self.source

    @property
    def paths(self) -> Mapping[str, str]:
        """Return the paths that a formula uses, by name; empty for a single path."""
        path = self.json_path or self.yaml_path
        return path if isinstance(path, dict) else {}

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(one for one in (self.regex, self.whole) if one is not None)

    def given(self) -> list[str]:
        """Return the given readers, in the file's words."""
        values = {"json": self.json_path, "yaml": self.yaml_path}
        return [key for key in _SOURCES if values.get(key, getattr(self, key, None)) is not None]


def _or_a_plugins(value: object, check: ValidatorFunctionWrapHandler) -> object:
    is_foreign = isinstance(value, str) and value not in named.READERS
    return value if is_foreign and value in named.of_plugins() else check(value)


class MetricFile(SourceFile):
    """Declare how one metric is read, in which unit, and which direction is better."""

    reader: Annotated[
        Literal["sysbench", "fio", "cyclictest", "oslat", "rtla", "sockperf", "game-stream", "jvm"]
        | None,
        WrapValidator(_or_a_plugins),
    ] = None
    """A reader of one program's own report; its metrics have labctl's names."""
    arguments: dict[str, str | int | float | bool] = {}
    """The reader's arguments."""
    formula: Formula | None = None
    """An expression over a regex's groups, or over other metrics in labctl's units."""
    which: Which = "only"
    """The selection from several numbers."""
    as_: Annotated[As, Field(alias="as")] = "value"
    """The value computed from all numbers."""
    over: Quantity | None = None
    """The limit of `as: share`: the share of numbers above it."""
    bin_width: Quantity | None = None
    """The step of the numbers, if it is not the printed one."""
    unit: UnitWord | None = None
    """Unit of the program's output: one of labctl's, or its own, such as `Mops/s`, which is shown
    unchanged and never converted."""
    better: Literal["higher", "lower", "neither"] | None = None
    """The direction that is better. By default rates are better higher, and times and latencies
    lower, by the unit or the metric's name (docs/own-program.md); if neither decides, it is
    required."""
    title: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    """Name in tables, if it is not the metric's own."""
    must_be: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The only valid value of a complete run, in `unit`."""
    between: (
        Annotated[
            list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=2, max_length=2)
        ]
        | None
    ) = None
    """The smallest and the largest possible value, in `unit`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = self.given()
        if len(given) > 1 or (not given and self.formula is None):
            raise ValueError(
                f"it has {' and '.join(given) or 'no reader'}: give exactly one of "
                f"{', '.join(_SOURCES)}, or a 'formula' over other metrics"
            )
        if self.reader is not None:
            return self._check_named()
        if self.arguments:
            raise ValueError("'arguments' needs a 'reader'")
        if self.paths and self.formula is None:
            raise ValueError(f"'{given[0]}' has several numbers: combine them with a 'formula'")
        if self.formula is not None and not self.paths and given not in ([], ["regex"]):
            raise ValueError(
                "'formula' is over a regex's groups, over several paths by name, or over other "
                f"metrics, not over {given[0]}"
            )
        if self.paths:
            self._check_formula_over(self.paths, "paths")
        if self.regex is not None:
            self._check_groups(self.regex)
        if self.unit is None and not self.has_printed_unit:
            raise ValueError(
                f"'unit' is missing: one of {', '.join(SCALES)}, or the program's own, such as "
                "'Mops/s'"
            )
        if (self.as_ == "share") is not (self.over is not None):
            raise ValueError(
                "'as: share' needs 'over' (the limit, like 55ms), and 'over' needs 'as: share'"
            )
        if self.as_ != "value" and self.which != "only":
            raise ValueError("'which' selects one value: leave it out if 'as' is set")
        if self.hdr is not None and self.as_ not in ("percentiles", "count", "mean", "max"):
            raise ValueError("'hdr' takes 'as': percentiles, count, mean or max")
        if self.between is not None and self.between[0] > self.between[1]:
            raise ValueError("'between' begins with the larger number")
        if self.csv is not None and self.csv.time is not None:
            is_time = self.unit is not None and scale_of(self.unit).unit is Unit.SECONDS
            if isinstance(self.csv.time, str) and self.csv.time_unit is None and not is_time:
                raise ValueError("'csv.time_unit' is missing: s, ms, us or ns")
        for limit in (self.over, self.bin_width):
            self._check_same_kind(limit)
        return self

    @property
    def has_printed_unit(self) -> bool:
        return self.regex is not None and "unit" in re.compile(self.regex).groupindex

    @property
    def files(self) -> tuple[str, ...]:
        """Return all files that it reads, maybe globs."""
        if self.reader is not None:
            return named.files(self.reader, self.arguments, self.file)
        return () if self.file is None or not self.given() else (self.file,)

    @property
    def direction(self) -> Better:
        return Better(self.better or "neither")

    @property
    def scale(self) -> Scale | None:
        """Return the declared unit; None if the program prints it."""
        return None if self.unit is None else scale_of(self.unit)

    def _check_named(self) -> Self:
        for key in ("formula", "unit", "better", "title", "must_be", "between", "over"):
            if getattr(self, key) is not None:
                raise ValueError(
                    f"'{key}' cannot be set for a 'reader', which defines its own metrics"
                )
        if self.which != "only" or self.as_ != "value":
            raise ValueError("'which' and 'as' cannot be set for a 'reader'")
        assert self.reader is not None
        named.check_arguments(self.reader, self.arguments)
        return self

    def _check_groups(self, pattern: str) -> None:
        compiled = re.compile(pattern, re.MULTILINE)
        names = compiled.groupindex
        if self.formula is not None:
            self._check_formula_over(names, "groups")
        elif "value" not in names and not (compiled.groups == 1 and not names):
            raise ValueError(
                "the regex has no group around the number: write (…), or (?P<value>…) where it has "
                "other groups"
            )

    def _check_formula_over(self, names: Mapping[str, object], what: str) -> None:
        assert self.formula is not None
        unknown = sorted(names_in(self.formula, bare=True) - set(names))
        if unknown:
            raise ValueError(
                f"the formula uses '{unknown[0]}'; the {what} are "
                f"{', '.join(names) or 'without names'}"
            )

    def _check_same_kind(self, limit: str | float | None) -> None:
        scale = quantity(limit)[1] if isinstance(limit, str) else None
        if scale is not None and self.scale is not None and scale.unit is not self.scale.unit:
            raise ValueError(f"'{limit}' has a different kind of unit from '{self.unit}'")


class ReadingFile(SourceFile):
    """Declare how operations are read (one number, or several that are added up), or the windows of
    a run (`seconds` and `operations` of each)."""

    which: Which = "sum"
    """The selection from several numbers."""
    formula: Formula | None = None
    """An expression over a regex's groups."""
    seconds: str | Annotated[float, Field(gt=0, allow_inf_nan=False)] = "seconds"
    """A window's length: a regex's group, a key, a column, or a number if all are the same."""
    operations: str = "operations"
    """A window's operations: a regex's group, a key or a column."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = self.given()
        if len(given) != 1:
            raise ValueError(
                f"it has {' and '.join(given) or 'no reader'}: give exactly one of regex, json, "
                "yaml and csv"
            )
        if self.hdr is not None:
            raise ValueError("'hdr' has latencies, not operations")
        if self.paths:
            raise ValueError(f"'{given[0]}' has several numbers, which only a metric accepts")
        return self
