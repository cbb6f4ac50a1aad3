"""Studies as their files have them: keys, values and names checked, line by line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BeforeValidator, Field, StringConstraints

from labctl.base.errors import UsageError
from labctl.base.latencies import CLOSED, OPEN
from labctl.base.levels import Level
from labctl.base.places import data_files
from labctl.base.stopping import CAP, MOST_BLOCKS, MOST_SPARES, Stopping, looks, until_width
from labctl.base.yamlfile import FileModel, line_of, load_mapping, nearest, validate
from labctl.base.yamltext import YamlMapping
from labctl.study.combine import with_combinations
from labctl.study.tunings import tuning_names

CONDITIONS = ("quiet", "neighbour")
"""What else may happen on the host during a trial."""

LATENCIES = ("latency_p50", "latency_p95", "latency_p99")
"""What may be primary beside a program's own metrics; of one that has open-loop latencies these
percentiles of them as well."""

Parameter = int | str


class Program(Protocol):
    """Hold what a study must know of the program that a workload names. A UsageError of its checks
    names in quotes the parameter that is wrong."""

    @property
    def primary(self) -> str: ...

    @property
    def rate_metric(self) -> str | None: ...

    @property
    def uses_data_disk(self) -> bool: ...

    def check_parameters(self, given: Mapping[str, object], /) -> Mapping[str, Parameter]:
        """All parameters, defaults filled in; raises UsageError."""

    def check_duration(self, duration_s: float, /) -> None:
        """Raises UsageError when it can't run for exactly that long."""


_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]*$", max_length=150)]
_MOST = 1000
"""Entries of one list or mapping: each is held against all others."""
_Names = Annotated[list[_Name], Field(min_length=1, max_length=_MOST)]


def _every_tuning(value: object) -> object:
    return tuning_names() if value == "all" else value


_Seconds = Annotated[float, Field(ge=0.1, le=3600, allow_inf_nan=False)]
_Blocks = Annotated[int, Field(ge=1, le=MOST_BLOCKS)]
_Spares = Annotated[int, Field(ge=0, le=MOST_SPARES)]
_Vcpus = Annotated[int, Field(ge=1, le=1024)]
_MemoryMib = Annotated[int, Field(ge=256, le=2**24)]


class WorkloadFile(FileModel):
    program: _Name
    parameters: dict[str, int | float | bool | str] = {}
    duration_s: _Seconds
    primary: str
    margin_percent: Annotated[float, Field(gt=0, lt=100)]
    no_worse_than: Annotated[float, Field(gt=0, lt=1000)] | None = None
    """In percent: 50 allows a latency of ×1.5 and a rate of 1/1.5. None: `margin_percent`."""


class GuestFile(FileModel):
    image: str
    vcpus: _Vcpus | Literal["auto"] = "auto"
    memory_mib: _MemoryMib


class LimitsFile(FileModel):
    attempts: Annotated[int, Field(ge=1, le=20)]
    other_cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    warmup_cap_s: _Seconds
    boot_s: _Seconds = 180
    """Ten times what a boot takes under TCG on two quiet CPUs."""


class RolesFile(FileModel):
    baseline: _Name
    control: _Name | None = None
    handicap: _Name | None = None
    native: _Name | None = None


class StopFile(FileModel):
    width_percent: Annotated[float, Field(gt=0, lt=100)]
    most_blocks: _Blocks = CAP


class QuickFile(FileModel):
    tunings: _Names | None = None
    workloads: _Names | None = None
    conditions: _Names | None = None
    duration_s: _Seconds | None = None
    blocks: _Blocks | None = None
    blocks_per_boot: _Blocks | None = None
    spare_blocks: _Spares | None = None


class StudyFile(FileModel):
    title: Annotated[str, Field(min_length=1)]
    description: str = ""
    roles: RolesFile
    tunings: Annotated[_Names, BeforeValidator(_every_tuning)]
    """Or "all": each that has a file."""
    workloads: Annotated[dict[_Name, WorkloadFile], Field(min_length=1, max_length=_MOST)]
    conditions: _Names
    blocks: _Blocks | None = None
    """A fixed number; or a rule in its place, `stop` or `looks`."""
    stop: StopFile | None = None
    looks: Annotated[list[_Blocks], Field(max_length=_MOST)] | None = None
    blocks_per_boot: _Blocks
    spare_blocks: _Spares = 0
    """Blocks that run only where one of the others has lost a value."""
    guest: GuestFile
    limits: LimitsFile
    collect: Annotated[Level, Field(strict=False)] = Level.COUNTERS
    """YAML has its name: strict, pydantic takes none but the member itself."""
    exercises: dict[_Name, _Names] = {}
    published: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=_MOST)] = []
    """Files of published results, relative to the study's own."""
    quick: QuickFile | None = None

    def rule(self) -> Stopping | None:
        """The rule by which a run may end early. Raises UsageError for one that can't be."""
        if self.stop is not None:
            return until_width(self.stop.width_percent / 100, self.stop.most_blocks)
        return None if self.looks is None else looks(self.looks)

    @property
    def most_blocks(self) -> int:
        """The fixed number, or the most that the rule allows; 0 of a file that says neither."""
        rule = self.rule()
        return rule.most_blocks if rule else self.blocks or 0


def read_study_file(path: Path, programs: Mapping[str, Program]) -> StudyFile:
    """The checked content of a study's file.

    `programs`: what a workload's `program` may name. Raises UsageError naming file, line, key,
    what is allowed and the nearest name.
    """
    mapping = load_mapping(path)
    file = validate(StudyFile, mapping, path)
    _Checked(path, mapping, file).check(programs)
    return file


@dataclass(frozen=True, slots=True)
class _Checked:
    """A study's file whose keys and types are right, and whose names are yet to be."""

    path: Path
    mapping: YamlMapping
    file: StudyFile

    def check(self, programs: Mapping[str, Program]) -> None:
        file = self.file
        known = tuning_names()
        for index, name in enumerate(file.tunings):
            with self._placed("tunings", index):
                known = with_combinations([name], known)
        self._names(file.tunings, "tuning", known, "tunings")
        self._names(file.conditions, "condition", CONDITIONS, "conditions")
        self._check_length()
        for role, name in file.roles:
            if name is not None:
                self._name(name, "tuning of the study", file.tunings, "roles", role)
        for name, workload in file.workloads.items():
            self._name(workload.program, "program", programs, "workloads", name, "program")
            self._check_program(name, workload, programs[workload.program])
        for tuning, workloads in file.exercises.items():
            self._name(tuning, "tuning of the study", file.tunings, "exercises", tuning)
            self._names(workloads, "workload of the study", file.workloads, "exercises", tuning)
        images = data_files("guest-images")
        self._name(file.guest.image, "guest image", images, "guest", "image")
        if file.quick is not None:
            chosen = (
                (file.quick.tunings, "tuning", file.tunings, "tunings"),
                (file.quick.workloads, "workload", file.workloads, "workloads"),
                (file.quick.conditions, "condition", file.conditions, "conditions"),
            )
            for names, what, allowed, key in chosen:
                self._names(names or [], f"{what} of the study", allowed, "quick", key)

    def _check_length(self) -> None:
        """Check that the number of blocks is given once: as a number, or as a rule."""
        given = [key for key in ("blocks", "stop", "looks") if getattr(self.file, key) is not None]
        if len(given) != 1:
            said = " and ".join(f"'{key}'" for key in given) or "nothing"
            raise UsageError(
                f"{self._place(*given[-1:])}: how many blocks a run has is said by {said}, where "
                "one of 'blocks', 'stop' and 'looks' must say it",
                hint="'blocks: 10' is a fixed number; 'stop: {width_percent: 2, most_blocks: 40}' "
                "and 'looks: [10, 15, 20]' are rules.",
            )
        with self._placed(*given, among=("width_percent", "most_blocks")):
            self.file.rule()

    def _names(
        self, names: list[str], what: str, allowed: Collection[str], *keys: str | int
    ) -> None:
        for index, name in enumerate(names):
            self._name(name, what, allowed, *keys, index)
            if name in names[:index]:
                raise UsageError(f"{self._place(*keys, index)}: '{name}' is there twice")

    def _name(self, name: str, what: str, allowed: Iterable[str], *keys: str | int) -> None:
        choices = list(allowed)
        if name not in choices:
            key = ".".join(str(part) for part in keys if isinstance(part, str))
            raise UsageError(
                f"{self._place(*keys)}: '{key}': no {what} '{name}'", hint=nearest(name, choices)
            )

    def _check_program(self, name: str, workload: WorkloadFile, program: Program) -> None:
        keys = ["workloads", name]
        metrics = {program.primary, program.rate_metric or program.primary, *LATENCIES}
        if program.primary.startswith(OPEN):
            metrics.update(f"{OPEN}{name.removeprefix(CLOSED)}" for name in LATENCIES)
        self._name(workload.primary, "metric", metrics, *keys, "primary")
        with self._placed(*keys, "duration_s"):
            program.check_duration(workload.duration_s)
        with self._placed(*keys, "parameters", among=workload.parameters):
            program.check_parameters(workload.parameters)
        quick = self.file.quick
        if quick and quick.duration_s and (quick.workloads is None or name in quick.workloads):
            with self._placed("quick", "duration_s"):
                program.check_duration(quick.duration_s)

    @contextmanager
    def _placed(self, *keys: str | int, among: Iterable[str] = ()) -> Iterator[None]:
        """Puts file and line before what a program says of the value at `keys`; `among`: the
        keys below it that the sentence may quote."""
        try:
            yield
        except UsageError as error:
            below = [key for key in among if f"'{key}'" in error.message]
            place = self._place(*keys, *below[:1])
            raise UsageError(f"{place}: {error.message}", hint=error.hint) from error

    def _place(self, *keys: str | int) -> str:
        line = line_of(self.mapping, keys)
        return f"{self.path}:{line}" if line else str(self.path)
