"""Load studies, which say what to compare: files in `benchmarks/`, validated, frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from labctl.base.errors import HostError, UsageError
from labctl.base.levels import Level
from labctl.base.stopping import FEWEST_BLOCKS, MOST_BLOCKS, MOST_SPARES, Stopping
from labctl.base.tuning import Requires, Tuning
from labctl.base.yamlfile import nearest
from labctl.store.jsonfile import canonical
from labctl.store.records.factor_record import Factorial, base_of
from labctl.store.records.plan_record import PublishedSource
from labctl.study.combine import with_combinations
from labctl.study.condition import Condition
from labctl.study.expanded import with_factors
from labctl.study.factors import Declared
from labctl.study.published_file import read_published
from labctl.study.studyfile import (
    Parameter,
    Program,
    Programs,
    StudyFile,
    defined_conditions,
    defined_programs,
    read_study_file,
    study_path,
)
from labctl.study.tunings import required, tuning_names


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

    def to_json(self) -> dict[str, Any]:
        """Return what plan.json holds. Studies declared no loss once, and workloads had no
        definition: where there is none, no key."""
        content = asdict(self)
        for key in ("no_worse_than", "definition"):
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
    expects: Mapping[str, str] = field(default_factory=dict)
    """Expectation, in a sentence by "native", "kvm" and "tcg"."""
    collect: Level = Level.COUNTERS
    spare_blocks: int = 0
    """Those that run only where a planned one has lost a value (METHOD 27)."""
    declared: Declared = field(default_factory=Declared)
    """Factors as they are declared; `factorial` is what became of them."""
    factorial: Factorial | None = None

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the study's canonical JSON, which runs on two hosts have in common.
        It leaves out published results and what is expected, since they change no measurement."""
        content = asdict(self)
        content["workloads"] = {name: item.to_json() for name, item in self.workloads.items()}
        content["guest"] = self.guest.to_json()
        content["neighbours"] = {name: one.to_json() for name, one in self.neighbours.items()}
        del content["published"], content["expects"], content["declared"]
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
                hint=f"'labctl doctor --for {self.name}' shows what could be done.",
            )
        return left

    def conditions_left(self, skipped: Mapping[str, str]) -> tuple[str, ...]:
        """Return the conditions that this host can have. `skipped`: why it can't have the others.
        Raises HostError when there is none."""
        left = tuple(name for name in self.conditions if name not in skipped)
        if not left:
            reasons = dict.fromkeys(skipped.values())
            raise HostError(
                f"this host can have no condition of the study: {'; '.join(reasons)}",
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


ONE_PROGRAM_FILE = "workload.yaml"
"""File of a run's folder that says what the command line declared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneProgram:
    """Name the program that a command line gives. `words`: the options that gave it, for the
    run's record."""

    name: str
    workload: StudyWorkload
    words: tuple[str, ...] = ()
    definition: Mapping[str, Any] = field(default_factory=dict)
    """Mapping that a file with the same workload would hold."""

    @property
    def file_text(self) -> str:
        """Return the workload's file: a key a line, each value as JSON, which YAML takes."""
        lines = (
            f"{key}: {json.dumps(value, ensure_ascii=False)}\n"
            for key, value in self.definition.items()
        )
        return "".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Hold what a command line changes of a study; None leaves it as the file has it."""

    tunings: Collection[str] | None = None
    workloads: Collection[str] | None = None
    conditions: Collection[str] | None = None
    duration_s: float | None = None
    blocks: int | None = None
    """A fixed number, in place of the study's rule too."""
    stopping: Stopping | None = None
    blocks_per_boot: int | None = None
    spare_blocks: int | None = None
    vcpus: int | None = None
    memory_mib: int | None = None
    collect: Level | None = None
    factors: Mapping[str, Collection[str]] | None = None
    """Levels of factors, by the factor's name."""
    program: OneProgram | None = None
    """Program in the place of the study's workloads."""


def load_study(
    name: str,
    *,
    programs: Programs,
    quick: bool = False,
    overrides: Overrides | None = None,
) -> Study:
    """Return the study of that name, or in the file at that path, cut to its quick selection or as
    `overrides` say (which win). The tunings that have a role always stay in.

    `programs`: what a workload's `program` may name. Raises UsageError naming file, line, key,
    what is allowed and the nearest name.
    """
    path = study_path(name)
    file = read_study_file(path, programs)
    defined = defined_programs(path, file, programs)
    conditions = defined_conditions(path, file, programs, defined)
    study = _frozen(path.name.removesuffix(".yaml"), file, defined)
    study = replace(study, published=_published(path, file), expects=_expects(file))
    if quick:
        if file.quick is None:
            raise UsageError(
                f"{path}: has no 'quick:' selection",
                hint="Run it without --quick, or add the selection.",
            )
        study = _cut(replace(study, quick=True), Overrides(**file.quick.changes))
    if overrides is not None:
        if overrides.program is not None:
            study = _with_one_program(study, overrides.program)
        _check_overrides(overrides, study, conditions)
        study = _cut(study, overrides)
        for workload in study.workloads.values():
            programs.of(workload).check_duration(workload.duration_s)
    named = (overrides.workloads if overrides else None) or ()
    study = with_factors(study, programs, named) if study.declared else study
    found = {name: conditions[name] for name in study.conditions}
    return replace(study, neighbours={n: one for n, one in found.items() if one.neighbours})


def _with_one_program(study: Study, one: OneProgram) -> Study:
    """Return the study that measures this program alone; every tuning counts as exercised by it.
    Raises UsageError for a study whose factors vary its own workloads."""
    if study.declared:
        raise UsageError(
            f"study '{study.name}' has factors, which vary its own workloads",
            hint="Name another study, such as pinning, or leave --command out.",
        )
    roles = study.roles.names()
    return replace(
        study,
        workloads={one.name: one.workload},
        exercises={name: (one.name,) for name in study.tunings if name not in roles},
        published=(),
        expects={},
    )


def _published(path: Path, file: StudyFile) -> tuple[PublishedSource, ...]:
    return tuple(
        read_published(
            _beside(path, name),
            tunings=file.arms,
            workloads=file.workloads,
            conditions=file.conditions,
        )
        for name in file.published
    )


def _expects(file: StudyFile) -> dict[str, str]:
    return {name: text.strip() for name, text in file.expects or () if text is not None}


def _beside(path: Path, name: str) -> Path:
    """Return a file that a study names: in the study's own folder or below it, since whoever wrote
    the study may have no right to read others. Raises UsageError."""
    found = path.parent / name
    if not found.resolve().is_relative_to(path.parent.resolve()):
        raise UsageError(
            f"{path}: 'published': {name} leads out of the study's folder",
            hint="Put the file beside the study.",
        )
    return found


def _frozen(name: str, file: StudyFile, defined: Mapping[str, Program]) -> Study:
    return Study(
        name=name,
        title=file.title,
        description=file.description.strip(),
        quick=False,
        roles=Roles(**dict(file.roles)),
        tunings=tuple(file.arms),
        workloads={
            key: StudyWorkload(
                program=workload.program,
                parameters=dict(defined[key].check_parameters(workload.parameters)),
                duration_s=float(workload.duration_s),
                primary=workload.primary or defined[key].primary,
                margin=workload.margin_percent / 100,
                no_worse_than=_share(workload.no_worse_than),
                uses_data_disk=defined[key].uses_data_disk,
                definition=defined[key].definition,
            )
            for key, workload in file.workloads.items()
        },
        conditions=tuple(file.conditions),
        blocks=file.most_blocks,
        stopping=file.rule(),
        blocks_per_boot=file.blocks_per_boot,
        guest=GuestShape(
            image=file.guest.image,
            vcpus=None if file.guest.vcpus == "auto" else file.guest.vcpus,
            memory_mib=file.guest.memory_mib,
            data_disks=file.guest.data_disks,
        ),
        limits=Limits(
            attempts=file.limits.attempts,
            other_cpu=float(file.limits.other_cpu),
            warmup_cap_s=float(file.limits.warmup_cap_s),
            boot_s=float(file.limits.boot_s),
        ),
        neighbours={},
        exercises={tuning: tuple(names) for tuning, names in file.exercises.items()},
        requires={tuning: required(dict(need)) for tuning, need in file.requires.items()},
        collect=file.collect,
        spare_blocks=file.spare_blocks,
        declared=file.declared,
    )


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _check_overrides(overrides: Overrides, study: Study, conditions: Collection[str]) -> None:
    """Check overrides: only tunings and conditions may come from outside the study."""
    named = (
        ("tuning", overrides.tunings, with_combinations(overrides.tunings or (), tuning_names())),
        ("workload", map(base_of, overrides.workloads or ()), study.workloads),
        ("condition", overrides.conditions, conditions),
    )
    for what, names, allowed in named:
        for name in names or ():
            if name not in allowed:
                raise UsageError(f"no {what} '{name}'", hint=nearest(name, allowed))
    ranges = (
        ("--duration", overrides.duration_s, 0.1, 3600),
        ("--blocks", overrides.blocks, 1, MOST_BLOCKS),
        ("--blocks-per-boot", overrides.blocks_per_boot, 1, MOST_BLOCKS),
        ("--spare-blocks", overrides.spare_blocks, 0, MOST_SPARES),
        ("--vcpus", overrides.vcpus, 1, 1024),
        ("--memory", overrides.memory_mib, 256, 2**24),
    )
    for option, value, low, high in ranges:
        if value is not None and not low <= value <= high:
            raise UsageError(f"{option} is {value}: it must be from {low} to {high}")


def _cut(study: Study, overrides: Overrides) -> Study:
    tunings = _chosen(study.tunings, overrides.tunings, always=study.roles.names())
    workloads = {
        name: study.workloads[name]
        for name in _chosen(
            tuple(study.workloads),
            overrides.workloads and tuple(map(base_of, overrides.workloads)),
        )
    }
    if overrides.duration_s is not None:
        duration_s = float(overrides.duration_s)
        workloads = {
            name: replace(workload, duration_s=duration_s) for name, workload in workloads.items()
        }
    exercises = {
        tuning: tuple(name for name in names if name in workloads)
        for tuning, names in study.exercises.items()
        if tuning in tunings
    }
    stopping = overrides.stopping or (study.stopping if overrides.blocks is None else None)
    blocks = stopping.most_blocks if stopping else _first(overrides.blocks, study.blocks)
    # What one boot served doesn't go on in a few: two boots leave t one degree of freedom.
    outgrown = study.blocks <= study.blocks_per_boot < blocks
    guest = replace(
        study.guest,
        vcpus=_first(overrides.vcpus, study.guest.vcpus),
        memory_mib=_first(overrides.memory_mib, study.guest.memory_mib),
    )
    return replace(
        study,
        tunings=tunings,
        workloads=workloads,
        conditions=_chosen(study.conditions, overrides.conditions),
        blocks=blocks,
        stopping=stopping,
        blocks_per_boot=_first(overrides.blocks_per_boot, 1 if outgrown else study.blocks_per_boot),
        guest=guest,
        exercises={tuning: names for tuning, names in exercises.items() if names},
        requires={name: need for name, need in study.requires.items() if name in tunings},
        collect=_first(overrides.collect, study.collect),
        declared=study.declared.choosing(overrides.factors or {}),
        # Below ten blocks nothing is judged, so nothing is lost with one either.
        spare_blocks=_first(
            overrides.spare_blocks, study.spare_blocks if blocks >= FEWEST_BLOCKS else 0
        ),
    )


_Value = TypeVar("_Value")


def _first(value: _Value | None, otherwise: _Value) -> _Value:
    return otherwise if value is None else value


def _chosen(
    present: tuple[str, ...], chosen: Collection[str] | None, *, always: Collection[str] = ()
) -> tuple[str, ...]:
    """Return those of `present` that are chosen, in the study's order, then the chosen others."""
    if chosen is None:
        return present
    kept = tuple(name for name in present if name in chosen or name in always)
    return kept + tuple(dict.fromkeys(name for name in chosen if name not in present))
