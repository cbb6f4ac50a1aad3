"""Read the metrics of a declared workload from the output of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from labctl.base.errors import BrokenError
from labctl.base.templates import evaluate
from labctl.store.samples import Reading, sample
from labctl.store.trial import TrialFolder
from labctl.workloads import loops
from labctl.workloads.metric_file import (
    combine,
    matches_in,
    needed_for,
    operations_of,
    read_runs,
    readings,
    told_rates,
    told_with,
    total_operations,
    windows_in,
)
from labctl.workloads.readers.declaration import ReadingFile
from labctl.workloads.readers.output import Output, decoded
from labctl.workloads.readers.run import source_of
from labctl.workloads.readers.value import Values
from labctl.workloads.windows import RateWindow, batch_errors
from labctl.workloads.workload_file import DeclaredFile

STDOUT = "stdout.txt"
STDERR = "stderr.txt"
RUNNER = "runner.json"


class _Stored:
    """Read the output of a trial's only run; only the files that metrics need must exist."""

    def __init__(self, raw: TrialFolder) -> None:
        self._raw = raw

    @cached_property
    def stdout(self) -> str:
        return decoded(self._raw.read_text(STDOUT))

    @cached_property
    def stderr(self) -> str:
        return decoded(self._raw.read_text(STDERR))

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        folder = self._raw.path / "files"
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*"))}


def readings_of(
    file: DeclaredFile, raw: TrialFolder, parameters: Mapping[str, object], rate: str | None
) -> Iterator[Reading]:
    """Yield every metric of a trial. `rate`: the metric of operations per second. Raises
    BrokenError naming the raw file, also for runs that failed without a status."""
    runs = stored_runs(file, raw)
    try:
        yield from _readings(file, raw, runs, parameters, rate)
    except BrokenError as error:
        place = "" if str(raw.path) in error.message else f"{raw.path}: "
        raise BrokenError(f"{place}{error.message}", hint=error.hint) from error


def _readings(
    file: DeclaredFile,
    raw: TrialFolder,
    runs: Sequence[Output],
    parameters: Mapping[str, object],
    rate: str | None,
) -> Iterator[Reading]:
    check_outputs(file, runs)
    metrics = told_with(file.metrics, parameters)
    values = read_runs(metrics, runs, skip_s=file.trial.skip_s)
    yield from readings(combine(metrics, values))
    operations = _operations(file, runs, parameters)
    source = _source(file.operations)
    if operations is not None and operations <= 0:
        raise BrokenError(f"{source}: the program did no operations")
    if operations is not None:
        yield sample("operations", operations, source=source)
    if file.times:
        yield from _of_runner(raw, len(runs), operations if file.trial.work is not None else None)
    if rate is not None:
        windows = _windows(file, rate, runs, values)
        yield from batch_errors(windows, rate, _source(file.windows))


def operations_in(
    file: DeclaredFile,
    rate: str | None,
    runs: tuple[str, str, Mapping[str, bytes]],
    parameters: Mapping[str, object],
    seconds: float,
) -> float:
    """Return the operations of a program that ran for `seconds`: by its own count, else by its
    rate. `runs`: their standard output, standard error, and files.

    Raises BrokenError if these have neither.
    """
    outputs = _runs(file, *runs)
    check_outputs(file, outputs)
    operations = _operations(file, outputs, parameters)
    if operations is not None:
        return operations
    needed = needed_for(told_with(file.metrics, parameters), rate) if rate is not None else {}
    if rate is None or not needed:
        raise BrokenError("the workload declares neither operations nor a rate")
    value = combine(needed, read_runs(needed, outputs))[rate]
    if isinstance(value, str):
        raise BrokenError(f"'{rate}': {value}")
    return value.value * seconds


def _operations(
    file: DeclaredFile, runs: Sequence[Output], parameters: Mapping[str, object]
) -> float | None:
    """Return the operations of all runs; None if the declaration has none."""
    if file.operations is None and file.trial.work is not None:
        return len(runs) * work_of(file, parameters)
    return total_operations(file.operations, runs)


def window_rates_of(
    file: DeclaredFile, rate: str | None, stdout: str, files: Mapping[str, bytes]
) -> list[float]:
    """Return operations per second of each window of a warm-up command; [] if no metric is one, or
    only labctl's own clock could measure it."""
    runs = _runs(file, stdout, None, files)
    check_outputs(file, runs)
    if file.windows is not None:
        windows = [window for run in runs for window in windows_in(file.windows, run)]
        if not windows:
            raise BrokenError(f"{_source(file.windows)}: it has no windows")
        return [window.operations / window.seconds for window in windows]
    needed = needed_for(file.metrics, rate) if rate is not None else {}
    if rate is None or not needed:
        return []
    told = told_rates(file.metrics, rate, runs)
    if told is not None:
        return told
    found = [values[rate] for values in read_runs(needed, runs)]
    if missing := [why for why in found if isinstance(why, str)]:
        raise BrokenError(f"{STDOUT}: {missing[0]}")
    return [value.value for value in found if not isinstance(value, str)]


def work_of(file: DeclaredFile, parameters: Mapping[str, object]) -> float:
    """Return the operations of one run of fixed work."""
    work = file.trial.work
    if isinstance(work, str):
        return float(evaluate(work, parameters, "trial.work"))
    return float(work or 0)


def stored_runs(file: DeclaredFile, raw: TrialFolder) -> list[Output]:
    """Return the output of each run of a trial. Raises BrokenError naming the raw file."""
    if file.trial.kind != "repeat":
        return [_Stored(raw)]
    stdout, stderr = raw.read_text(STDOUT), raw.read_text(STDERR)
    try:
        return _runs(file, stdout, stderr, {})
    except BrokenError as error:
        raise BrokenError(f"{raw.path}/{error.message}") from error


def check_outputs(file: DeclaredFile, runs: Sequence[Output]) -> None:
    """Raise BrokenError for text that a successful run's output must not contain."""
    for pattern, line in matches_in(file.absent, *runs).items():
        raise BrokenError(f"the output matches '{pattern}', which it must not: {line}")


def _windows(
    file: DeclaredFile, rate: str, runs: Sequence[Output], values: Sequence[Values]
) -> list[RateWindow]:
    """Return the windows for a trial's own variance: those that the program reports, or the runs of
    a repeated one."""
    if file.windows is not None:
        skip_s = file.trial.skip_s
        return [w for run in runs for w in windows_in(file.windows, run, skip_s=skip_s)]
    if file.trial.kind != "repeat" or file.operations is None or rate not in file.metrics:
        return []
    found = []
    counts = operations_of(file.operations, runs)
    for count, of_run in zip(counts, values, strict=True):
        value = of_run[rate]
        if isinstance(value, str) or not count or value.value <= 0:
            return []
        found.append(RateWindow(count / value.value, count))
    return found


def _runs(
    file: DeclaredFile, stdout: str, stderr: str | None, files: Mapping[str, bytes]
) -> list[Output]:
    stdout, stderr = decoded(stdout), None if stderr is None else decoded(stderr)
    begins = file.trial.begins
    try:
        if begins is not None:
            return [
                loops.Output(text, stderr or "") for text in loops.runs_that_begin(begins, stdout)
            ]
        if file.trial.kind == "repeat":
            return [*loops.runs_of(stdout, stderr)]
    except BrokenError as error:
        raise BrokenError(f"{STDOUT}: {error.message}") from error
    return [loops.Output(stdout, stderr or "", files)]


def _source(reading: ReadingFile | None) -> str:
    """Return the raw file that something is read from."""
    return STDOUT if reading is None else source_of(reading.source)


def _of_runner(raw: TrialFolder, runs: int, operations: float | None) -> Iterator[Reading]:
    """Yield metrics from the runner's own clock and the kernel's CPU accounts. `operations`: of
    fixed work; None if there is none."""
    told: Any = raw.read_json(RUNNER)
    try:
        seconds = float(told["duration_s"])
        user_s, system_s = float(told["rusage"]["utime_s"]), float(told["rusage"]["stime_s"])
        cpu_s = user_s + system_s + float(told.get("servers_s", 0.0))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenError(f"{RUNNER}: expected a duration and a CPU time") from error
    if not 0 < seconds < float("inf"):
        raise BrokenError(f"{RUNNER}: a duration of {seconds} s")
    yield sample("elapsed", seconds / runs, source=RUNNER)
    yield sample("user_s", user_s, source=RUNNER)
    yield sample("system_s", system_s, source=RUNNER)
    yield sample("cpu_use", cpu_s / seconds, source=RUNNER)
    if operations is not None:
        yield sample("work_per_s", operations / seconds, source=RUNNER)
