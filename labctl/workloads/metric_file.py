"""Read the metrics that a workload's file declares: of one run, and of all runs of a trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, StringConstraints

from labctl.base.errors import BrokenError, LabctlError, UsageError
from labctl.base.metrics.table import metric_of
from labctl.base.units import Unit
from labctl.store.samples import Reading, Sample, Unavailable, base_name
from labctl.workloads.readers import named
from labctl.workloads.readers.declaration import MetricFile, ReadingFile, SourceFile
from labctl.workloads.readers.matching import nearest_line
from labctl.workloads.readers.names import MetricName, check_metrics, names_of, used_names
from labctl.workloads.readers.output import NoValueError, Output, decoded
from labctl.workloads.readers.run import Run, source_of, windows_of
from labctl.workloads.readers.value import Value, Values
from labctl.workloads.windows import RateWindow

__all__ = [
    "Explained",
    "MetricFile",
    "MetricsFile",
    "Output",
    "ReadingFile",
    "Value",
    "Values",
    "combine",
    "decoded",
    "explain_run",
    "matches_in",
    "metric_names",
    "needed_for",
    "operations_of",
    "read_run",
    "read_runs",
    "readings",
    "source_of",
    "told_rates",
    "told_with",
    "total_operations",
    "windows_in",
]

_Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
MetricsFile = Annotated[dict[_Name, MetricFile], AfterValidator(check_metrics)]
"""The `metrics:` of a workload's file."""

_RATES = (Unit.PER_SECOND, Unit.BYTES_PER_SECOND)


@dataclass(frozen=True, slots=True)
class Explained:
    """Explain how one metric was read: the matched text, and its values or the error."""

    shown: tuple[str, ...]
    values: Values
    error: str | None = None
    hint: str | None = None


def metric_names(metrics: Mapping[str, MetricFile]) -> dict[str, MetricName]:
    """Return the metrics of declarations, with unit and direction: `latency_p95` of `latency` with
    `as: percentiles`. Raises UsageError for names that are labctl's own, and for formulas over
    missing metrics."""
    try:
        check_metrics(metrics)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return {name: found for one in metrics for name, found in names_of(one, metrics[one]).items()}


def needed_for(metrics: Mapping[str, MetricFile], made: str) -> dict[str, MetricFile]:
    """Return the declarations needed to read one metric: its own, and those that formulas use.
    Empty if none makes it."""
    makers = {key: name for name in metrics for key in names_of(name, metrics[name])}
    needed: dict[str, MetricFile] = {}
    left = [made]
    while left:
        name = makers.get(left.pop())
        if name is not None and name not in needed:
            needed[name] = metrics[name]
            left += used_names(metrics[name])
    return needed


def told_with(
    metrics: Mapping[str, MetricFile], parameters: Mapping[str, object]
) -> dict[str, MetricFile]:
    """Return declarations with a trial's parameters filled in to their readers' arguments. Raises
    UsageError."""
    return {
        name: metric.model_copy(
            update={"arguments": named.filled(metric.reader, metric.arguments, parameters)}
        )
        if metric.arguments
        else metric
        for name, metric in metrics.items()
    }


def read_run(metrics: Mapping[str, MetricFile], output: Output, *, skip_s: float = 0.0) -> Values:
    """Return every metric of one run, by its name with its labels, or the reason why it is missing.
    `skip_s`: rows of the first seconds are left out.

    Raises BrokenError that names the metric, what was searched for, and the output's end.
    """
    (values,) = read_runs(metrics, [output], skip_s=skip_s)
    return values


def read_runs(
    metrics: Mapping[str, MetricFile], outputs: Sequence[Output], *, skip_s: float = 0.0
) -> list[Values]:
    """Return the same of several runs, whose patterns one child process finds."""
    runs = Run.of(list(metrics.values()), outputs, skip_s)
    return [_read(metrics, run) for run in runs]


def explain_run(
    metrics: Mapping[str, MetricFile], output: Output, *, skip_s: float = 0.0
) -> dict[str, Explained]:
    """Return how each metric of one run is read; an error in one does not affect the others."""
    explained: dict[str, Explained] = {}
    values: Values = {}
    (run,) = Run.of(list(metrics.values()), [output], skip_s, strict=False)
    for name in _in_order(metrics):
        shown: tuple[str, ...] = ()
        try:
            shown = run.shown(metrics[name])
            found = _one(name, metrics[name], run, values)
        except LabctlError as error:
            hint = error.hint
            if hint is None and metrics[name].regex is not None:
                hint = nearest_line(metrics[name].regex or "", output, metrics[name].source)
            explained[name] = Explained(shown, {}, error.message, hint)
        else:
            values |= found
            explained[name] = Explained(shown, found)
    return {name: explained[name] for name in metrics}


def combine(metrics: Mapping[str, MetricFile], runs: Sequence[Values]) -> Values:
    """Return every metric of a trial of several runs. A rate that is better higher is all work over
    all time, which for runs of equal work is the harmonic mean; a number of samples is their sum;
    anything else the mean. The trial lacks a metric if one run lacks it. The error that one run
    estimates for its rate does not apply to several."""
    if not runs:
        raise BrokenError("the trial has no runs")
    if len(runs) == 1:
        return dict(runs[0])
    keys = [
        key
        for key in dict.fromkeys(key for run in runs for key in run)
        if base_name(key) != "batch_error"
    ]
    lacking = "a run has no such value."
    return {key: _combined(key, [run.get(key, lacking) for run in runs]) for key in keys}


def readings(values: Values) -> Iterator[Reading]:
    """Yield samples, and unavailable metrics, from a trial's values."""
    for key, value in values.items():
        if isinstance(value, str):
            yield Unavailable(metric=key, reason=value)
        else:
            yield Sample(
                metric=base_name(key),
                value=value.value,
                unit=value.unit,
                better=value.better,
                labels=value.labels,
                source=value.source,
            )


def operations_of(file: ReadingFile, runs: Sequence[Output]) -> list[float]:
    """Return the operations of each run. Raises BrokenError."""
    found = []
    for run in Run.of([file], runs):
        try:
            found.append(run.operations(file))
        except NoValueError as error:
            raise BrokenError(f"{source_of(file.source)}: operations: {error}") from error
        except BrokenError as error:
            said = f"{source_of(file.source)}: operations: {error.message}"
            raise BrokenError(said, hint=error.hint) from error
    return found


def total_operations(file: ReadingFile | None, runs: Sequence[Output]) -> float | None:
    """Return the operations of all runs; None if no reader is declared. Raises BrokenError."""
    return None if file is None else sum(operations_of(file, runs))


def told_rates(
    metrics: Mapping[str, MetricFile], made: str, outputs: Sequence[Output]
) -> list[float] | None:
    """Return the rates of the windows in a warm-up's runs that the reader of metric `made` reports;
    None if it reports one for each run. Raises BrokenError."""
    found: list[float] = []
    for metric in needed_for(metrics, made).values():
        for run in Run.of([metric], outputs):
            rates = run.rates(metric)
            if rates is None:
                return None
            found += rates
    return found


def windows_in(file: ReadingFile, output: Output, *, skip_s: float = 0.0) -> list[RateWindow]:
    """Return the windows of one run, without those that began in the first `skip_s`. Raises
    BrokenError."""
    (run,) = Run.of([file], [output])
    try:
        windows = windows_of(file, run)
    except NoValueError as error:
        raise BrokenError(f"{source_of(file.source)}: windows: {error}") from error
    except BrokenError as error:
        said = f"{source_of(file.source)}: windows: {error.message}"
        raise BrokenError(said, hint=error.hint) from error
    begun_s, kept = 0.0, []
    for window in windows:
        if begun_s >= skip_s - 1e-9:
            kept.append(window)
        begun_s += window.seconds
    return kept


def matches_in(patterns: Sequence[str], *outputs: Output) -> dict[str, str]:
    """Return the first line that each pattern matches in stdout or stderr of any run, without
    patterns that match nothing (`absent`, `explain`). Raises BrokenError for a pattern that takes
    too long."""
    files = [SourceFile.model_validate({"from": f, "regex": p}) for p in patterns for f in _PRINTED]
    found: dict[str, str] = {}
    for run in Run.of(files, outputs):
        for file in files:
            assert file.regex is not None
            if line := run.first_line(file):
                found.setdefault(file.regex, line)
    return found


_PRINTED = ("stdout", "stderr")


def _read(metrics: Mapping[str, MetricFile], run: Run) -> Values:
    values: Values = {}
    for name in _in_order(metrics):
        try:
            values |= _one(name, metrics[name], run, values)
        except LabctlError as error:
            said = f"{_place(metrics[name])}metric '{name}': {error.message}"
            raise BrokenError(said, hint=error.hint) from error
    return values


def _place(metric: MetricFile) -> str:
    """Return the raw file of a metric for errors; a reader of one program's report names it."""
    return f"{source_of(metric.source)}: " if metric.reader is None and metric.given() else ""


def _one(name: str, metric: MetricFile, run: Run, values: Values) -> Values:
    try:
        return run.read(name, metric, values)
    except NoValueError as error:
        return dict.fromkeys(names_of(name, metric), str(error))


def _in_order(metrics: Mapping[str, MetricFile]) -> list[str]:
    """Return the names ordered so that each formula comes after its operands."""
    ordered: list[str] = []
    left = list(metrics)
    while left:
        known = {made for one in ordered for made in names_of(one, metrics[one])}
        ready = [one for one in left if used_names(metrics[one]) <= known]
        if not ready:
            raise UsageError(f"the formula of metric '{left[0]}' uses itself, or no metric")
        ordered += ready
        left = [one for one in left if one not in ready]
    return ordered


def _combined(key: str, found: Sequence[Value | str]) -> Value | str:
    values = [one for one in found if not isinstance(one, str)]
    if len(values) < len(found):
        return next(one for one in found if isinstance(one, str))
    first = values[0]
    numbers = np.array([one.value for one in values])
    if any(one.unit is not first.unit for one in values):
        return "its runs have different units."
    row = metric_of(base_name(key))
    if row is not None and row.samples:
        number = float(numbers.sum())
    elif first.unit in _RATES and first.better == "higher":
        number = 0.0 if (numbers <= 0).any() else len(numbers) / float((1 / numbers).sum())
    else:
        number = float(numbers.mean())
    return Value(number, first.unit, first.better, first.source, first.labels)
