"""Read and write the folder of a density run: density.json, and each guest's output.

A density run is not a run of a study: it has no trials, and its files have another form
(docs/decisions/density.md).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from labctl.base.errors import FileError, UsageError, nearest
from labctl.base.notation import quantity
from labctl.base.units import Unit
from labctl.store.jsonfile import newer, read_json, write_json
from labctl.store.records.as_made import whole
from labctl.store.records.tolerant import Flag, Number, Record, Text, Whole
from labctl.store.run_places import DENSITY
from labctl.store.trial import TrialFolder

GUESTS = "guests"
"""Folder of the guests' output, a folder each."""
SCHEMA = 1


class Bound(StrEnum):
    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="

    @property
    def is_upper(self) -> bool:
        """Return whether smaller values are within the limit."""
        return self in (Bound.BELOW, Bound.AT_MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Hold a metric's limit. `value`: in labctl's own `unit`."""

    metric: str
    bound: Bound
    value: float
    unit: Unit

    def holds(self, value: float) -> bool:
        match self.bound:
            case Bound.BELOW:
                return value < self.value
            case Bound.AT_MOST:
                return value <= self.value
            case Bound.ABOVE:
                return value > self.value
            case Bound.AT_LEAST:
                return value >= self.value

    def worst(self, values: Iterable[float]) -> float:
        """Return the value that breaks the limit first. Raises ValueError without values."""
        return max(values) if self.bound.is_upper else min(values)

    def __str__(self) -> str:
        """Return "frame_p95 < 16.0 ms"."""
        return f"{self.metric} {self.bound} {quantity(self.value, self.unit)}"


class LimitRecord(Record):
    metric: Text
    bound: Bound
    value: Number
    unit: Unit

    def limit(self) -> Limit:
        return Limit(metric=self.metric, bound=self.bound, value=self.value, unit=self.unit)


class GuestRecord(Record):
    """Result of one guest in one step. `number`: from 1; `cpus`: of its threads, in words; `why`:
    the reason for a missing value; `folder`: its output."""

    number: Whole
    cpus: Text
    folder: Text
    value: Number | None = None
    why: Text | None = None


OTHER_CPUS = 0.1
"""CPUs that others may keep busy in a step in which the limit breaks, as in studies."""


class StepRecord(Record):
    """Hold one step: so many guests that ran the workload at once. `held`: whether the limit did,
    None if a guest has no value; `common_s`: seconds of the window in which all ran at once;
    `other_cpus`: CPUs kept busy by others than the guests; `disturbed`: the limit may have broken
    because of them, so that the step does not count."""

    block: Whole
    tuning: Text
    count: Whole
    guests: tuple[GuestRecord, ...]
    held: Flag | None = None
    common_s: Number | None = None
    other_cpus: Number | None = None
    disturbed: Flag = False

    @property
    def values(self) -> list[float]:
        return [guest.value for guest in self.guests if guest.value is not None]


class CountRecord(Record):
    """Hold the number of guests that a block found for a tuning. `bounded`: why no more were tried
    although the limit held, so that the number is "at least"; `why`: the reason for a missing
    number."""

    block: Whole
    tuning: Text
    number: Whole | None = None
    bounded: Text | None = None
    why: Text | None = None


class DensityRecord(Record):
    """Hold density.json. `most`: the largest number to try, and `most_by` the reason for it;
    `host`: the host's facts; `looks`: tunings are tested after each block, and `stopped` is why
    that ended the run before its last one."""

    labctl: Text
    command: Text
    workload: Text
    parameters: dict[str, Any]
    definition: dict[str, Any]
    duration_s: Number
    limit: LimitRecord
    tunings: tuple[Text, ...]
    blocks: Whole
    search: Text
    most: Whole
    most_by: Text
    seed: Whole
    vcpus: Whole
    memory_mib: Whole
    started_at: Text
    ended_at: Text | None = None
    status: Text = "running"
    failure: Text | None = None
    accelerator: Text | None = None
    accelerator_reason: Text | None = None
    host: dict[str, Any] = {}
    looks: Flag = False
    stopped: Text | None = None
    image: Text | None = None
    steps: tuple[StepRecord, ...] = ()
    counts: tuple[CountRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class DensityFolder:
    """Read and write a density run."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, path: Path) -> DensityFolder:
        """Return a new folder, readable by its owner alone. Raises FileExistsError if it exists."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
        (path / GUESTS).mkdir()
        return cls(path)

    @classmethod
    def all(cls, results: Path) -> list[DensityFolder]:
        """Return every density run, the oldest first (names begin with the time of the start)."""
        return [cls(path.parent) for path in sorted(results.glob(f"*/{DENSITY}"))]

    @classmethod
    def at(cls, results: Path, name: str) -> DensityFolder | None:
        """Return the density run of that name in `results`, or at that path (a name with a '/');
        None if there is none."""
        for candidate in [results / name] if "/" not in name else [Path(name), results / name]:
            if (candidate / DENSITY).is_file():
                return cls(candidate.resolve())
        return None

    @classmethod
    def find(cls, results: Path, name: str) -> DensityFolder:
        """Return `at`; 'latest' is the newest one. Raises UsageError with the nearest name."""
        there = cls.at(results, name)
        if there is not None:
            return there
        found = cls.all(results)
        if name == "latest" and found:
            return found[-1]
        hint = nearest(name, [one.name for one in found])
        raise UsageError(f"no density run '{name}' in {results}", hint=hint)

    def write(self, record: DensityRecord) -> None:
        write_json(self.path / DENSITY, {"schema": SCHEMA, **record.to_json()}, below=self.path)

    def read(self) -> DensityRecord:
        """Return density.json. Raises UsageError if a newer labctl wrote it, BrokenError naming the
        first invalid place."""
        path = self.path / DENSITY
        data: Any = read_json(path)
        if not isinstance(data, Mapping) or not isinstance(data.get("schema"), int):
            raise FileError(f"{path} is not the record of a density run")
        if data["schema"] > SCHEMA:
            raise newer(path, data["schema"], SCHEMA)
        content = {key: value for key, value in data.items() if key != "schema"}
        return whole(DensityRecord, content, path, "Correct it, or measure again.")

    def guest(self, name: str) -> TrialFolder:
        """Return the folder of one guest's output in one step."""
        return TrialFolder(self.path / GUESTS / name)

    def remove(self) -> None:
        shutil.rmtree(self.path)


@dataclass(slots=True)
class DensityLog:
    """Hold the record of a running density run; each change is on disk when the call returns."""

    folder: DensityFolder
    record: DensityRecord

    def put(self, **changes: Any) -> None:
        DensityRecord.check_keys(changes)
        self.record = self.record.model_copy(update=changes)
        self.folder.write(self.record)

    def add_step(self, step: StepRecord) -> None:
        self.put(steps=(*self.record.steps, step))

    def add_count(self, count: CountRecord) -> None:
        self.put(counts=(*self.record.counts, count))
