"""Parse a trial's raw files into its readings. Reads nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from labctl import __version__
from labctl.base.errors import BrokenError, LabctlError, UsageError
from labctl.collect.collector import NeighbourWork, RawTrial
from labctl.collect.neighbour import RAW
from labctl.collect.table import SOURCES
from labctl.run.contained import contained
from labctl.store.digests import Digests
from labctl.store.run_folder import RunFolder
from labctl.store.samples import Reading, Sample
from labctl.store.trial import Reparsed, TrialFolder, TrialRecord, TrialStatus
from labctl.trace.timeline.recordings import Traces
from labctl.workloads.beside import Beside
from labctl.workloads.registry import defined

# Read the neighbours' work from their files.


def work_of_neighbours(folder: TrialFolder, record: TrialRecord) -> list[NeighbourWork]:
    """Return the work of each neighbour of a trial; [] without any, and for files of a labctl that
    knew only one kind. Raises BrokenError for an incomplete file."""
    if not folder.has(RAW):
        return []
    data = folder.read_json(RAW)
    if isinstance(data, dict) and "hogs" in data:
        return []
    try:
        declared = record.parsed_with["neighbours"]
        return [_work(declared[row["kind"]], row) for row in data["neighbours"]]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise BrokenError(
            f"{folder.path / RAW}: expected a record of neighbours ({error!r})"
        ) from error


def _work(declared: Mapping[str, Any], row: Mapping[str, Any]) -> NeighbourWork:
    cpu_s, seconds = float(row["cpu_s"]), float(row["seconds"])
    if not (0 <= cpu_s < float("inf") and 0 <= seconds < float("inf")):
        raise ValueError("not a time")
    name = str(declared["program"])
    operations, problem = None, ""
    if row["was_killed"]:
        problem = f"'{name}' had to be killed during a run, so the run's output is incomplete."
    else:
        try:
            beside = Beside.of(
                name, declared["definition"], declared["parameters"], declared["run_s"]
            )
            files = {key: text.encode() for key, text in row["files"].items()}
            operations = beside.operations(row["stdout"], row["stderr"], files, seconds)
        except LabctlError as error:
            problem = f"cannot read the results of the neighbour '{name}': {error.message}"
    return NeighbourWork(workload=name, cpu_s=cpu_s, operations=operations, problem=problem)


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
    """Raise BrokenError for numbers that parsers cannot compute with: a guest may write thousands
    of digits, or a number beyond a float."""
    try:
        yield
    except (ArithmeticError, ValueError) as error:
        raise BrokenError(f"{where}: a tool printed an impossible number: {error}") from error


def _readings(folder: TrialFolder, record: TrialRecord) -> list[Reading]:
    told = record.parsed_with
    try:
        program = defined(told["program"], told.get("definition"))
        program = program.with_parameters(told.get("parameters") or {})
        kind, accelerator = told["kind"], told["accelerator"]
    except KeyError as error:
        raise BrokenError(f"{folder.path / 'trial.json'} does not say {error}") from error
    except UsageError as error:
        raise BrokenError(f"{folder.path / 'trial.json'}: {error.message}") from error
    # First, because the output explains the other files of a tool that failed at once.
    own = list(program.parse(folder))
    trial = RawTrial(
        folder=folder,
        traces=Traces(folder),
        kind=kind,
        accelerator=accelerator,
        program=program.name,
        calibratable=program.calibratable,
        rate_metric=program.rate_metric,
        own=own,
        neighbours=work_of_neighbours(folder, record),
        readings=list(own),
    )
    for source in SOURCES:
        # All of its readings, before the next source looks at them.
        trial.readings.extend(list(source.parse(trial)))
    return trial.readings


def reparse(folder: RunFolder) -> tuple[int, list[str]]:
    """Write the samples of every valid trial again from its raw files, and the digests. The trial's
    record notes this, and which raw files had changed by then.

    Returns how many were written, and a sentence for each trial that can no longer be parsed. Such
    a trial is invalid from then on, as one whose output cannot be read when it ends, until a later
    reparse can: its samples stay and do not count. Only trials of a redacted copy stay valid
    without their recordings.
    """
    written = 0
    problems = []
    for trial in folder.trial_folders():
        try:
            record = trial.read_record()
            if record.status is not TrialStatus.DONE and not _was_made_invalid(record):
                continue
            _check_whole(trial, record)
        except BrokenError as error:
            problems.append(error.message)
            continue
        before = trial.digests()
        try:
            readings = parse_trial(trial, record)
        except BrokenError as error:
            problems.append(error.message)
            trial.write_record(_renewed(trial, record, before, error.message))
            continue
        trial.write_readings(readings)
        # Until its record is written, an interrupted one is left out of reports.
        trial.write_record(_renewed(trial, record, before))
        written += 1
    return written, problems


def _was_made_invalid(record: TrialRecord) -> bool:
    return record.reparsed is not None and record.reparsed.invalid


def _check_whole(trial: TrialFolder, record: TrialRecord) -> None:
    """Raise BrokenError for a trial whose recordings are missing because its run is a redacted
    copy."""
    if record.redacted and (left_out := record.redacted.left_out):
        raise BrokenError(
            f"{trial.path} is of a redacted copy, without {', '.join(left_out)}: its samples stay"
        )


def _renewed(
    trial: TrialFolder, record: TrialRecord, before: Digests, problem: str = ""
) -> TrialRecord:
    """Return the record after a reparse; `problem`: why the raw files can't be parsed."""
    # Changes that an earlier reparse found stay recorded.
    changed = set(record.reparsed.changed) if record.reparsed else set()
    if record.digests:
        changed |= set(record.digests.changed_raw(before))
    return replace(
        record,
        status=TrialStatus.INVALID if problem else TrialStatus.DONE,
        reasons=(problem,) if problem else (),
        digests=trial.digests(),
        reparsed=Reparsed(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            labctl=__version__,
            changed=tuple(sorted(changed)),
            invalid=bool(problem),
        ),
    )
