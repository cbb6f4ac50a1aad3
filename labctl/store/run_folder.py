"""Read and write a run's folder in `results/`: run.json, plan.json, facts, trials."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import digits
from tempfile import TemporaryDirectory
from typing import Any

from labctl.base.errors import BrokenError, FileError
from labctl.base.trust import held
from labctl.base.wording import counted
from labctl.store.archive import RunArchive
from labctl.store.index import AttemptRow, Fingerprint, read_index, write_index
from labctl.store.jsonfile import read_json, reading_many, write_json
from labctl.store.records.as_made import (
    PLAN_SCHEMA,
    SCHEMA,
    R,
    as_written,
    is_as_made,
    plan_data,
    run_data,
    whole,
)
from labctl.store.records.plan_record import AddedBlocks, ExtensionRecord, PlannedTrial, PlanRecord
from labctl.store.records.run_record import RunRecord, still_to_run
from labctl.store.records.tolerant import as_far_as_whole
from labctl.store.samples import Kinds, Reading
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus

# Describe a plan as a run carried it out: ended early, with spares, or extended. Pure.


def carried_out(
    plan: PlanRecord,
    run: RunRecord,
    extensions: Sequence[ExtensionRecord | None],
    begun: Collection[int],
) -> PlanRecord:
    """Return the plan with the trials that the run had to do, including its spares that ran, and
    with `extensions`: first and last block of each. None: one that cannot be read.

    `begun`: blocks of which a trial was tried. A run that its rule ended has no spares: it may have
    been extended over their numbers.
    """
    stopped = run.stopped
    whole = [extension for extension in extensions if extension]
    if plan.is_lost or not (stopped or plan.spares or whole or run.looks):
        return plan
    trials, spares = (still_to_run(of, run.looks) for of in (plan.trials, plan.spares))
    if stopped:
        trials = tuple(trial for trial in trials if trial.block <= stopped.blocks)
        spares = ()
    trials += tuple(trial for trial in spares if trial.block in begun)
    for extension in whole:
        trials += extension.trials
    added = tuple(
        AddedBlocks(first_block=one.first_block, last_block=one.last_block) for one in whole
    )
    return plan.but(trials=trials, spares=spares, extensions=added)


def unlike(plan: PlanRecord, extensions: Sequence[ExtensionRecord | None]) -> Iterator[str]:
    """Yield a sentence for each extension that was made for something other than the plan before
    it."""
    before = plan.digest
    for number, extension in enumerate(extensions, start=2):
        extends = extension.extends if extension else None
        if None not in (before, extends) and extends != before:
            yield (
                f"plan.{number}.json does not extend the previous plan: its blocks may "
                "differ from the plan"
            )
        before = extension.digest if extension else None


# Decide which of a run's trials belong to its plan. Pure.


_GUEST, _NATIVE = "guest", "native"

_SHOWN = 10
"""Numbers of trials in one sentence."""


class Fits:
    """Check trials against the plan, its spares and its extensions.

    A run that its rule ended has no spares: it may have been extended over their numbers. The plan
    of an imported run may be that of the run which its trials were exported from: a file without
    their numbers and positions is complete, and only cell and block are checked.
    """

    def __init__(
        self,
        plan: PlanRecord,
        run: RunRecord,
        extensions: Sequence[ExtensionRecord | None],
    ) -> None:
        self._tunings = plan.tunings
        self._imported = bool(run.imported)
        trials = list(plan.trials)
        if stopped := run.stopped:
            trials = [one for one in trials if one.block <= stopped.blocks]
        else:
            trials += plan.spares
        for extension in extensions:
            trials += extension.trials if extension else ()
        # Without a plan, which is a problem of its own, no trial can be checked.
        self._is_known = bool(plan.trials)
        self._planned = {one.number or at: one for at, one in enumerate(trials, start=1)}
        self._places = {(_cell(one.cell), one.block) for one in trials}
        self._done: set[int] = set()
        self._boots: dict[int, Any] = {}

    def problem(self, folder: str, record: TrialRecord) -> str | None:
        """Return why the trial in `folder` is not one of the plan's; None if it is. Call it in the
        order of the trials: of two that exclude each other, the second is the surplus one."""
        if not self._is_known:
            return None
        suffix = "" if record.attempt == 1 else f".{record.attempt}"
        if folder != (own := f"{record.number:04d}{suffix}"):
            return f"it is recorded as {own}"
        if self._imported:
            known = (_cell(record.cell), record.block) in self._places
            return None if known else "the plan has no such cell in that block"
        planned = self._planned.get(record.number)
        if planned is None:
            return "the plan has no trial of that number"
        for key, found, wanted in (
            ("cell", dict(record.cell), planned.cell),
            ("block", record.block, planned.block),
            ("position", record.position, planned.position),
        ):
            if wanted and found != wanted:
                return f"its {key} is {_shown(found)}, but the plan's is {_shown(wanted)}"
        if record.status is TrialStatus.DONE and record.number in self._done:
            return "an earlier attempt at it was already done"
        if (wrong := self._boot_problem(record, planned)) is not None:
            return wrong
        if record.status is TrialStatus.DONE:
            self._done.add(record.number)
        return None

    def _boot_problem(self, record: TrialRecord, planned: PlannedTrial) -> str | None:
        """Check a guest's boot, which is numbered in the order of the boots that were made: a
        resumed run makes the plan's boots again, and tunings that boot for themselves are between
        them. But no boot stands for two of the plan's."""
        wanted = planned.boot
        if not wanted or record.status is not TrialStatus.DONE:
            return None
        arm = self._tunings.get(record.cell.get("tuning", ""))
        kind = arm.kind if arm else _GUEST
        if kind == _NATIVE and record.boot != wanted:
            return f"its boot is {record.boot}, but the plan's is {wanted}"
        if kind == _GUEST and record.restored:
            first = self._boots.setdefault(record.boot, wanted)
            if first != wanted:
                return (
                    f"its boot, {record.boot}, is that of trials of the plan's boot {first}, and "
                    f"the plan has it in boot {wanted}"
                )
        return None


def without_digests(records: Iterable[TrialRecord]) -> Iterator[str]:
    """Name the trials whose samples cannot be checked although labctl computed digests by then. In
    a run that an older labctl began and a newer one resumed, others come before them."""
    done = [one for one in records if one.status is TrialStatus.DONE and one.started_at]
    first = min(
        (str(one.started_at) for one in done if one.digests and not one.reparsed), default=""
    )
    bare = [one.number for one in done if not one.digests and str(one.started_at) > first]
    if first and bare:
        shown = ", ".join(map(str, bare[:_SHOWN])) + (", …" if len(bare) > _SHOWN else "")
        yield (
            f"it is unknown whether the samples of {counted(len(bare), 'trial')} were "
            f"changed ({shown}): their digests were removed"
        )


def _cell(cell: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    # A file of trials may have no conditions.
    return frozenset((k, v) for k, v in cell.items() if k in ("tuning", "workload"))


def _shown(value: object) -> str:
    return " · ".join(value.values()) if isinstance(value, dict) else str(value)


PAGE = "report.html"
"""Name of a run's own page in its folder."""


@dataclass(frozen=True, slots=True)
class LoadedTrial:
    record: TrialRecord
    readings: Sequence[Reading]
    folder: TrialFolder


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """Hold all input of analysis and report. `problems`: damaged or missing parts of the folder.

    `plan` has the trials that the run had to do: fewer than planned if its rule ended it, more if
    spares ran or it was extended."""

    name: str
    run: RunRecord
    plan: PlanRecord
    trials: tuple[LoadedTrial, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DamagedTrial:
    """Describe a damaged attempt. Number and attempt come from its folder's name, 0 if that has
    none."""

    folder: str
    number: int
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Read and write a run; one in an archive is only read."""

    path: Path
    archive: RunArchive | None = field(default=None, compare=False)
    """Archive at `path`, if the run is in one: it is only read."""

    @property
    def name(self) -> str:
        return self.path.name if self.archive is None else self.archive.name

    @classmethod
    def create(cls, results: Path, name: str) -> RunFolder:
        """Return a new run's folder, readable by its owner alone, because it holds output of the
        host and its guests.

        Raises FileExistsError if the name is taken.
        """
        path = results / name
        results.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
        (path / "trials").mkdir()
        return cls(path)

    @classmethod
    def in_archive(cls, path: Path) -> RunFolder:
        """Return the run in an archive."""
        return cls(path, RunArchive(path))

    @contextmanager
    def unpacked(self, under: str = "") -> Iterator[RunFolder]:
        """Yield the run as a folder: itself, or a copy of its archive's content below `under`,
        which only this user can access, and which is removed at the end. Raises BrokenError."""
        if self.archive is None:
            yield self
            return
        with TemporaryDirectory(prefix="labctl-") as made:
            folder = Path(made, self.name)
            folder.mkdir()
            self.archive.unpack(folder, under)
            yield RunFolder(folder)

    def _has(self, name: str) -> bool:
        """Return whether the run has a file of that name beside its trials."""
        if self.archive is not None:
            return self.archive.has(name)
        return (self.path / name).exists()

    def _json(self, name: str) -> Any:
        if self.archive is not None:
            return self.archive.json_and_digest(name)[0]
        return read_json(self.path / name)

    def write_run(self, run: RunRecord) -> None:
        """Write run.json, with the keys in the order of the record's fields."""
        data = {"schema": SCHEMA, **run.to_json()}
        write_json(self.path / "run.json", data, below=self.path)

    def read_run(self) -> RunRecord:
        """Return run.json; raises BrokenError naming the first invalid place."""
        hint = "Correct it, or start a new run."
        return whole(RunRecord, self._read_record(), self.path / "run.json", hint)

    def _read_record(self) -> dict[str, object]:
        return run_data(self._json("run.json"), self.path / "run.json")

    def write_plan(self, plan: PlanRecord) -> None:
        """Write plan.json, with the keys in the order of the record's fields."""
        data = {"schema": PLAN_SCHEMA, **plan.to_json()}
        write_json(self.path / "plan.json", data, below=self.path)

    def read_plan(self) -> PlanRecord:
        """Return plan.json; raises BrokenError if it is invalid."""
        return as_written(PlanRecord, self._read_plan(), self.path / "plan.json")

    def _read_plan(self) -> dict[str, object]:
        return plan_data(self._json("plan.json"), self.path / "plan.json", "no plan")

    def write_extension(self, data: Mapping[str, object]) -> None:
        """Write an extension beside the plan and earlier extensions, which stay unchanged."""
        write_json(self._extensions()[-1], data, below=self.path)

    def read_extensions(self) -> list[ExtensionRecord]:
        """Return the additions to the plan, in order; [] for most runs. Raises BrokenError if one
        is invalid."""
        return [
            as_written(ExtensionRecord, self._read_extension(path), path)
            for path in self._extensions()[:-1]
        ]

    def _extensions(self) -> list[Path]:
        """Return the file of each extension, then that of the next one."""
        paths = [self.path / "plan.2.json"]
        while self._has(paths[-1].name):
            paths.append(self.path / f"plan.{len(paths) + 2}.json")
        return paths

    def _read_extension(self, path: Path) -> dict[str, object]:
        return plan_data(self._json(path.name), path, "not an extension of a plan")

    def trial(self, number: int, attempt: int = 1) -> TrialFolder:
        suffix = "" if attempt == 1 else f".{attempt}"
        return self._trial(f"{number:04d}{suffix}")

    def _trial(self, name: str) -> TrialFolder:
        return TrialFolder(self.path.joinpath("trials", name), self.archive)

    def new_trial(self, number: int, attempt: int) -> TrialFolder:
        """Return an empty folder for an attempt; leftovers of an interrupted one there are
        removed."""
        folder = self.trial(number, attempt)
        if folder.path.is_symlink():
            folder.path.unlink()
        elif folder.path.exists():
            shutil.rmtree(folder.path)
        with held(self.path, "trials", make=True) as trials:
            os.mkdir(folder.path.name, dir_fd=trials)
        return folder

    def trial_folders(self) -> Iterator[TrialFolder]:
        """Yield every attempt, by the trial's number: past 9999 names no longer sort as numbers."""
        yield from map(self._trial, sorted(self._trial_names(), key=_number_and_attempt))

    def _trial_names(self) -> Iterable[str]:
        if self.archive is not None:
            # Only interrupted trials have nothing but raw files, and only in an unfinished run.
            names = self.archive.read_by_reports if self._is_done() else self.archive.names
            return {name.split("/")[1] for name in names if name.startswith("trials/")}
        entries = _attempts(self.path / "trials")
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def _is_done(self) -> bool:
        try:
            return bool(self._read_record().get("status") == "done")
        except BrokenError:
            return False

    def load(self) -> LoadedRun:
        """Return the run as far as it can be read; the rest becomes `problems`.

        Raises UsageError if a newer labctl wrote it.
        """
        problems: list[str] = []
        fingerprint = None if self.archive else Fingerprint.of(self.path / "trials")
        rows = read_index(self.path, fingerprint) if fingerprint else None
        indexed = rows is not None
        if rows is None:
            with reading_many():
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
                f"{self.path / 'run.json'} says that its guests ran under {said}, but their "
                f"trials say {known}, which is used"
            )
        # A running run will soon have other files, and a damaged one needs attention.
        settled = not (indexed or problems or run.status == "running")
        if settled and fingerprint and fingerprint.is_lasting:
            write_index(self.path, fingerprint, rows)
        if known and known != run.accelerator:
            run = run.model_copy(update={"accelerator": known})
        trials = (LoadedTrial(r.record, r.readings, self._trial(r.folder)) for r in rows)
        plan = carried_out(plan, run, extensions, {row.record.block for row in rows})
        return LoadedRun(self.name, run, plan, tuple(trials), tuple(problems))

    def load_planned(self) -> LoadedRun:
        """Return `load` of a run whose plan can be read, because comparisons need it.

        Raises BrokenError with the cause if it cannot, and what `load` raises.
        """
        run = self.load()
        if run.plan.is_lost:
            causes = [text for text in run.problems if "plan.json" in text]
            cause = causes[0] if causes else f"{self.path / 'plan.json'} is missing"
            raise FileError(
                f"the run {self.name} can't be judged: {cause}",
                hint="Copy the run again from its host: 'labctl run verify' lists every file "
                "that differs.",
            )
        return run

    def _read_trials(self, problems: list[str]) -> list[AttemptRow]:
        kinds = Kinds()
        nothing = kinds.pack(())
        rows: list[AttemptRow] = []
        if (self.path / "trials").is_symlink():
            problems.append(f"{self.path / 'trials'} is a link; its trials are left out")
            return rows
        links = [entry.path for entry in _attempts(self.path / "trials") if entry.is_symlink()]
        problems += [f"{path} is a link; it is left out" for path in sorted(links)]
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
                    f"trial {folder.path.name} was parsed again from raw files that changed "
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
        """Read the records of complete attempts, to resume a run: those that are valid, in the
        plan, and still have their samples, and the others. `plan`: as the run carries it out.
        Raises UsageError if a newer labctl wrote one."""
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
                number, attempt, _ = _number_and_attempt(folder.path.name)
                damaged.append(DamagedTrial(folder.path.name, number, attempt, why))
        return whole, damaged

    def _told(
        self, read: Callable[[], dict[str, object]], name: str, kind: type[R], problems: list[str]
    ) -> R | None:
        try:
            data = read()
        except BrokenError as error:
            problems.append(error.message)
            return None
        record, unfit = as_far_as_whole(kind, data)
        problems += [f"{self.path / name}: {text}; it is left out" for text in unfit]
        if not (isinstance(record, RunRecord) or unfit or is_as_made(data)):
            problems.append(
                f"{self.path / name} was changed after it was made (its digest differs): "
                "the report may not match the plan"
            )
        return record

    def remove(self) -> None:
        if self.archive is not None:
            self.path.unlink()
        else:
            shutil.rmtree(self.path)


@dataclass(slots=True)
class RunLog:
    """Hold the record of a running run, and write it on request."""

    folder: RunFolder
    record: RunRecord

    def put(self, **changes: Any) -> None:
        """Change the record. Raises ValueError for invalid values."""
        self.record = self.record.but(**changes)

    def write(self) -> None:
        self.folder.write_run(self.record)


def _attempts(trials: Path) -> list[os.DirEntry[str]]:
    """Return the entries of the folder of trials with an attempt's name, in any order."""
    try:
        return [entry for entry in os.scandir(trials) if entry.name[0] in digits]
    except OSError:
        return []


def _number_and_attempt(name: str) -> tuple[int, int, str]:
    number, _, attempt = name.partition(".")
    whole = number.isdecimal() and (attempt.isdecimal() or not attempt)
    return (int(number), int(attempt or 1), "") if whole else (0, 0, name)


def _accelerator(records: Iterable[TrialRecord]) -> str | None:
    """Return the accelerator of the guests by their trials, if the run's record lacks it or
    contradicts: emulation must not pass for virtualization."""
    found = {str(name) for r in records if (name := r.parsed_with.get("accelerator"))}
    return found.pop() if len(found) == 1 else None


# Keep domain XML in a run's folder.


_LARGEST_XML_BYTES = 256 * 1024


def stored_xml(folder: Path, place: str) -> str:
    """Return the domain XML that a run stored at `place` in its folder.

    Raises BrokenError for a file that is missing, is not text, or is not the run's own: a foreign
    run folder must not make its reader publish /etc/shadow.
    """
    path = (folder / place).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise FileError(f"{place} is outside the run's folder")
    try:
        if path.stat().st_size > _LARGEST_XML_BYTES:
            raise FileError(f"{place} is too large for a domain XML")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{place} cannot be read: {error}") from error
