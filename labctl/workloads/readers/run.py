"""Read one run: the texts that declarations name, and all patterns' matches in them.

pyarrow reads tables (30 MB and a thread); it is loaded when the first table is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labctl.base.errors import BrokenError
from labctl.base.templates import names_in
from labctl.store.samples import Sample
from labctl.workloads.readers import columns, hdr, named
from labctl.workloads.readers.declaration import MetricFile, ReadingFile, SourceFile
from labctl.workloads.readers.found import (
    Found,
    asked,
    by_path,
    by_regex,
    calculated,
    check_whole,
    matched,
    nodes_at,
    of_groups,
    plain_number,
)
from labctl.workloads.readers.matching import Matches
from labctl.workloads.readers.output import (
    STDERR,
    STDOUT,
    NoValueError,
    Output,
    Part,
    number_of,
    parts_of,
)
from labctl.workloads.readers.path import values_at
from labctl.workloads.readers.value import Value, Values, check, picked, values_of, values_of_bins
from labctl.workloads.windows import RateWindow

MOST_WINDOWS = 100_000
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Run:
    """Hold one run's output with the patterns' matches in it."""

    output: Output
    matches: Matches
    skip_s: float

    @classmethod
    def of(
        cls,
        files: Sequence[SourceFile],
        outputs: Sequence[Output],
        skip_s: float = 0.0,
        *,
        strict: bool = True,
    ) -> list[Run]:
        """Return runs with all patterns found by one child. Unless `strict`, a missing text is an
        error of its metric alone."""
        pairs: list[tuple[str, str]] = []
        for output in outputs:
            for file in files:
                if not file.patterns:
                    continue
                try:
                    pairs += asked(file, parts_of(output, file.source))
                except BrokenError:
                    if strict and not isinstance(file, MetricFile):
                        raise
        matches = Matches(pairs)
        return [cls(output, matches, skip_s) for output in outputs]

    def read(self, name: str, metric: MetricFile, known: Values) -> Values:
        """Return a metric's values. `known`: those that formulas may use."""
        if metric.reader is not None:
            return self._named(metric.reader, metric)
        if not metric.given():
            return self._formula(name, metric, known)
        parts = parts_of(self.output, metric.source)
        check_whole(metric, parts, self.matches)
        if metric.hdr is not None:
            return values_of_bins(
                name, metric, hdr.by_log(metric.hdr, parts, source_of(metric.source))
            )
        return values_of(name, metric, self._found(metric, parts), source_of(parts[0].name))

    def shown(self, metric: MetricFile) -> tuple[str, ...]:
        """Return the first matches as printed."""
        if metric.reader is not None or metric.hdr is not None or not metric.given():
            return ()
        parts = parts_of(self.output, metric.source)
        if metric.regex is not None:
            found = matched(metric, parts, self.matches)
            return tuple(match.text.strip() for match in found[:_SHOWN])
        try:
            return self._found(metric, parts).shown
        except NoValueError:
            return ()

    def rates(self, metric: MetricFile) -> list[float] | None:
        """Return the rates of a run's windows that a metric's reader reports; None if it reports
        one for the whole run. Raises BrokenError."""
        rates = named.named(metric.reader).rates if metric.reader is not None else None
        if rates is None:
            return None
        texts = [self._text(file) for file in metric.files]
        return rates(texts[0], texts[1] if len(texts) > 1 else None)

    def operations(self, file: ReadingFile) -> float:
        """Return the operations of the run."""
        parts = parts_of(self.output, file.source)
        check_whole(file, parts, self.matches)
        if file.regex is not None:
            numbers = []
            for match in matched(file, parts, self.matches):
                if file.formula is not None:
                    numbers.append(of_groups(file.formula, match, file))
                else:
                    numbers.append(number_of(_there("value", match.groups, file), file.thousands))
            array = np.array(numbers)
        elif file.csv is not None:
            array = np.concatenate([columns.column_values(file, part) for part in parts])
        else:
            array = np.array([plain_number(n, file.thousands) for n in nodes_at(file, parts)])
        return picked(file.which, array, tuple(f"{n:g}" for n in array[:_SHOWN]))

    def first_line(self, file: SourceFile) -> str | None:
        """Return the first line that a pattern matches."""
        assert file.regex is not None
        for part in parts_of(self.output, file.source):
            for match in self.matches.of(file.regex, part.text):
                begin = part.text.rfind("\n", 0, match.start) + 1
                return part.text[begin:].lstrip("\n").partition("\n")[0][:200]
        return None

    def _found(self, metric: MetricFile, parts: Sequence[Part]) -> Found:
        if metric.regex is not None:
            return by_regex(metric, parts, self.matches)
        if metric.csv is not None:
            return columns.by_column(metric, parts, self.skip_s)
        return by_path(metric, parts)

    def _formula(self, name: str, metric: MetricFile, known: Values) -> Values:
        assert metric.formula is not None
        assert metric.scale is not None
        numbers: dict[str, float] = {}
        for key, value in known.items():
            if isinstance(value, str):
                if key in names_in(metric.formula, bare=True):
                    raise NoValueError(f"'{key}' is unavailable: {value}")
            elif not value.labels:
                numbers[key] = value.value
        number = calculated(metric.formula, numbers) * metric.scale.factor
        sources = [v.source for v in known.values() if isinstance(v, Value)]
        source = sources[0] if sources else source_of(STDOUT)
        values: Values = {name: Value(number, metric.scale.unit, metric.direction, source)}
        check(metric, values)
        return values

    def _named(self, reader: str, metric: MetricFile) -> Values:
        files = metric.files
        texts = [self._text(file) for file in files] or [self._text(metric.source)]
        report = texts[0]
        if report is None:
            parts_of(self.output, files[0])  # whose error lists the existing files
            raise BrokenError(f"no file '{files[0]}'")
        beside = texts[1] if len(texts) > 1 else None
        values: Values = {}
        for one in named.named(reader).read(report, beside, metric.arguments):
            if isinstance(one, Sample):
                values[one.key] = Value(one.value, one.unit, one.better, one.source, one.labels)
            else:
                values[one.metric] = one.reason
        return values

    def _text(self, name: str) -> named.Text | None:
        if name not in (STDOUT, STDERR) and name not in self.output.files:
            return None
        (part,) = parts_of(self.output, name)
        return named.Text(part.text, source_of(name), source_of(name))


def windows_of(file: ReadingFile, run: Run) -> list[RateWindow]:
    """Return the windows of a run, in order; none for an empty list. Raises BrokenError for one
    without length."""
    parts = parts_of(run.output, file.source)
    check_whole(file, parts, run.matches)
    if file.regex is not None:
        pairs = [_window(file, match.groups) for match in matched(file, parts, run.matches)]
    elif file.csv is not None:
        pairs = []
        for part in parts:
            seconds, done = columns.pairs(file, part, file.seconds, file.operations)
            pairs += list(zip(seconds.tolist(), done.tolist(), strict=True))
    else:
        nodes = nodes_at(file, parts, may_be_empty=True)
        pairs = [_of_node(file, node) for node in nodes]
    if len(pairs) > MOST_WINDOWS:
        raise BrokenError(f"{len(pairs)} windows (limit: {MOST_WINDOWS})")
    for length_s, operations in pairs:
        if not length_s > 0 or operations < 0:
            raise BrokenError(f"a window of {length_s:g} s with {operations:g} operations")
    return [RateWindow(length_s, operations) for length_s, operations in pairs]


def _window(file: ReadingFile, groups: dict[str, str]) -> tuple[float, float]:
    """Return seconds and operations in a regex's groups."""
    seconds = file.seconds
    if isinstance(seconds, str):
        seconds = number_of(_there(seconds, groups, file), file.thousands)
    return seconds, number_of(_there(file.operations, groups, file), file.thousands)


def _there(name: str, groups: dict[str, str], file: ReadingFile) -> str:
    if name not in groups:
        raise BrokenError(f"the pattern '{file.regex}' has no group '{name}' in a match")
    return groups[name]


def _of_node(file: ReadingFile, node: object) -> tuple[float, float]:
    """Return seconds and operations at the paths below an element of JSON or YAML."""
    seconds = file.seconds
    if isinstance(seconds, str):
        seconds = plain_number(values_at(node, seconds)[0])
    return seconds, plain_number(values_at(node, file.operations)[0])


def source_of(name: str) -> str:
    """Return a text's path in a trial's folder."""
    return f"{name}.txt" if name in (STDOUT, STDERR) else f"files/{name}"
