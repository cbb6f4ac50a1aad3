"""Check whether a run's files are unchanged since its trials wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from labctl.base.errors import BrokenError, DifferenceError
from labctl.base.wording import counted
from labctl.store.digests import RECORD, SAMPLES
from labctl.store.records.run_record import RedactedCopy
from labctl.store.run_folder import RunFolder
from labctl.store.trial import TrialFolder, TrialRecord
from labctl.trace import files


@dataclass(frozen=True, slots=True)
class Difference:
    """Describe a changed file. `trial`: its folder, "-" for a file of the run."""

    trial: str
    file: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Report on a run's files. `trials`: attempts that were checked, including those
    `without_digests`."""

    trials: int
    without_digests: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "trials": self.trials,
            "without_digests": self.without_digests,
            "differences": [asdict(one) for one in self.differences],
            "notes": list(self.notes),
        }


def check_asked(folder: RunFolder, study_digest: str | None, seed: int | None) -> None:
    """Raise DifferenceError if a run is not of that study or seed; None: of any."""
    plan = folder.read_plan()
    if study_digest is not None and plan.study_digest != study_digest:
        raise DifferenceError(
            f"{folder.name} measured another study: expected digest {study_digest[:12]}…, "
            f"got {str(plan.study_digest)[:12]}…",
            hint="Install the same labctl and the same tuning files on every host.",
        )
    if seed is not None and plan.seed != seed:
        raise DifferenceError(
            f"{folder.name} measured with another seed: expected {seed}, got {plan.seed}"
        )


def verify(folder: RunFolder) -> Verified:
    """Read every file of the run's trials. Raises UsageError if a newer labctl wrote one."""
    seen = without = 0
    notes: list[str] = []
    run = folder.load()
    if said := run.run.redacted:
        notes.append(_redacted(said))
    differences: list[Difference] = []
    for trial in folder.trial_folders():
        if not trial.has_record:
            notes.append(f"Trial {trial.path.name} was interrupted: it has no {RECORD}.")
            continue
        seen += 1
        try:
            record = trial.read_record()
            if record.digests is None:
                without += 1
                continue
            differences += _changed(trial, record, notes)
        except BrokenError as error:
            differences.append(Difference(trial.path.name, "", error.message))
    # A report checks these as well: plan, extensions, each trial's place in them.
    said_twice = {*_left_out_for(folder, differences)}
    found = [
        Difference("-", "", problem)
        for problem in run.problems
        if not problem.startswith(tuple(said_twice))
    ]
    return Verified(
        trials=seen,
        without_digests=without,
        differences=(*found, *differences),
        notes=tuple(notes),
    )


def _left_out_for(folder: RunFolder, differences: Sequence[Difference]) -> Iterator[str]:
    """Yield the beginnings of a report's messages that repeat one of the differences."""
    for one in differences:
        path = folder.path / "trials" / one.trial / one.file
        said = one.what if not one.file else f"{path} "
        yield f"trial {one.trial} is left out: {said}"


def _changed(trial: TrialFolder, record: TrialRecord, notes: list[str]) -> Iterator[Difference]:
    name, then, now = trial.path.name, record.digests, trial.digests()
    if then is None:
        return
    if record.reparsed:
        by = f"Trial {name} was parsed again at {record.reparsed.at}"
        notes.append(f"{by} by labctl {record.reparsed.labctl}.")
    if then.samples != now.samples:
        yield Difference(name, SAMPLES, _what(then.samples, now.samples))
    traces = f"{files.FOLDER}/"
    removed = not any(raw.startswith(traces) for raw in now.raw)
    for raw in then.changed_raw(now):
        if removed and raw.startswith(traces):
            continue  # docs/tracing.md: a report needs none of it
        yield Difference(name, raw, _what(then.raw.get(raw), now.raw.get(raw)))
    if removed and any(raw.startswith(traces) for raw in then.raw):
        notes.append(f"Trial {name} no longer has {traces}.")


def _redacted(said: RedactedCopy) -> str:
    left_out = f"; {counted(said.left_out, 'file')} are left out" if said.left_out else ""
    return (
        f"This is a redacted copy, made by labctl {said.labctl} at {said.at}{left_out}. Its "
        "digests match the copy."
    )


def _what(then: str | None, now: str | None) -> str:
    if now is None:
        return "is gone"
    return "did not exist at the end of the trial" if then is None else "was changed"
