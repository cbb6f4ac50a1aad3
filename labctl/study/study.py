"""Say what a study is: what to compare, under which conditions, how often, with which guest."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from labctl.base.errors import HostError, UsageError, nearest
from labctl.base.paths import data_files
from labctl.base.stopping import Stopping
from labctl.base.tuning import Level, Requires, Tuning
from labctl.base.yaml import load_mapping
from labctl.store.jsonfile import canonical
from labctl.store.records.factor_record import Factorial, PlannedHeatmap
from labctl.store.records.plan_record import AbLabels, PublishedSource, ReportTable
from labctl.study.conditions import Condition
from labctl.study.factors import Declared
from labctl.study.programs import Parameter
from labctl.study.tunings import Defined


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyWorkload:
    """Describe a program with its parameters; `margin` is METHOD's practical threshold (0.05: 5
    %).
    """

    program: str
    parameters: Mapping[str, Parameter]
    duration_s: float
    primary: str
    margin: float
    uses_data_disk: bool = False
    no_worse_than: float | None = None
    """The loss that a recommendation must exclude (METHOD 25), a share as `margin` is; None:
    `margin`."""
    definition: Mapping[str, Any] | None = None
    """Declaration of the program's file; None in plans of older versions."""
    other_cpu: float | None = None
    """The study's limit of that name for its trials; None: as for the others."""

    def to_json(self) -> dict[str, Any]:
        """Return what plan.json holds. Studies declared no loss once, and workloads had no
        definition and no limit: where there is none, no key."""
        content = asdict(self)
        for key in ("no_worse_than", "definition", "other_cpu"):
            if content[key] is None:
                del content[key]
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestShape:
    """Describe the guest's size. `vcpus` None: as many as the pin plan has CPUs for."""

    image: str
    vcpus: int | None
    memory_mib: int
    data_disks: int = 1

    def to_json(self) -> dict[str, object]:
        """Leave a single data disk out: older plans must keep their digests."""
        content: dict[str, object] = asdict(self)
        if self.data_disks == 1:
            del content["data_disks"]
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Hold a study's limits. `attempts`: at one trial, the first included. `other_cpu`: CPU seconds
    per second that other processes may use on a trial's CPUs. `warmup_cap_s`: a warm-up that isn't
    steady by then invalidates its trial. `boot_s`: the time to a guest's first answer."""

    attempts: int
    other_cpu: float
    warmup_cap_s: float
    boot_s: float = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Name the tunings that everything is compared with or that check the run; None: not in it."""

    baseline: str
    control: str | None = None
    handicap: str | None = None
    native: str | None = None

    def names(self) -> tuple[str, ...]:
        arms = (self.native, self.baseline, self.control, self.handicap)
        return tuple(name for name in arms if name is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    name: str
    title: str
    description: str
    quick: bool
    roles: Roles
    tunings: tuple[str, ...]
    workloads: Mapping[str, StudyWorkload]
    conditions: tuple[str, ...]
    blocks: int
    """Number of blocks; with a rule, the most there may be."""
    stopping: Stopping | None
    blocks_per_boot: int
    guest: GuestShape
    limits: Limits
    neighbours: Mapping[str, Condition]
    """Conditions that have neighbours."""
    exercises: Mapping[str, tuple[str, ...]]
    """Tuning to the workloads that exercise its mechanism."""
    requires: Mapping[str, Requires] = field(default_factory=dict)
    """Tuning to what a host must have for it to be an arm here."""
    published: tuple[PublishedSource, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    """Tables of the report that it asks for."""
    expects: Mapping[str, str] = field(default_factory=dict)
    """Expectation, in a sentence by "native", "kvm" and "tcg"."""
    collect: Level = Level.COUNTERS
    spare_blocks: int = 0
    """Those that run only where a planned one has lost a value (METHOD 27)."""
    declared: Declared = field(default_factory=Declared)
    """Factors as they are declared; `factorial` is what became of them."""
    factorial: Factorial | None = None
    heatmaps: tuple[PlannedHeatmap, ...] = ()
    define: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Tunings that it defines itself, with the keys of a tuning's file."""
    ab: AbLabels | None = None
    """Names of A and B, if it compares two."""

    @property
    def defined(self) -> Defined:
        """Return the tunings that it defines itself."""
        return Defined(Path(f"study '{self.name}'"), self.define)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the study's canonical JSON, which runs on two hosts have in common.
        It leaves out published results, what is expected, tables and pictures, since they change no
        measurement."""
        content = asdict(self)
        content["workloads"] = {name: item.to_json() for name, item in self.workloads.items()}
        content["guest"] = self.guest.to_json()
        content["neighbours"] = {name: one.to_json() for name, one in self.neighbours.items()}
        del content["published"], content["expects"], content["declared"]
        del content["tables"], content["heatmaps"], content["ab"]
        if not self.define:
            # Studies defined no tunings once.
            del content["define"]
        if not self.neighbours:
            # Studies said nothing of neighbours once, and their digests are in old runs.
            del content["neighbours"]
        if self.stopping is None:
            # Nor had they rules.
            del content["stopping"]
        if self.collect == Level.COUNTERS:
            # Nor levels.
            del content["collect"]
        if not self.requires:
            # Nor needs of their own.
            del content["requires"]
        if self.factorial is None:
            # Nor factors.
            del content["factorial"]
        if not self.spare_blocks:
            # Nor spares.
            del content["spare_blocks"]
        return hashlib.sha256(canonical(content).encode()).hexdigest()

    def workloads_left(
        self, sides: Collection[str], skipped: Mapping[str, Mapping[str, str]]
    ) -> dict[str, StudyWorkload]:
        """Return those that one of the `sides` can run. `skipped`: by workload and side, why it
        can't. Raises HostError when there is none."""
        left = {
            name: workload
            for name, workload in self.workloads.items()
            if any(side not in skipped.get(name, {}) for side in sides)
        }
        if not left:
            reasons = dict.fromkeys(why for lacks in skipped.values() for why in lacks.values())
            raise HostError(
                f"this host can't run any workload of the study: {'; '.join(reasons)}",
                hint=f"'labctl doctor --for {self.name}' shows remedies."
                if self.name in study_names()
                else "'labctl doctor' shows remedies.",
            )
        return left

    def conditions_left(self, skipped: Mapping[str, str]) -> tuple[str, ...]:
        """Return the conditions that this host can have. `skipped`: why it can't have the others.
        Raises HostError when there is none."""
        left = tuple(name for name in self.conditions if name not in skipped)
        if not left:
            reasons = dict.fromkeys(skipped.values())
            raise HostError(
                f"this host does not support any condition of the study: {'; '.join(reasons)}",
                hint="Choose another: --condition quiet.",
            )
        return left

    def exercising(self, tuning: Tuning, workloads: Mapping[str, StudyWorkload]) -> tuple[str, ...]:
        """Return those of `workloads` that exercise what the tuning changes, as the study names
        them; of a tuning that it says nothing of, as the tuning's own file does."""
        named = self.exercises.get(tuning.name)
        if named is None:
            return tuple(w for w in workloads if workloads[w].program in tuning.exercised_by)
        return tuple(w for w in named if w in workloads)


# Find studies by name: labctl's own, and those of the lab folder.


def study_names() -> list[str]:
    return list(data_files("benchmarks"))


def study_titles() -> list[tuple[str, str]]:
    """Return each study's name and title; the title is "" where its file has none. Whether the rest
    of a file is right shows when the study is loaded."""
    return [
        (name, str(load_mapping(path).get("title", "")))
        for name, path in data_files("benchmarks").items()
    ]


def study_path(name: str) -> Path:
    """Return the file of the study of that name, or the one at that path; raises UsageError."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    files = data_files("benchmarks")
    if name not in files:
        raise UsageError(f"no study '{name}'", hint=nearest(name, files))
    return files[name]
