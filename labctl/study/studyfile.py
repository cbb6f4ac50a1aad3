"""Say which keys a study's file has, and which values they take."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, StringConstraints

from labctl.base.quantities import PERCENT, SIZE, TIME
from labctl.base.stopping import (
    CAP,
    MOST_BLOCKS,
    MOST_SPARES,
    NATIVE_WIDTH,
    Stopping,
    looks,
    until_width,
)
from labctl.base.tuning import Level
from labctl.base.yaml import FileModel
from labctl.study.conditions import ConditionFile
from labctl.study.factorfile import (
    Chosen,
    Exclude,
    Factors,
    Interactions,
    declared_factors,
    level_name,
)
from labctl.study.factors import Declared
from labctl.study.published_file import METRIC
from labctl.study.tunings import RequiresFile, tuning_names

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]*$", max_length=150)]
_MOST = 1000
"""Entries of one list or mapping: each is held against all others."""
_Names = Annotated[list[_Name], Field(min_length=1, max_length=_MOST)]


def _every_tuning(value: object) -> object:
    return tuning_names() if value == "all" else value


_Seconds = Annotated[float, Field(ge=0.1, le=3600, allow_inf_nan=False), TIME]
_Blocks = Annotated[int, Field(ge=1, le=MOST_BLOCKS)]
_Spares = Annotated[int, Field(ge=0, le=MOST_SPARES)]
_Vcpus = Annotated[int, Field(ge=1, le=1024)]
_MemoryMib = Annotated[int, Field(ge=256, le=2**24), SIZE]


# The text below a key is its line in docs/studies.md (`make docs`).


def _by_name(value: object) -> object:
    """Return workloads by name: of a list of names each with its defaults, and of one without a
    program that of its own name."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = dict.fromkeys(value)
    if not isinstance(value, dict):
        return value
    return {
        name: {"program": name, **(given or {})}
        if given is None or isinstance(given, dict)
        else given
        for name, given in value.items()
    }


def _conditions_by_name(value: object) -> object:
    """Return conditions by name: of a list of names, each as a file has it."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return value
    if twice := [name for at, name in enumerate(value) if name in value[:at]]:
        raise ValueError(f"'{twice[0]}' appears twice")
    return dict.fromkeys(value)


class WorkloadFile(FileModel):
    program: _Name
    """One of labctl's workloads (docs/workloads.md); the default is the workload's own name."""
    define: dict[str, Any] | None = None
    """A workload that no file has, with the keys of one (docs/own-program.md)."""
    parameters: dict[str, int | float | bool | str] = {}
    """The program's own parameters; those left out have its defaults."""
    duration_s: Annotated[
        _Seconds, Field(validation_alias=AliasChoices("duration_s", "duration"))
    ] = 10
    """Length of the measured window of a trial, also as `duration`: `10 s`."""
    primary: str | None = None
    """The metric that decides: the program's own, which is the default, its rate, or a percentile
    of its latency."""
    margin_percent: Annotated[
        float,
        Field(gt=0, lt=100, validation_alias=AliasChoices("margin_percent", "margin")),
        PERCENT,
    ] = 5
    """The smallest change that matters to the study, also as `margin`: `5 %`."""
    no_worse_than: Annotated[float, Field(gt=0, lt=1000), PERCENT] | None = None
    """The loss that a recommendation must exclude, in percent: 50 allows a latency of ×1.5 and a
    rate of 1/1.5. Without it `margin_percent`."""
    other_cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The limit `other_cpu` for the trials of this workload, such as 0.5 where workers of the
    kernel write for it. By default the study's."""


class GuestFile(FileModel):
    image: str = "debian-13"
    """A recipe's name: a file in `guest-images/`."""
    vcpus: _Vcpus | Literal["auto"] = "auto"
    """Number of vCPUs; `auto` takes all that the pin plan leaves beside a core for the host."""
    memory_mib: Annotated[
        _MemoryMib, Field(validation_alias=AliasChoices("memory_mib", "memory"))
    ] = 1024
    """Memory of each guest, and of native runs, in MiB; also as `memory`: `2G`."""
    data_disks: Annotated[int, Field(ge=1, le=4)] = 1
    """Number of data disks, natively of files; fio uses all of them in turn."""


class LimitsFile(FileModel):
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """Number of attempts before a trial stays invalid."""
    other_cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """CPU seconds per second that strangers may take on a trial's CPUs; more makes it invalid."""
    warmup_cap_s: _Seconds = 30
    """The longest warm-up; a trial that is not steady by then says so."""
    boot_s: _Seconds = 180
    """The longest boot. The default is ten times what one takes under TCG on two quiet CPUs."""


class RolesFile(FileModel):
    baseline: _Name
    """The tuning that all others are compared with."""
    control: _Name | None = None
    """The baseline under another name. Without it nothing is recommended."""
    handicap: Annotated[
        _Name | None, Field(validation_alias=AliasChoices("handicap", "known_loss"))
    ] = None
    """The baseline with a known loss, also as `known_loss`. Without it nothing is called
    equivalent."""
    native: _Name | None = None
    """The arm without a guest."""


STANDARD_ROLES = RolesFile(
    baseline="baseline", control="control", handicap="handicap", native="native"
)
"""Roles of a study that names none."""

STANDARD_BLOCKS = 10
"""The fewest that a verdict takes."""


class StopFile(FileModel):
    width_percent: Annotated[float, Field(gt=0, lt=100), PERCENT]
    """The run ends when every primary interval has at most this half-width."""
    most_blocks: _Blocks = CAP
    """It ends here in any case."""


_Sentence = Annotated[str, Field(min_length=1, max_length=500)]


class HeatmapFile(FileModel):
    across: _Name
    """The factor whose levels are columns."""
    down: _Name
    """The factor whose levels are rows."""
    metric: Annotated[str, Field(min_length=1, max_length=200)]
    """The metric, with its labels if it has any (docs/metrics.md)."""


class ExpectsFile(FileModel):
    native: _Sentence | None = None
    """Expectation of the native arms, in a sentence or two."""
    kvm: _Sentence | None = None
    """The same of guests under KVM."""
    tcg: _Sentence | None = None
    """The same of guests under emulation."""


class QuickFile(FileModel):
    tunings: _Names | None = None
    """Those of the study's that a quick run has."""
    workloads: _Names | None = None
    """The same of its workloads."""
    conditions: _Names | None = None
    """The same of its conditions."""
    factors: Chosen | None = None
    """Levels of its factors, by name, that a quick run has."""
    duration_s: Annotated[
        _Seconds | None, Field(validation_alias=AliasChoices("duration_s", "duration"))
    ] = None
    """Replacement of each workload's `duration_s`, also as `duration`."""
    blocks: _Blocks | None = None
    """Replacement of the study's number or rule."""
    looks: Annotated[list[_Blocks], Field(max_length=_MOST)] | None = None
    """The same, as in the study."""
    blocks_per_boot: _Blocks | None = None
    """Replacement of the study's value."""
    spare_blocks: _Spares | None = None
    """Replacement of the study's value."""

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """Return the levels that a quick run has, by factor."""
        given = (self.factors or {}).items()
        return {name: tuple(map(level_name, values)) for name, values in given}

    def changes(self, native_width: float) -> dict[str, Any]:
        """Return what is changed, as `Overrides` has it. Raises UsageError for a rule that can't
        be."""
        given = {**dict(self), "factors": self.levels}
        at = given.pop("looks")
        return {**given, "stopping": None if at is None else looks(at, native_width=native_width)}


class TableRowFile(FileModel):
    tuning: _Name
    """The arm."""
    against: _Name | None = None
    """The arm that it is compared with; without one the row has the arm's own values."""


class TableFile(FileModel):
    title: Annotated[str, Field(min_length=1, max_length=80)]
    """The finding that it is for, as its heading."""
    rows: Annotated[list[TableRowFile], Field(min_length=1, max_length=_MOST)]
    """Its arms, or pairs of them, in this order."""
    metrics: Annotated[
        list[Annotated[str, StringConstraints(pattern=METRIC)]], Field(min_length=1, max_length=20)
    ]
    """Its columns: metrics, whose labels may be left out (docs/metrics.md)."""
    workloads: _Names | None = None
    """Workloads that it is of; without any it is of each."""
    factor: str | None = None
    """A factor: each arm at its other levels against the same at its first, cell by cell."""


class StudyFile(FileModel):
    title: Annotated[str, Field(min_length=1)]
    """The question that the study asks; it heads the report."""
    description: str = ""
    """More about it, for who reads the file."""
    roles: RolesFile = STANDARD_ROLES
    """Tunings that are not on trial but serve as references. They are arms, whether `tunings` has
    them or not. A study that leaves this out has all four: `native`, `baseline`, `control` and
    `handicap`."""
    tunings: Annotated[
        _Names, BeforeValidator(_every_tuning, json_schema_input_type=_Names | Literal["all"])
    ]
    """The arms by name (`a+b` combines two), or `all`: each that has a file."""
    define: Annotated[dict[_Name, dict[str, Any]], Field(max_length=_MOST)] = {}
    """Tunings that no file has, by name, with the keys of one (docs/tunings.md) but `host`;
    `tunings` and `roles` name them. The key `workload` names a workload of the study that the
    tuning runs in place of the others."""
    workloads: Annotated[
        dict[_Name, WorkloadFile], Field(min_length=1, max_length=_MOST), BeforeValidator(_by_name)
    ]
    """Workloads that each arm runs, each under a name of its own; or a list of programs."""
    conditions: Annotated[
        dict[_Name, dict[str, Any] | None],
        Field(min_length=1, max_length=_MOST),
        BeforeValidator(
            _conditions_by_name,
            json_schema_input_type=_Names | dict[_Name, ConditionFile | None],
        ),
    ] = {"neighbour": None}
    """Things that happen on the host meanwhile (docs/conditions.md): a list of names, such as
    `quiet` and `neighbour` (a CPU hog per CPU), or names with the keys of a condition's file below
    those that the study defines itself."""
    factors: Factors = {}
    """Factors beside the tunings (docs/factors.md): each level of each factor meets each of the
    others."""
    exclude: Exclude = []
    """Combinations of levels that are left out: `{policy: fifo, processes: 100}`."""
    interactions: Interactions = []
    """Pairs of factors of which the report says how one changes what the other does."""
    heatmaps: Annotated[list[HeatmapFile], Field(max_length=_MOST)] = []
    """Pictures of a metric over two of the factors, in the report's page: a panel for each arm and
    each level of the other factors."""
    blocks: _Blocks | None = None
    """A fixed number; or a rule in its place, `stop` or `looks`. Without any of the three it is 10,
    the fewest that a verdict takes."""
    stop: StopFile | None = None
    """The run ends as soon as its intervals are narrow."""
    looks: Annotated[list[_Blocks], Field(max_length=_MOST)] | None = None
    """Numbers of blocks after which the run is judged. It goes on only with the tunings that are
    undecided, in the places where they are, and ends where none is."""
    native_width_percent: Annotated[float, Field(gt=0, lt=100)] | None = None
    """Half-width of an interval against native at which native arms stop at a look; 10 if left out.
    Until then they run in every second block."""
    blocks_per_boot: _Blocks = 1
    """Blocks that share a boot of the guest; 1 makes the most of them."""
    spare_blocks: _Spares = 0
    """Blocks that run only where one of the others has lost a value."""
    guest: GuestFile = GuestFile()
    """The guest that all arms share."""
    limits: LimitsFile = LimitsFile()
    """Limits at which a trial is given up."""
    # YAML has its name: strict, pydantic takes none but the member itself.
    collect: Annotated[Level, Field(strict=False)] = Level.COUNTERS
    """The level of collecting (docs/collectors.md)."""
    exercises: dict[_Name, _Names] = {}
    """Workloads, by tuning, that use what it changes. labctl warns of a tuning without any."""
    requires: dict[_Name, RequiresFile] = {}
    """Needs of a tuning, by name, for it to be an arm here, beyond what the tuning itself
    needs. One that is asked for by name is an arm anyway."""
    published: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=_MOST)] = []
    """Files of published results, relative to the study's own (docs/published.md)."""
    expects: ExpectsFile | None = None
    """Expectation by accelerator; a plan and a report print it beside published results."""
    tables: Annotated[list[TableFile], Field(max_length=_MOST)] = []
    """Tables of the report, for the findings that the study is after."""
    quick: QuickFile | None = None
    """Changes that `--quick` makes."""

    @property
    def declared(self) -> Declared:
        """Return the factors, whose names `read_study_file` has checked."""
        return declared_factors(self.factors, self.exclude, self.interactions)

    def rule(self) -> Stopping | None:
        """Return the rule by which a run may end early. Raises UsageError for one that can't be."""
        if self.stop is not None:
            return until_width(self.stop.width_percent / 100, self.stop.most_blocks)
        return None if self.looks is None else looks(self.looks, native_width=self.native_width)

    @property
    def native_width(self) -> float:
        """Return the same as a share."""
        width = self.native_width_percent
        return NATIVE_WIDTH if width is None else width / 100

    @property
    def most_blocks(self) -> int:
        """Return the fixed number, or the most that the rule allows."""
        rule = self.rule()
        return rule.most_blocks if rule else self.blocks or STANDARD_BLOCKS

    @property
    def arms(self) -> list[str]:
        """Return the tunings, before them the roles that the file doesn't list."""
        roles = self.roles
        named = dict.fromkeys((roles.native, roles.baseline, roles.control, roles.handicap))
        return [*(name for name in named if name and name not in self.tunings), *self.tunings]
