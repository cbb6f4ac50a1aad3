"""A run's folder in `results/`: run.json, plan.json, facts, trials."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base.errors import BrokenError, UsageError
from labctl.base.yamlfile import nearest
from labctl.store.jsonfile import read_json, write_json
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder, TrialRecord

SCHEMA = 1
"""Version of the run folder. A reader refuses a newer one."""


@dataclass(frozen=True, slots=True)
class LoadedTrial:
    record: TrialRecord
    readings: tuple[Reading, ...]
    folder: TrialFolder


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """Everything that analysis and report read. `problems`: what of the folder isn't whole."""

    name: str
    run: Mapping[str, Any]
    plan: Mapping[str, Any]
    trials: tuple[LoadedTrial, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, results: Path, name: str) -> RunFolder:
        path = results / name
        (path / "trials").mkdir(parents=True)
        return cls(path)

    @classmethod
    def find(cls, results: Path, name: str) -> RunFolder:
        """The run of that name, or at that path; raises UsageError with the nearest name."""
        for candidate in (Path(name), results / name):
            if (candidate / "run.json").is_file():
                return cls(candidate.resolve())
        names = [folder.name for folder in cls.all(results)]
        raise UsageError(f"no run '{name}' in {results}", hint=nearest(name, names))

    @classmethod
    def all(cls, results: Path) -> list[RunFolder]:
        """Every run in `results`, sorted by name (names begin with the time of the start)."""
        return [cls(path.parent) for path in sorted(results.glob("*/run.json"))]

    def write_run(self, data: Mapping[str, Any]) -> None:
        write_json(self.path / "run.json", {"schema": SCHEMA, **data})

    def read_run(self) -> dict[str, Any]:
        data = read_json(self.path / "run.json")
        if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
            raise BrokenError(f"{self.path / 'run.json'} is no run record")
        if data["schema"] > SCHEMA:
            raise UsageError(
                f"{self.path} was written by a newer labctl (schema {data['schema']}, "
                f"this one reads up to {SCHEMA})",
                hint="Update labctl.",
            )
        return data

    def write_plan(self, data: Mapping[str, Any]) -> None:
        write_json(self.path / "plan.json", data)

    def read_plan(self) -> dict[str, Any]:
        data = read_json(self.path / "plan.json")
        if not isinstance(data, dict) or not isinstance(data.get("trials"), list):
            raise BrokenError(f"{self.path / 'plan.json'} is no plan")
        return data

    def trial(self, number: int, attempt: int = 1) -> TrialFolder:
        suffix = "" if attempt == 1 else f".{attempt}"
        return TrialFolder(self.path / "trials" / f"{number:04d}{suffix}")

    def new_trial(self, number: int, attempt: int) -> TrialFolder:
        """An empty folder for an attempt; what an interrupted one left there is removed."""
        folder = self.trial(number, attempt)
        if folder.path.exists():
            shutil.rmtree(folder.path)
        folder.path.mkdir(parents=True)
        return folder

    def trial_folders(self) -> Iterator[TrialFolder]:
        for path in sorted((self.path / "trials").glob("[0-9]*")):
            if path.is_dir():
                yield TrialFolder(path)

    def load(self) -> LoadedRun:
        """The run as far as it is whole; what can't be read becomes `problems`.

        Raises UsageError when a newer labctl wrote it.
        """
        problems: list[str] = []
        trials: list[LoadedTrial] = []
        for folder in self.trial_folders():
            try:
                record = folder.read_record()
                readings = folder.read_readings() if folder.has("samples.json") else []
            except BrokenError as error:
                problems.append(error.message)
                continue
            trials.append(LoadedTrial(record, tuple(readings), folder))
        try:
            plan: Mapping[str, Any] = self.read_plan()
        except BrokenError as error:
            problems.append(error.message)
            plan = {}
        try:
            run: Mapping[str, Any] = self.read_run()
        except BrokenError as error:
            problems.append(error.message)
            run = {}
        return LoadedRun(self.name, run, plan, tuple(trials), tuple(problems))

    def remove(self) -> None:
        shutil.rmtree(self.path)
