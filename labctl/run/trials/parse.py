"""Parse a trial's raw files to its readings. Reads nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from labctl import __version__
from labctl.base.errors import BrokenError
from labctl.collect import (
    calibrated,
    derived,
    exits,
    foreign_cpu,
    guest_trace,
    host_cpus,
    host_threads,
    host_trace,
    kvm_stats,
    nested,
    page_faults,
    perf_stat,
    side,
)
from labctl.run.collectors.counting import PROBLEM
from labctl.run.contained import contained
from labctl.store.digests import Digests
from labctl.store.run_folder import RunFolder
from labctl.store.samples import Reading, Sample
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus
from labctl.trace.timeline.recordings import Traces
from labctl.workloads.neighbour import neighbour_readings
from labctl.workloads.registry import workload


def parse_trial(folder: TrialFolder, record: TrialRecord) -> list[Reading]:
    """Return every metric of a trial, or why it is unavailable; raises BrokenError naming the
    file."""
    with contained(folder, "parsing its files"), believable(str(folder.path)):
        readings = _readings(folder, record)
    for reading in readings:
        if isinstance(reading, Sample) and not math.isfinite(reading.value):
            raise BrokenError(
                f"{folder.path / reading.source}: {reading.key} would be {reading.value}"
            )
    return readings


@contextmanager
def believable(where: str) -> Iterator[None]:
    """Raise BrokenError for numbers that parsers can't count with: what a guest writes may have
    thousands of digits, or be beyond a float."""
    try:
        yield
    except (ArithmeticError, ValueError) as error:
        raise BrokenError(f"{where}: a number of a tool's can't be: {error}") from error


def _readings(folder: TrialFolder, record: TrialRecord) -> list[Reading]:
    try:
        program = workload(record.parsed_with["program"])
        kind = record.parsed_with["kind"]
        accelerator = record.parsed_with["accelerator"]
    except KeyError as error:
        raise BrokenError(f"{folder.path / 'trial.json'} does not say {error}") from error
    # First: what a tool that failed at once leaves elsewhere is a riddle beside its own output.
    own = list(program.parse(folder))
    readings: list[Reading] = [*own]
    readings += program.periods(folder, record.parsed_with.get("parameters") or {})
    host = list(host_threads.parse(folder))
    readings += host
    readings += foreign_cpu.parse(folder)
    readings += host_cpus.parse(folder)
    readings += page_faults.parse(folder)
    readings += side.parse(folder, kind=kind, accelerator=accelerator)
    readings += kvm_stats.parse(folder, accelerator=accelerator)
    traces = Traces(folder)
    readings += host_trace.parse(traces)
    readings += guest_trace.parse(traces, kind=kind)
    readings += nested.parse(
        traces, program=program.name, kind=kind, accelerator=accelerator, own=own
    )
    readings += exits.parse(folder)
    readings += derived.net_readings(readings, kind=kind)
    readings += neighbour_readings(folder, host)
    problem = folder.read_text(PROBLEM) if folder.has(PROBLEM) else None
    readings += perf_stat.parse(folder, kind=kind, problem=problem)
    readings += calibrated.parse(
        folder,
        readings,
        calibratable=program.calibratable,
        rate_metric=program.rate_metric,
        kind=kind,
    )
    # Last: it divides what the others found.
    readings += derived.per_operation_readings(readings, rate_metric=program.rate_metric, kind=kind)
    return readings


def reparse(folder: RunFolder) -> tuple[int, list[str]]:
    """Write the samples of every valid trial anew from its raw files, and the digests; its record
    says so, and which raw files were others by then.

    Returns how many were written, and a sentence for each trial that can't be parsed any more:
    its samples stay as they were.
    """
    written = 0
    problems = []
    for trial in folder.trial_folders():
        try:
            record = trial.read_record()
            if record.status is not TrialStatus.DONE:
                continue
            _check_whole(trial, record)
            before, readings = trial.digests(), parse_trial(trial, record)
            trial.write_readings(readings)
            # Until its record is written, an interrupted one is left out of reports, not believed.
            trial.write_record(_renewed(trial, record, before))
            written += 1
        except BrokenError as error:
            problems.append(error.message)
    return written, problems


def _check_whole(trial: TrialFolder, record: TrialRecord) -> None:
    """Raise BrokenError for a trial whose recordings a redacted copy of its run has not."""
    if record.redacted and (left_out := record.redacted["left_out"]):
        raise BrokenError(
            f"{trial.path} is of a redacted copy, without {', '.join(left_out)}: its samples stay"
        )


def _renewed(trial: TrialFolder, record: TrialRecord, before: Digests) -> TrialRecord:
    # What an earlier reparse found changed stays said.
    changed = set(record.reparsed["changed"]) if record.reparsed else set()
    if record.digests:
        changed |= set(record.digests.changed_raw(before))
    return replace(
        record,
        digests=trial.digests(),
        reparsed={
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "labctl": __version__,
            "changed": sorted(changed),
        },
    )
