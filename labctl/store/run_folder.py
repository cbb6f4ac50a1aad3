"""Read and write a run's folder in `results/`: run.json, plan.json, facts, trials."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from labctl.base.errors import BrokenError, UsageError
from labctl.base.held import held
from labctl.base.yamlfile import nearest
from labctl.store.extended import carried_out, unlike
from labctl.store.fitting_plan import Fits, without_digests
from labctl.store.index import AttemptRow, Fingerprint, read_index, write_index
from labctl.store.jsonfile import canonical, newer, read_json, write_json
from labctl.store.readings import Kinds
from labctl.store.records.plan_record import ExtensionRecord, PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.records.tolerant import Record, as_far_as_whole
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus

SCHEMA = 1
"""Version of the run folder. A reader refuses a newer one."""
PLAN_SCHEMA = 1
"""Version of plan.json, which `labctl.study.plan` writes."""

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class LoadedTrial:
    record: TrialRecord
    readings: Sequence[Reading]
    folder: TrialFolder


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """Hold everything that analysis and report read. `problems`: damaged or missing parts of the
    folder.

    `plan` has the trials that the run had to carry out: fewer than were planned where its rule
    ended it, more where spares ran or it was extended."""

    name: str
    run: RunRecord
    plan: PlanRecord
    trials: tuple[LoadedTrial, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DamagedTrial:
    """Describe a damaged attempt. Number and attempt come from its folder's name, 0 where that has
    none."""

    folder: str
    number: int
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, results: Path, name: str) -> RunFolder:
        """Return a new run's folder, for its owner alone: it holds what the host and its guests
        said.

        Raises FileExistsError where there is one of that name.
        """
        path = results / name
        results.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
        (path / "trials").mkdir()
        return cls(path)

    @classmethod
    def find(cls, results: Path, name: str) -> RunFolder:
        """Return the run of that name in `results`, or at that path, which has a '/' in it; raises
        UsageError with the nearest name. A bare name never leads into the present folder, where
        another user may have put a run of that name."""
        candidates = [results / name] if "/" not in name else [Path(name), results / name]
        for candidate in candidates:
            if (candidate / "run.json").is_file():
                return cls(candidate.resolve())
        for candidate in candidates:
            if (candidate / "trials").is_dir():
                raise UsageError(
                    f"{candidate} holds trials and no run.json, which makes a folder a run",
                    hint="Copy the whole folder of the run.",
                )
        names = [folder.name for folder in cls.all(results)]
        hint = nearest(name, names)
        if "/" not in name and (Path(name) / "run.json").is_file():
            hint = f"The run in the present folder is './{name}'."
        raise UsageError(f"no run '{name}' in {results}", hint=hint)

    @classmethod
    def all(cls, results: Path) -> list[RunFolder]:
        """Return every run in `results`, sorted by name (names begin with the time of the
        start)."""
        return [cls(path.parent) for path in sorted(results.glob("*/run.json"))]

    def write_run(self, run: RunRecord) -> None:
        """Write run.json, with the keys in the order of the record's fields."""
        data = {"schema": SCHEMA, **run.to_json()}
        write_json(self.path / "run.json", data, below=self.path)

    def read_run(self) -> RunRecord:
        """Return run.json; raises BrokenError naming the first place where it isn't what was
        written."""
        hint = "Put it right, or start a new run."
        return _whole(RunRecord, self._read_record(), self.path / "run.json", hint)

    def _read_record(self) -> dict[str, Any]:
        data = read_json(self.path / "run.json")
        if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
            raise BrokenError(f"{self.path / 'run.json'} is not a run record")
        if data["schema"] > SCHEMA:
            raise newer(self.path / "run.json", data["schema"], SCHEMA)
        return data

    def write_plan(self, plan: PlanRecord) -> None:
        """Write plan.json, with the keys in the order of the record's fields."""
        data = {"schema": PLAN_SCHEMA, **plan.to_json()}
        write_json(self.path / "plan.json", data, below=self.path)

    def read_plan(self) -> PlanRecord:
        """Return plan.json; raises BrokenError where it isn't what was written."""
        return _as_written(PlanRecord, self._read_plan(), self.path / "plan.json")

    def _read_plan(self) -> dict[str, Any]:
        data = read_json(self.path / "plan.json")
        if not isinstance(data, dict) or not isinstance(data.get("trials"), list):
            raise BrokenError(f"{self.path / 'plan.json'} is no plan")
        if isinstance(data.get("schema"), int) and data["schema"] > PLAN_SCHEMA:
            raise newer(self.path / "plan.json", data["schema"], PLAN_SCHEMA)
        return data

    def write_extension(self, data: Mapping[str, Any]) -> None:
        """Write an extension beside the plan and earlier extensions, none of which changes."""
        write_json(self._extensions()[-1], data, below=self.path)

    def read_extensions(self) -> list[ExtensionRecord]:
        """Return what was added to the plan, in order; [] for most runs. Raises BrokenError where
        one isn't what was written."""
        return [
            _as_written(ExtensionRecord, self._read_extension(path), path)
            for path in self._extensions()[:-1]
        ]

    def _extensions(self) -> list[Path]:
        """Return the file of each extension, then that of the one that is yet to be."""
        paths = [self.path / "plan.2.json"]
        while paths[-1].exists():
            paths.append(self.path / f"plan.{len(paths) + 2}.json")
        return paths

    def _read_extension(self, path: Path) -> dict[str, Any]:
        data = read_json(path)
        if not isinstance(data, dict) or not isinstance(data.get("trials"), list):
            raise BrokenError(f"{path} is not an extension of a plan")
        if isinstance(data.get("schema"), int) and data["schema"] > PLAN_SCHEMA:
            raise newer(path, data["schema"], PLAN_SCHEMA)
        return data

    def trial(self, number: int, attempt: int = 1) -> TrialFolder:
        suffix = "" if attempt == 1 else f".{attempt}"
        return TrialFolder(self.path / "trials" / f"{number:04d}{suffix}")

    def new_trial(self, number: int, attempt: int) -> TrialFolder:
        """Return an empty folder for an attempt; what an interrupted one left there is removed."""
        folder = self.trial(number, attempt)
        if folder.path.is_symlink():
            folder.path.unlink()
        elif folder.path.exists():
            shutil.rmtree(folder.path)
        with held(self.path, "trials", make=True) as trials:
            os.mkdir(folder.path.name, dir_fd=trials)
        return folder

    def trial_folders(self) -> Iterator[TrialFolder]:
        """Yield every attempt, by the trial's number: past 9999 names no longer sort as numbers
        do."""
        folders = (
            path
            for path in (self.path / "trials").glob("[0-9]*")
            if path.is_dir() and not path.is_symlink()
        )
        yield from map(TrialFolder, sorted(folders, key=_number_and_attempt))

    def load(self) -> LoadedRun:
        """Return the run as far as it is whole; what can't be read becomes `problems`.

        Raises UsageError when a newer labctl wrote it.
        """
        problems: list[str] = []
        fingerprint = Fingerprint.of(self.path / "trials")
        rows = read_index(self.path, fingerprint)
        indexed = rows is not None
        if rows is None:
            with _no_collecting():
                rows = self._read_trials(problems)
        plan = self._told(self._read_plan, "plan.json", PlanRecord, problems) or PlanRecord()
        run = self._told(self._read_record, "run.json", RunRecord, problems) or RunRecord()
        extensions = [
            self._told(partial(self._read_extension, path), path.name, ExtensionRecord, problems)
            for path in self._extensions()[:-1]
        ]
        problems += unlike(plan, extensions)
        rows = self._fitting(rows, Fits(plan, run, extensions), problems)
        problems += without_digests([row.record for row in rows])
        known, said = _accelerator(row.record for row in rows), run.accelerator
        if known and said is not None and said != known:
            problems.append(
                f"{self.path / 'run.json'} says that its guests ran under {said}, and their trials "
                f"that it was {known}: that is believed"
            )
        # A run that goes on has other files soon, and one that isn't whole is to be seen to.
        if not (indexed or problems or run.status == "running") and fingerprint.is_lasting:
            write_index(self.path, fingerprint, rows)
        folder = self.path / "trials"
        if known and known != run.accelerator:
            run = run.model_copy(update={"accelerator": known})
        trials = (LoadedTrial(r.record, r.readings, TrialFolder(folder / r.folder)) for r in rows)
        plan = carried_out(plan, run, extensions, {row.record.block for row in rows})
        return LoadedRun(self.name, run, plan, tuple(trials), tuple(problems))

    def _read_trials(self, problems: list[str]) -> list[AttemptRow]:
        kinds = Kinds()
        nothing = kinds.pack(())
        rows: list[AttemptRow] = []
        if (self.path / "trials").is_symlink():
            problems.append(f"{self.path / 'trials'} is a link; its trials are left out")
            return rows
        for path in sorted((self.path / "trials").glob("[0-9]*")):
            if path.is_symlink():
                problems.append(f"{path} is a link; it is left out")
        for folder in self.trial_folders():
            try:
                record = folder.read_record()
                readings = nothing
                if folder.has("samples.json") or (record.digests and record.digests.samples):
                    readings = folder.read_readings(kinds, digests=record.digests)
            except BrokenError as error:
                problems.append(f"trial {folder.path.name} is left out: {error.message}")
                continue
            if record.reparsed and (changed := record.reparsed.changed):
                problems.append(
                    f"trial {folder.path.name} was parsed anew from raw files that were changed "
                    f"after it ended: {', '.join(changed)}"
                )
            rows.append(AttemptRow(folder.path.name, record, readings))
        return rows

    def _fitting(
        self, rows: Iterable[AttemptRow], fits: Fits, problems: list[str]
    ) -> list[AttemptRow]:
        """Return the trials that are the plan's; what is left out is named."""
        kept = []
        for row in rows:
            why = fits.problem(row.folder, row.record)
            if why is None:
                kept.append(row)
            else:
                problems.append(f"trial {row.folder} of {self.path} is left out: {why}")
        return kept

    def records(self, plan: PlanRecord) -> tuple[list[TrialRecord], list[DamagedTrial]]:
        """Read the records of the attempts that came to an end, for a run that goes on: those that
        are whole, the plan's, and have the samples that they left, and the others. `plan`: as the
        run carries it out. Raises UsageError when a newer labctl wrote one."""
        fits = Fits(plan, RunRecord(), ())
        whole, damaged = [], []
        for folder in self.trial_folders():
            if not folder.has_record:
                continue
            try:
                record = folder.read_record()
                if record.status is TrialStatus.DONE:
                    folder.check_samples(record.digests)
                why = fits.problem(folder.path.name, record)
            except BrokenError as error:
                why = error.message
            if why is None:
                whole.append(record)
            else:
                number, attempt, _ = _number_and_attempt(folder.path)
                damaged.append(DamagedTrial(folder.path.name, number, attempt, why))
        return whole, damaged

    def _told(
        self, read: Callable[[], dict[str, Any]], name: str, kind: type[R], problems: list[str]
    ) -> R | None:
        try:
            data = read()
        except BrokenError as error:
            problems.append(error.message)
            return None
        record, unfit = as_far_as_whole(kind, data)
        problems += [f"{self.path / name}: {text}; it is left out" for text in unfit]
        if not (isinstance(record, RunRecord) or unfit or _is_as_made(data)):
            problems.append(
                f"{self.path / name} was changed after it was made (its digest is another): what "
                "is judged here need not be what was planned"
            )
        return record

    def remove(self) -> None:
        shutil.rmtree(self.path)


@dataclass(slots=True)
class RunLog:
    """Hold the record of a run that goes on, and write it when it is asked to."""

    folder: RunFolder
    record: RunRecord

    def put(self, **changes: Any) -> None:
        """Change the record. Raises ValueError for what no run.json holds."""
        self.record = self.record.but(**changes)

    def write(self) -> None:
        self.folder.write_run(self.record)


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Pause garbage collection: JSON makes no cycles, and looking for some takes a third of the
    time to read a large run.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _number_and_attempt(path: Path) -> tuple[int, int, str]:
    number, _, attempt = path.name.partition(".")
    whole = number.isdecimal() and (attempt.isdecimal() or not attempt)
    return (int(number), int(attempt or 1), "") if whole else (0, 0, path.name)


def _accelerator(records: Iterable[TrialRecord]) -> str | None:
    """Return what guests ran under by what their trials say, where a run's record has lost it or
    says otherwise: emulation must not pass for virtualization."""
    found = {str(name) for r in records if (name := r.parsed_with.get("accelerator"))}
    return found.pop() if len(found) == 1 else None


def _whole(kind: type[R], data: Mapping[str, Any], path: Path, hint: str) -> R:
    """Return a file's record; raises BrokenError naming the first thing that doesn't fit."""
    record, unfit = as_far_as_whole(kind, data)
    if unfit or record is None:
        raise BrokenError(f"{path} is not whole: {unfit[0]}", hint=hint)
    return record


def _as_written(kind: type[R], data: Mapping[str, Any], path: Path) -> R:
    """Return the record of a plan or an extension, which holds all that its file says; raises
    BrokenError where something of it would be passed over."""
    hint = "A plan can't be edited. Start a new run."
    record = _whole(kind, data, path, hint)
    if record.to_json() != data:
        raise BrokenError(
            f"{path} was changed after it was made: it isn't what labctl wrote", hint=hint
        )
    return record


def _is_as_made(plan: Mapping[str, Any]) -> bool:
    """Return whether a plan's digest is that of all else in it; an old plan may have none."""
    content = {key: value for key, value in plan.items() if key not in ("schema", "digest")}
    digest = plan.get("digest")
    return digest is None or digest == hashlib.sha256(canonical(content).encode()).hexdigest()
