"""List a run's traced trials, and describe the trial of a page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labctl.analysis.times import level_of
from labctl.base.errors import BrokenError, UsageError
from labctl.base.notation import quantity
from labctl.base.tuning import Level
from labctl.base.units import Unit
from labctl.base.wording import counted, place_in_words
from labctl.report.timeline.timeline_page import About
from labctl.store.run_folder import LoadedRun, LoadedTrial, RunFolder
from labctl.store.run_places import all_runs
from labctl.store.samples import Reading, Sample
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.files import GUEST_TRACE, HOST_TRACE, noted_problem

_WORST = "latency_max"
_SIDES = {HOST_TRACE: "the host's side", GUEST_TRACE: "the guest's side"}
_NAME = re.compile(r"0*(\d{1,9})(?:\.([1-9]\d{0,8}))?")


@dataclass(frozen=True, slots=True)
class Traced:
    """Describe a trial that has a trace. `name`: as commands take it ("12", "12.2"). `worst_s`: its
    largest latency, None if its workload does not measure latency."""

    name: str
    trial: LoadedTrial
    worst_s: float | None

    @property
    def has_both_sides(self) -> bool:
        """Return whether the trace also has a guest's scheduler; a native trial's has only one."""
        return self.trial.folder.has(files.GUEST)

    @property
    def worst(self) -> str:
        """Return the worst latency in words."""
        return quantity(self.worst_s, Unit.SECONDS)

    def to_json(self) -> dict[str, object]:
        record = self.trial.record
        return {
            "trial": record.number,
            "attempt": record.attempt,
            "cell": dict(record.cell),
            "block": record.block,
            "status": str(record.status),
            "latency_max_s": self.worst_s,
        }


def traced(run: LoadedRun) -> list[Traced]:
    """Return the trials that have a trace, those with the largest latency first."""
    found = [
        Traced(trial_name(trial.record.number, trial.record.attempt), trial, _worst(trial))
        for trial in run.trials
        if files.has_trace(trial.folder)
    ]
    return sorted(found, key=lambda one: -(one.worst_s or 0.0))


def with_traces(results: Path) -> list[str]:
    """Return the names of the runs in a folder that have a traced trial, the newest first."""
    found = (folder for folder in reversed(all_runs(results)))
    return [run.name for run in found if any(map(files.has_trace, run.trial_folders()))]


def why_untraced(run: LoadedRun) -> str:
    """Return why no trial of a run has a trace, as a sentence."""
    if any(was_traced(trial.readings) for trial in run.trials):
        return f"The traces of {run.name} were removed; only its numbers are left."
    if level_of(run) != Level.TRACE:
        return (
            f"{run.name} recorded no traces: it collected at level '{level_of(run)}'. "
            "'labctl sweep STUDY --collect trace' records them."
        )
    told = (told for trial in run.trials for told in recorders_said(trial.folder))
    if first := next(told, None):
        return f"No trial of {run.name} could be traced. {first}"
    return f"No trial of {run.name} has a trace, although traces were requested."


def was_traced(readings: Iterable[Reading]) -> bool:
    """Return whether any of a trial's numbers is from its trace."""
    sources = (files.HOST, files.GUEST)
    return any(isinstance(one, Sample) and one.source in sources for one in readings)


def trial_name(number: int, attempt: int) -> str:
    return f"{number}.{attempt}" if attempt > 1 else str(number)


def find(folder: RunFolder, name: str) -> TrialFolder:
    """Return the trial "12" (its last attempt) or "12.2" (its second attempt); raises UsageError if
    it does not exist or has no trace."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(
            f"'{name}' is not a trial",
            hint="Give its number, such as 12, or 12.2 for its second attempt.",
        )
    number, attempt = int(match[1]), match[2]
    attempts = _attempts(folder.trial_folders())
    if number not in attempts:
        known = f"{min(attempts)} to {max(attempts)}" if attempts else "none yet"
        raise UsageError(f"{folder.name} has no trial {number}", hint=f"Its trials: {known}.")
    chosen = max(attempts[number]) if attempt is None else int(attempt)
    if chosen not in attempts[number]:
        made = counted(len(attempts[number]), "attempt")
        raise UsageError(f"trial {number} of {folder.name} has {made}, but no attempt {chosen}")
    trial = folder.trial(number, chosen)
    if not files.has_trace(trial):
        raise _no_trace(folder, trial, trial_name(number, chosen))
    return trial


def about(folder: RunFolder, trial: TrialFolder) -> About:
    """Raise UsageError if a trial was not finished, BrokenError if its record can't be read."""
    if not trial.has_record:
        raise UsageError(
            f"trial {trial.path.name.lstrip('0')} of {folder.name} was not finished",
            hint=f"'labctl sweep --resume {folder.name}' repeats it.",
        )
    record = trial.read_record()
    cell = record.cell
    name = trial_name(record.number, record.attempt)
    facts = [("block", str(record.block)), ("status", str(record.status))]
    for factor, level in cell.items():
        if factor not in ("tuning", "workload", "condition"):
            facts.append((factor, level))
    return About(
        run=folder.name,
        trial=record.number,
        attempt=record.attempt,
        title=f"{cell.get('tuning', '?')}, "
        + place_in_words(cell.get("workload", "?"), cell.get("condition", "?")),
        facts=tuple(facts),
        command=f"labctl timeline {folder.name} {name}",
    )


def _attempts(folders: Iterable[TrialFolder]) -> dict[int, set[int]]:
    """Return the attempts by number."""
    found: dict[int, set[int]] = {}
    for folder in folders:
        match = _NAME.fullmatch(folder.path.name)
        if match:
            found.setdefault(int(match[1]), set()).add(int(match[2] or 1))
    return found


def _worst(trial: LoadedTrial) -> float | None:
    values = [
        reading.value
        for reading in trial.readings
        if isinstance(reading, Sample) and reading.metric == _WORST
    ]
    return max(values, default=None)


def recorders_said(trial: TrialFolder) -> list[str]:
    """Return why the sides of a trial have no trace, one sentence each."""
    try:
        said = {side: noted_problem(trial, recorder) for recorder, side in _SIDES.items()}
    except BrokenError as error:
        return [f"{files.PROBLEMS}: {error.message}"]
    return [f"{side}: {why}" for side, why in said.items() if why is not None]


def _no_trace(folder: RunFolder, trial: TrialFolder, name: str) -> UsageError:
    """Explain a missing trace, with the recorders' messages if any."""
    message = f"trial {name} of {folder.name} has no trace"
    lists = f"'labctl timeline {folder.name}' lists the traced trials."
    if told := recorders_said(trial):
        return UsageError(f"{message}: {'; '.join(told)}", hint=lists)
    if _lost_its_trace(trial):
        return UsageError(f"the trace of trial {name} of {folder.name} was removed", hint=lists)
    record = "'labctl sweep STUDY --collect trace' records one of each trial"
    return UsageError(message, hint=f"{record}; {lists}")


def _lost_its_trace(trial: TrialFolder) -> bool:
    try:
        return was_traced(trial.read_readings())
    except BrokenError:
        return False
