"""Check conditions as their files have them, `benchmarks/conditions/NAME.yaml`, or as a study
defines them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol

from pydantic import BeforeValidator, Field, StringConstraints

from labctl.base.cpus import format_cpus, parse_cpus
from labctl.base.errors import UsageError, nearest
from labctl.base.paths import data_files
from labctl.base.quantities import PERCENT, SIZE, TIME
from labctl.base.yaml import FileModel, Placing, load_mapping, validate
from labctl.base.yamltext import YamlMapping
from labctl.store.records.plan_record import PlannedCondition, PlannedNeighbour

# Describe what else happens on the host during a trial: a condition and its neighbours.


PER_CPU: Final = "per-cpu"
"""Count of neighbours that are one for each of their CPUs."""

EVERYWHERE: Final = "everywhere"
VCPUS: Final = "vcpus"
SIBLINGS: Final = "siblings"
EMULATOR: Final = "emulator"
PLACES: Final = (EVERYWHERE, VCPUS, SIBLINGS, EMULATOR)
"""Names of sets of CPUs; neighbours may name CPUs by their numbers as well."""


Parameters = Mapping[str, int | float | str]


class Kind(StrEnum):
    """Name what neighbours compete as."""

    PROCESS = "process"
    CGROUP = "cgroup"
    GUESTS = "guests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Describe neighbours of one kind. `program`: the workload that each of them runs, with all of
    its parameters; `definition`: what that declares.

    `count`: how many, None for one per CPU of theirs. `cpus`: one of PLACES, or a list of CPUs.
    `weight`: as a v2 cgroup's, 100 where it is None. `quota_percent`: of one CPU. `memory_mib`: the
    most that each may use. `run_s`: seconds of one run, of a workload that runs for a duration.
    `guests`: how many guests they run in.
    """

    program: str
    parameters: Parameters = field(default_factory=dict)
    count: int | None = None
    cpus: str = EVERYWHERE
    kind: Kind = Kind.PROCESS
    weight: int | None = None
    quota_percent: int | None = None
    memory_mib: int = 256
    run_s: float = 1.0
    guests: int | None = None
    definition: Mapping[str, object] | None = None

    def record(self) -> PlannedNeighbour:
        return PlannedNeighbour.made(self.to_json())

    def to_json(self) -> dict[str, object]:
        """Return what plan.json holds."""
        content = asdict(self) | {"kind": str(self.kind)}
        return {key: value for key, value in content.items() if value is not None}

    @classmethod
    def of(cls, record: PlannedNeighbour) -> Neighbour:
        """Return what was planned. Raises ValueError for what no plan holds."""
        return cls(**{**dict(record), "kind": Kind(record.kind)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Hold what runs beside a trial: nothing, or neighbours of one or several kinds."""

    name: str
    description: str
    neighbours: tuple[Neighbour, ...] = ()

    @property
    def guests(self) -> int:
        """Return how many guests run beside a trial."""
        of_kinds = (one.guests or 0 for one in self.neighbours if one.kind is Kind.GUESTS)
        return sum(of_kinds)

    def record(self) -> PlannedCondition:
        return PlannedCondition.made(
            {
                "description": self.description,
                "neighbours": tuple(one.record() for one in self.neighbours),
            }
        )

    def to_json(self) -> dict[str, object]:
        """Return what plan.json holds."""
        return self.record().to_json()

    @classmethod
    def of(cls, name: str, record: PlannedCondition) -> Condition:
        """Return what was planned. Raises ValueError for what no plan holds."""
        return cls(
            name=name,
            description=record.description,
            neighbours=tuple(map(Neighbour.of, record.neighbours)),
        )


FOLDER = "benchmarks/conditions"
MOST = 1000
"""Neighbours of one kind."""


class Program(Protocol):
    """Hold what a condition must know of its neighbours' workload."""

    @property
    def definition(self) -> Mapping[str, object] | None: ...

    def check_parameters(self, given: Mapping[str, object], /) -> Parameters:
        """Return all parameters, defaults filled in; raises UsageError."""

    def why_no_neighbour(self, parameters: Parameters, run_s: float, /) -> str | None:
        """Return why it can't run beside a trial."""


class Programs(Protocol):
    """Hold the workloads that neighbours may run."""

    def __getitem__(self, name: str, /) -> Program: ...

    def __iter__(self) -> Iterator[str]: ...

    def __contains__(self, name: object, /) -> bool: ...

    def define(self, name: str, mapping: YamlMapping, path: Path) -> Program:
        """Return the workload of a definition; raises UsageError with file and line."""


def _cpus(value: object) -> object:
    """Return CPUs by a name of PLACES or as a list, which is a number in YAML where it is one
    CPU."""
    if isinstance(value, str) and value in PLACES:
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"give one of {', '.join(PLACES)}, or a CPU list, such as 2 or '2-3,6'")
    try:
        cpus = parse_cpus(str(value))
    except ValueError as error:
        raise ValueError(f"{error}; give one of {', '.join(PLACES)}, or a CPU list") from None
    if not cpus:
        raise ValueError("give at least one CPU")
    return format_cpus(cpus)


_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]*$", max_length=150)]

# The text below a key is its line in docs/conditions.md (`make docs`).


class NeighbourFile(FileModel):
    workload: _Name
    """The workload that each of them runs: one that a file declares (docs/own-program.md), or one
    that the study defines itself."""
    define: dict[str, object] | None = None
    """A workload that no file has, with the keys of one (docs/own-program.md); `workload` is then
    its name."""
    parameters: dict[str, int | float | bool | str] = {}
    """The workload's own parameters; those left out have its defaults."""
    count: Annotated[int, Field(ge=1, le=MOST)] | Literal["per-cpu"] = PER_CPU
    """Number of them; `per-cpu` is one for each of their CPUs."""
    cpus: Annotated[str, BeforeValidator(_cpus, json_schema_input_type=int | str)] = "everywhere"
    """CPUs among which they move freely: `everywhere`, `vcpus` (those on which the pin plan puts
    vCPUs), `siblings` (the other hardware threads of these cores), `emulator` (those of QEMU's own
    threads), or CPUs by number, such as `2-3,6`."""
    kind: Literal["process", "cgroup", "guests"] = Field(default="process", alias="as")
    """Form in which each of them competes: a `process` weighs what a guest does, a `cgroup` has a
    `weight` or a `quota_percent` of its own, and `guests` are other VMs."""
    weight: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Weight of each one's cgroup against the guest's 100, as `cpu.weight` has it."""
    quota_percent: Annotated[int, Field(ge=1, le=100_000), PERCENT] | None = None
    """CPU time that each may use, in percent of one CPU."""
    memory_mib: Annotated[int, Field(ge=32, le=2**24), SIZE] = 256
    """Memory that each may use, in MiB."""
    run_s: Annotated[float, Field(ge=0.1, le=3600, allow_inf_nan=False), TIME] = 1.0
    """Length of one run of a workload that runs for a duration, in seconds. It is run again and
    again, as fixed work is."""
    guests: Annotated[int, Field(ge=1, le=64)] | None = None
    """Number of guests, with `as: guests`; each runs `count` of the workload."""


class ConditionFile(FileModel):
    """Declare a condition: what else happens on the host during a trial."""

    description: Annotated[str, StringConstraints(min_length=1, max_length=500)]
    """Sentence that says what happens; reports and the rollout card repeat it."""
    neighbours: Annotated[list[NeighbourFile], Field(max_length=20)] = []
    """Neighbours of a trial, from before its measured window to after it; `[]` is a quiet host."""


def condition_files() -> dict[str, Path]:
    """Return the file of each condition, by name."""
    return data_files(FOLDER)


def condition_names() -> list[str]:
    return list(condition_files())


def load_condition(name: str, programs: Programs) -> Condition:
    """Return the condition of that name, or in the file at that path. Raises UsageError naming
    file, line, key, what is allowed and the nearest name."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name)
        name = path.name.rpartition(".")[0]
    else:
        files = condition_files()
        if name not in files:
            raise UsageError(f"no condition '{name}'", hint=nearest(name, files))
        path = files[name]
    return defined_condition(name, load_mapping(path), path, programs)


def defined_condition(name: str, mapping: YamlMapping, path: Path, programs: Programs) -> Condition:
    """Return the condition of a mapping; raises UsageError with file and line."""
    file = validate(ConditionFile, mapping, path)
    checked = _Checked(path, mapping, programs)
    return Condition(
        name=name,
        description=file.description.strip(),
        neighbours=tuple(checked.neighbour(n, one) for n, one in enumerate(file.neighbours)),
    )


@dataclass(frozen=True, slots=True)
class Beside:
    """Hold the workloads that neighbours of a study may run: those that it defines itself, then
    those of files."""

    own: Mapping[str, Program]
    programs: Programs

    def __getitem__(self, name: str) -> Program:
        return self.own[name] if name in self.own else self.programs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.own, *self.programs]))

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self.programs

    def define(self, name: str, mapping: YamlMapping, path: Path) -> Program:
        return self.programs.define(name, mapping, path)


class Conditions(Mapping[str, Condition]):
    """Hold the conditions of files and those that a study in the file `path` defines itself, by
    name. Looking one up raises UsageError as its reader does."""

    def __init__(self, path: Path, own: Mapping[str, YamlMapping], programs: Programs) -> None:
        self._path, self._own, self._programs = path, own, programs
        self._names = list(dict.fromkeys([*condition_names(), *own]))

    def __getitem__(self, name: str) -> Condition:
        if name in self._own:
            return defined_condition(name, self._own[name], self._path, self._programs)
        return load_condition(name, self._programs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def check(self, name: str) -> None:
        """Raise UsageError for a condition that isn't right."""
        self[name]


class _Checked(Placing):
    """Check what a condition's types alone don't say."""

    def __init__(self, path: Path, mapping: YamlMapping, programs: Programs) -> None:
        self.path, self.mapping, self._programs = path, mapping, programs

    def neighbour(self, number: int, one: NeighbourFile) -> Neighbour:
        place = ("neighbours", number)
        kind = Kind(one.kind)
        self._check_kind(one, kind, *place)
        program = self._program(one, *place)
        with self._placed(*place, "parameters"):
            parameters = dict(program.check_parameters(one.parameters))
        if why := program.why_no_neighbour(parameters, one.run_s):
            self._fail(f"'{one.workload}' can't be a neighbour: {why}", *place, "workload")
        return Neighbour(
            program=one.workload,
            parameters=parameters,
            count=None if one.count == PER_CPU else one.count,
            cpus=one.cpus,
            kind=kind,
            weight=one.weight,
            quota_percent=one.quota_percent,
            memory_mib=one.memory_mib,
            run_s=float(one.run_s),
            guests=one.guests,
            definition=program.definition,
        )

    def _program(self, one: NeighbourFile, *place: str | int) -> Program:
        if one.define is not None:
            mapping = self.mapping["neighbours"][place[-1]]["define"]
            if not isinstance(mapping, YamlMapping):
                mapping = YamlMapping(mapping)
            return self._programs.define(one.workload, mapping, self.path)
        if one.workload not in self._programs:
            self._fail(
                f"no workload '{one.workload}'",
                *(*place, "workload"),
                hint=nearest(one.workload, self._programs),
            )
        with self._placed(*place, "workload"):
            return self._programs[one.workload]

    def _check_kind(self, one: NeighbourFile, kind: Kind, *place: str | int) -> None:
        limits = [key for key in ("weight", "quota_percent") if getattr(one, key) is not None]
        if limits and kind is not Kind.CGROUP:
            self._fail(
                f"'{limits[0]}' needs neighbours 'as: cgroup', got 'as: {kind}'",
                *(*place, limits[0]),
            )
        if kind is Kind.CGROUP and not limits:
            self._fail(
                "neighbours 'as: cgroup' need 'weight' or 'quota_percent'",
                *(*place, "as"),
                hint="Without a limit, use 'as: process': each then has the weight of a guest.",
            )
        if kind is Kind.GUESTS and one.guests is None:
            self._fail(
                "neighbours 'as: guests' need 'guests', the number of guests", *(*place, "as")
            )
        if one.guests is not None and kind is not Kind.GUESTS:
            self._fail(
                f"'guests' needs neighbours 'as: guests', got 'as: {kind}'",
                *(*place, "guests"),
            )
