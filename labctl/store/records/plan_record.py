"""Hold plan.json and its extensions as typed records: the arms, the workloads and the trials of a
run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import (
    ConfigDict,
    SerializerFunctionWrapHandler,
    model_serializer,
    with_config,
)

from labctl.base.errors import UsageError
from labctl.base.stopping import Stopping, stopping_of
from labctl.store.records.factor_record import Factorial, PlannedHeatmap
from labctl.store.records.tolerant import Flag, Number, Record, Text, Whole

_SLOTS = ConfigDict(extra="ignore")
"""Configuration of records that exist by the thousands: no room for unknown keys."""


@with_config(_SLOTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrial:
    """Describe a planned trial. `number` counts from 1 through the plan, `position` is the tuning's
    in its block, from 1. 0: missing in an edited plan."""

    number: Whole = 0
    block: Whole = 0
    boot: Whole = 0
    position: Whole = 0
    cell: dict[str, Text]


class PlannedArm(Record):
    """Describe one tuning of the plan."""

    kind: Text
    twin: Text | None = None
    restore: Flag = True
    description: Text = ""
    exercised_by: tuple[Text, ...] | None = None
    """Workloads that can show its effect; None if that is not recorded."""
    digest: Text | None = None
    """Digest of the whole resolved definition."""
    durability: Text | None = None
    """Durability of a guest's disks."""
    restored_as: Text | None = None
    """Tuning that differs from a booting guest only in being restored."""
    workload: Text | None = None
    """Workload of the plan that runs in place of the one that is measured."""


class PlannedWorkload(Record):
    program: Text | None = None
    parameters: dict[str, Any] = {}
    duration_s: Number | None = None
    primary: Text | None = None
    margin: Number | None = None
    uses_data_disk: Flag = False
    no_worse_than: Number | None = None
    definition: dict[str, Any] | None = None
    """Declaration of the program's file; None in plans of older versions."""
    other_cpu: Number | None = None
    """Limit of `limits` for its trials; None: the same as for the others."""


HOG = "neighbour"
"""Only condition with neighbours in plans of an older labctl, which do not define it."""

_PLACES = {
    "everywhere": "everywhere",
    "vcpus": "on the vCPUs' CPUs",
    "siblings": "on the other threads of the vCPUs' cores",
    "emulator": "on the emulator's CPUs",
}
"""Names of CPUs, in words."""


class PlannedNeighbour(Record):
    """Describe neighbours of one kind."""

    program: Text
    parameters: dict[str, Any] = {}
    count: Whole | None = None
    """Number of them; None for one per CPU of theirs."""
    cpus: Text = "everywhere"
    kind: Text = "process"
    """Form in which each competes: a process, a cgroup, or guests."""
    weight: Whole | None = None
    quota_percent: Whole | None = None
    memory_mib: Whole = 256
    run_s: Number = 1.0
    guests: Whole | None = None
    definition: dict[str, Any] | None = None
    """Declaration of the program's file."""

    @property
    def words(self) -> str:
        """Return number, workload and CPUs in words: "one cpu-hog per CPU, everywhere"."""
        given = " ".join(f"{key}={value}" for key, value in self.parameters.items())
        program = f"{self.program} {given}".rstrip()
        cpu = "CPU" if self.guests is None else "vCPU"
        many = f"one {program} per {cpu}" if self.count is None else f"{self.count} x {program}"
        where = _PLACES.get(self.cpus, f"on CPUs {self.cpus}")
        limits = []
        if self.weight is not None:
            limits.append(f"weight {self.weight}")
        if self.quota_percent is not None:
            limits.append(f"at most {self.quota_percent} % of a CPU")
        each = f", each in a cgroup: {', '.join(limits)}" if limits else ""
        return f"{many}, {where}{each}{self._inside}"

    @property
    def _inside(self) -> str:
        if self.guests is None:
            return ""
        return ", in another guest" if self.guests == 1 else f", in each of {self.guests} guests"


class PlannedCondition(Record):
    """Describe the neighbours of a condition's trials."""

    description: Text = ""
    neighbours: tuple[PlannedNeighbour, ...] = ()


@with_config(_SLOTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResult:
    """Hold a published result: `tuning` against `against` in a metric (`ctx_switches{of=vcpu}`: all
    of its kinds together).

    `workload` and `condition` None: under each. `ratio` None: only the direction is known.
    `against_workload`: the cell that it is compared with, if the two differ by factors and not by
    tunings.
    """

    tuning: Text
    against: Text
    workload: Text | None = None
    condition: Text | None = None
    metric: Text
    ratio: Number | None = None
    direction: Text
    against_workload: Text | None = None

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out keys that plans of older labctls did not have."""
        content: dict[str, Any] = handler(self)
        if self.against_workload is None:
            del content["against_workload"]
        return content


@with_config(_SLOTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSource:
    source: Text
    """Source of the results, a sentence."""
    results: tuple[PublishedResult, ...]


@with_config(_SLOTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """Name an arm of a table: its own values, or its change if `against` names another."""

    tuning: Text
    against: Text | None = None


@with_config(_SLOTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """Hold a table that a study declares for its report: `rows` by `metrics`. `workloads` None:
    under each. `factor`: each row compares an arm at its other levels with the same at its
    first."""

    title: Text
    rows: tuple[ReportRow, ...]
    metrics: tuple[Text, ...]
    workloads: tuple[Text, ...] | None = None
    factor: Text | None = None


@with_config(_SLOTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFile:
    """Describe a file that guests boot with. `version`: of QEMU, or the kernel's release."""

    sha256: Text
    version: Text | None = None


class AbLabels(Record):
    """Name what A and B are, in a comparison of two. A is the baseline; `arm`: that of B;
    `are_images`: their guests have other kernels, and their native arms the host's."""

    a: Text
    b: Text
    arm: Text
    are_images: Flag = False


class StoppingRule(Record):
    width: Number | None = None
    most_blocks: Whole | None = None
    looks: tuple[Whole, ...] | None = None
    drops: Flag | None = None
    native_width: Number | None = None
    within_s: Number | None = None


class PlannedGuest(Record):
    image: Text | None = None
    vcpus: Whole | None = None
    memory_mib: Whole | None = None
    data_disks: Whole | None = None


@with_config(_SLOTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class AddedBlocks:
    """Name the first and the last block of an extension."""

    first_block: Whole
    last_block: Whole


class ExtensionRecord(Record):
    digest: Text | None = None
    extends: Text | None = None
    first_block: Whole
    last_block: Whole
    trials: tuple[PlannedTrial, ...]


class PlanRecord(Record):
    """Hold a plan as made, or as a run carried it out (`RunFolder.load`)."""

    # In the order in which plan.json has them.
    digest: Text | None = None
    study: Text | None = None
    title: Text | None = None
    study_digest: Text | None = None
    host_digest: Text | None = None
    seed: Whole | None = None
    quick: Flag | None = None
    factors: tuple[Text, ...] = ()
    blocks: Whole | None = None
    """Number of blocks; with a rule, the most there may be."""
    stopping: StoppingRule | None = None
    blocks_per_boot: Whole | None = None
    boots: Whole | None = None
    interleaved: Flag | None = None
    """True if, in trials from elsewhere, each block held all arms side by side."""
    baseline: Text | None = None
    control: Text | None = None
    handicap: Text | None = None
    native: Text | None = None
    tunings: dict[str, PlannedArm] = {}
    skipped: dict[str, Text] = {}
    workloads: dict[str, PlannedWorkload] = {}
    conditions: tuple[Text, ...] = ()
    neighbours: dict[str, PlannedCondition] = {}
    """Conditions with neighbours, by name; none in plans of a labctl that had but one."""
    guest: PlannedGuest = PlannedGuest()
    limits: dict[str, Any] = {}
    trials: tuple[PlannedTrial, ...] = ()
    spare_blocks: Whole = 0
    spares: tuple[PlannedTrial, ...] = ()
    published: tuple[PublishedSource, ...] = ()
    expects: dict[str, Text] = {}
    """Expectation of the study, in a sentence by "native", "kvm" and "tcg"."""
    tables: tuple[ReportTable, ...] = ()
    skipped_workloads: dict[str, dict[str, Text]] = {}
    """Workloads unsupported on a side (guest, native), by side, with the reason."""
    skipped_conditions: dict[str, Text] = {}
    """Conditions that the host does not support, with the reason."""
    collect: Text | None = None
    factorial: Factorial | None = None
    """Factors beside the tunings, with the levels of each cell."""
    heatmaps: tuple[PlannedHeatmap, ...] = ()
    """Pictures of a metric over two of them."""
    define: dict[str, dict[str, Any]] = {}
    """Tunings that the study defines itself."""
    builds: dict[str, BuildFile] = {}
    """QEMU binaries, kernels and initrds of tunings, by path."""
    ab: AbLabels | None = None
    """Names of A and B, if the study compares two."""
    extensions: tuple[AddedBlocks, ...] = ()
    """Blocks that were added to the run; not in a file, `RunFolder.load` adds them here."""

    @property
    def stand_ins(self) -> frozenset[str]:
        """Return the workloads that only run in place of others."""
        return frozenset(arm.workload for arm in self.tunings.values() if arm.workload)

    @property
    def is_lost(self) -> bool:
        """Return whether the plan is missing, or nothing of it can be read."""
        return not self.model_fields_set

    @property
    def rule(self) -> Stopping | None:
        """Return the rule by which the run may end; None if it cannot be read. Loading reports that
        the plan is incomplete or was changed."""
        if self.stopping is None:
            return None
        try:
            return stopping_of({"stopping": self.stopping.to_json()})
        except (UsageError, KeyError, TypeError, ValueError):
            return None

    def but(self, **changes: Any) -> PlanRecord:
        """Return the plan with other values of some fields, which have the right types already.
        Raises ValueError for a key that is not a field."""
        self.check_keys(changes)
        return self.model_copy(update=changes)
