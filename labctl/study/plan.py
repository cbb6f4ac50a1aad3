"""Say what a plan is, a study made concrete for one host and one seed, and what plan.json holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from labctl.base.errors import FileError
from labctl.base.stopping import Stopping
from labctl.base.tuning import Kind, Level, Tuning
from labctl.store.jsonfile import canonical
from labctl.store.records.as_made import PLAN_SCHEMA
from labctl.store.records.factor_record import Factorial, Place, PlannedHeatmap
from labctl.store.records.plan_record import (
    AbLabels,
    BuildFile,
    PlannedArm,
    PlannedTrial,
    PlannedWorkload,
    PlanRecord,
    PublishedSource,
    ReportTable,
)
from labctl.store.records.run_record import LookTaken
from labctl.study.conditions import Condition
from labctl.study.order import FACTORS, boot_of
from labctl.study.study import GuestShape, Limits, Roles, StudyWorkload
from labctl.study.tunings import Defined, listed, tuning_digest

T = TypeVar("T")

MOST_TRIALS = 250_000
"""Limit on one plan: a week of trials of two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTuning:
    """Hold what analysis must know of a tuning. `twin` is None when the twin is not in the plan;
    `digest` covers the whole resolved definition."""

    kind: Kind
    twin: str | None
    restore: bool
    description: str
    exercised_by: tuple[str, ...]
    digest: str
    durability: str | None = None
    """Durability of a write to a guest's disks (`Disk.durability`)."""
    restored_as: str | None = None
    """Tuning of the plan that differs from a booting guest only in being restored (METHOD 8)."""
    workload: str | None = None
    """Workload of the plan that runs in place of the one that is measured."""

    def to_json(self) -> dict[str, Any]:
        """Return what plan.json holds; older plans knew no other workload."""
        content: dict[str, Any] = listed(asdict(self))
        if self.workload is None:
            del content["workload"]
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    study: str
    title: str
    study_digest: str
    host_digest: str
    seed: int
    quick: bool
    roles: Roles
    tunings: Mapping[str, PlannedTuning]
    skipped: Mapping[str, str]
    workloads: Mapping[str, StudyWorkload]
    conditions: tuple[str, ...]
    blocks: int
    """Number of blocks; with a rule, the most there may be."""
    blocks_per_boot: int
    guest: GuestShape
    limits: Limits
    trials: tuple[PlannedTrial, ...]
    neighbours: Mapping[str, Condition] = field(default_factory=dict)
    """Conditions that have neighbours."""
    skipped_conditions: Mapping[str, str] = field(default_factory=dict)
    """Conditions that this host can't have, with the reason; they are not among `conditions`."""
    stopping: Stopping | None = None
    """Rule by which the run may end before its last block."""
    spares: tuple[PlannedTrial, ...] = ()
    """Trials of blocks that run only where another block has lost a value (`study/spares.py`)."""
    published: tuple[PublishedSource, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    expects: Mapping[str, str] = field(default_factory=dict)
    collect: Level = Level.COUNTERS
    skipped_workloads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Workloads that this host can't have, by the side (guest, native) where it can't, with the
    reason. Those that no side can have are not among `workloads`."""
    factorial: Factorial | None = None
    """Factors beside the tunings, with the levels of each cell."""
    heatmaps: tuple[PlannedHeatmap, ...] = ()
    define: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Tunings that the study defines itself."""
    builds: Mapping[str, BuildFile] = field(default_factory=dict)
    """QEMU binaries, kernels and initrds of tunings, by path."""
    ab: AbLabels | None = None
    """Names of A and B, if the study compares two."""
    looks: tuple[LookTaken, ...] = ()
    """Looks of the run that carries the plan out, whose cells are left out; in no plan.json."""

    @property
    def measured(self) -> tuple[str, ...]:
        """Return the workloads that cells are of, without those that only run in place of
        others."""
        stand_ins = {tuning.workload for tuning in self.tunings.values()}
        return tuple(name for name in self.workloads if name not in stand_ins)

    def workload_of(self, cell: Mapping[str, str]) -> str:
        """Return the workload that runs in a cell."""
        arm = self.tunings.get(cell["tuning"])
        return (arm and arm.workload) or cell["workload"]

    @property
    def defined(self) -> Defined:
        """Return the tunings that the study defines itself."""
        return Defined(Path("plan.json"), self.define)

    @property
    def cells(self) -> frozenset[Place] | None:
        """Return the cells that a block has; None: all combinations."""
        if self.factorial is None:
            return None
        return frozenset(cell.place for cell in self.factorial.cells)

    @property
    def boots(self) -> int:
        """Return the boots of the planned blocks, without the spares'."""
        return boot_of(self.blocks, self.blocks_per_boot)

    @property
    def spare_blocks(self) -> tuple[int, ...]:
        """Return their numbers, in order."""
        return tuple(dict.fromkeys(trial.block for trial in self.spares))

    @property
    def last_spare(self) -> int:
        """Return the last block that a spare may stand in for, or that is one; those of extensions
        come after it. 0 without spares."""
        return max(self.spare_blocks, default=0)

    @property
    def last_block(self) -> int:
        """Return the largest number of a block, spares included, whether they run or not."""
        return max((self.blocks, *self.spare_blocks))

    @property
    def in_order(self) -> tuple[PlannedTrial, ...]:
        """Return all trials with the spares', which come after the blocks that they stand in
        for.
        """
        return tuple(sorted(self.trials + self.spares, key=lambda trial: trial.number))

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON of everything else in the plan."""
        return _digest(self._content())

    def to_json(self) -> dict[str, Any]:
        """Return what plan.json holds."""
        content = self._content()
        return {"schema": PLAN_SCHEMA, "digest": _digest(content), **content}

    def record(self) -> PlanRecord:
        """Return the same as the record that readers of plan.json get."""
        return PlanRecord.model_validate(self.to_json())

    def _content(self) -> dict[str, Any]:
        # Left out where there is none: plans of older labctls hold no such key.
        published = [_published_json(source) for source in self.published]
        return {
            "study": self.study,
            "title": self.title,
            "study_digest": self.study_digest,
            "host_digest": self.host_digest,
            "seed": self.seed,
            "quick": self.quick,
            "factors": list(FACTORS),
            "blocks": self.blocks,
            **({"stopping": self.stopping.to_json()} if self.stopping else {}),
            "blocks_per_boot": self.blocks_per_boot,
            "boots": self.boots,
            **asdict(self.roles),
            "tunings": {name: tuning.to_json() for name, tuning in self.tunings.items()},
            "skipped": dict(self.skipped),
            "workloads": {name: item.to_json() for name, item in self.workloads.items()},
            "conditions": list(self.conditions),
            **self._neighbours_json(),
            "guest": self.guest.to_json(),
            "limits": asdict(self.limits),
            "trials": [asdict(trial) for trial in self.trials],
            **self._spares_json(),
            **({"published": published} if published else {}),
            **({"expects": dict(self.expects)} if self.expects else {}),
            **({"tables": listed([asdict(one) for one in self.tables])} if self.tables else {}),
            **({"skipped_workloads": self.skipped_workloads} if self.skipped_workloads else {}),
            **({"collect": str(self.collect)} if self.collect != Level.COUNTERS else {}),
            **({"factorial": listed(asdict(self.factorial))} if self.factorial else {}),
            **({"heatmaps": [asdict(one) for one in self.heatmaps]} if self.heatmaps else {}),
            **({"define": listed(self.define)} if self.define else {}),
            **(
                {"builds": {path: asdict(one) for path, one in self.builds.items()}}
                if self.builds
                else {}
            ),
            **({"ab": self.ab.to_json()} if self.ab else {}),
        }

    def _neighbours_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.neighbours:
            found["neighbours"] = {name: one.to_json() for name, one in self.neighbours.items()}
        if self.skipped_conditions:
            found["skipped_conditions"] = dict(self.skipped_conditions)
        return found

    def _spares_json(self) -> dict[str, Any]:
        if not self.spares:
            return {}
        return {
            "spare_blocks": len(self.spare_blocks),
            "spares": [asdict(trial) for trial in self.spares],
        }

    @classmethod
    def of(cls, record: PlanRecord) -> Plan:
        """Return the plan that was recorded, for a run that is resumed.

        Raises BrokenError when it is no plan or was changed since (its digest tells).
        """
        try:
            plan = cls._of(record)
            as_planned = plan.record().to_json()
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise FileError(f"the plan can't be read: {error}") from error
        if as_planned != record.to_json():
            raise FileError(
                "the plan was changed after it was made: its content does not match its digest "
                f"{str(record.digest)[:12]}",
                hint="A plan can't be edited. Start a new run.",
            )
        return plan

    @classmethod
    def _of(cls, record: PlanRecord) -> Plan:
        guest = record.guest
        return cls(
            study=_there(record.study, "study"),
            title=_there(record.title, "title"),
            study_digest=_there(record.study_digest, "study_digest"),
            host_digest=_there(record.host_digest, "host_digest"),
            seed=_there(record.seed, "seed"),
            quick=_there(record.quick, "quick"),
            roles=Roles(
                baseline=_there(record.baseline, "baseline"),
                control=record.control,
                handicap=record.handicap,
                native=record.native,
            ),
            tunings={name: _planned_tuning(arm) for name, arm in record.tunings.items()},
            skipped=record.skipped,
            workloads={name: _study_workload(item) for name, item in record.workloads.items()},
            conditions=record.conditions,
            neighbours={name: Condition.of(name, one) for name, one in record.neighbours.items()},
            skipped_conditions=record.skipped_conditions,
            blocks=_there(record.blocks, "blocks"),
            blocks_per_boot=_there(record.blocks_per_boot, "blocks_per_boot"),
            guest=GuestShape(
                image=_there(guest.image, "guest.image"),
                vcpus=guest.vcpus,
                memory_mib=_there(guest.memory_mib, "guest.memory_mib"),
                data_disks=guest.data_disks or 1,
            ),
            limits=Limits(**record.limits),
            trials=record.trials,
            stopping=record.rule,
            spares=record.spares,
            published=record.published,
            expects=record.expects,
            tables=record.tables,
            collect=Level(record.collect or Level.COUNTERS),
            skipped_workloads=record.skipped_workloads,
            factorial=record.factorial,
            heatmaps=record.heatmaps,
            define=record.define,
            builds=record.builds,
            ab=record.ab,
        )


def _planned_tuning(arm: PlannedArm) -> PlannedTuning:
    return PlannedTuning(
        kind=Kind(arm.kind),
        twin=arm.twin,
        restore=arm.restore,
        description=arm.description,
        exercised_by=_there(arm.exercised_by, "exercised_by"),
        digest=_there(arm.digest, "digest"),
        durability=arm.durability,
        restored_as=arm.restored_as,
        workload=arm.workload,
    )


def _study_workload(item: PlannedWorkload) -> StudyWorkload:
    return StudyWorkload(
        program=_there(item.program, "program"),
        parameters=item.parameters,
        duration_s=_there(item.duration_s, "duration_s"),
        primary=_there(item.primary, "primary"),
        margin=_there(item.margin, "margin"),
        uses_data_disk=item.uses_data_disk,
        no_worse_than=item.no_worse_than,
        definition=item.definition,
        other_cpu=item.other_cpu,
    )


def _there(value: T | None, key: str) -> T:
    """Return a value that every plan has. Raises ValueError without it."""
    if value is None:
        raise ValueError(f"it has no '{key}'")
    return value


def _published_json(source: PublishedSource) -> dict[str, Any]:
    content = asdict(source)
    for item in content["results"]:
        # Results knew no cells once.
        if item["against_workload"] is None:
            del item["against_workload"]
    return content


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def changed_tunings(plan: Plan, tunings: Mapping[str, Tuning]) -> list[str]:
    """Return names of the plan's tunings whose definition is not the one that it was made with."""
    return [
        name
        for name, planned in plan.tunings.items()
        if name not in tunings or tuning_digest(tunings[name]) != planned.digest
    ]
