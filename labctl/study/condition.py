"""Describe what else happens on the host during a trial: a condition and its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from labctl.store.records.plan_record import PlannedCondition, PlannedNeighbour

PER_CPU: Final = "per-cpu"
"""Count of neighbours that are one for each of their CPUs."""

EVERYWHERE: Final = "everywhere"
VCPUS: Final = "vcpus"
SIBLINGS: Final = "siblings"
EMULATOR: Final = "emulator"
PLACES: Final = (EVERYWHERE, VCPUS, SIBLINGS, EMULATOR)
"""Names of sets of CPUs; neighbours may name CPUs by their numbers as well."""


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
    parameters: Mapping[str, Any] = field(default_factory=dict)
    count: int | None = None
    cpus: str = EVERYWHERE
    kind: Kind = Kind.PROCESS
    weight: int | None = None
    quota_percent: int | None = None
    memory_mib: int = 256
    run_s: float = 1.0
    guests: int | None = None
    definition: Mapping[str, Any] | None = None

    def record(self) -> PlannedNeighbour:
        return PlannedNeighbour.made(self.to_json())

    def to_json(self) -> dict[str, Any]:
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

    def to_json(self) -> dict[str, Any]:
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
