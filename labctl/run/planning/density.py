"""Plan a density run: which guests of which tunings, how many at most, in which order. Only
reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from labctl.base.errors import HostError, UsageError, nearest
from labctl.base.paths import MOST_NEIGHBOURS, StatePaths
from labctl.base.quantities import SCALES, quantity
from labctl.base.tuning import Kind, Strategy, Tuning
from labctl.base.units import Better, Unit
from labctl.base.wording import counted
from labctl.domain.pinning.pin_plan import PinPlan, pin_plans
from labctl.host.accelerator import Requested
from labctl.host.guest_memory import MIB, most_guests, needed_bytes
from labctl.host.topology import Topology
from labctl.run.planning.plan import plan_sweep
from labctl.run.planning.planned import Planned, SweepRequest
from labctl.store.density_record import Bound, Limit
from labctl.study.load_study import OneProgram, Overrides
from labctl.study.order import block_order
from labctl.study.tunings import load_tunings
from labctl.workloads.metric_file import metric_names
from labctl.workloads.readers.names import MetricName
from labctl.workloads.registry import workload_of
from labctl.workloads.workload import Workload

# Choose the CPUs of each guest among many of one kind (docs/decisions/density.md).


@dataclass(frozen=True, slots=True)
class Places:
    """Hold the pin plans of the guests that have CPUs of their own, by strategy; further guests
    share these CPUs, from the first on."""

    plans: Mapping[Strategy, tuple[PinPlan, ...]]

    def of(self, number: int) -> dict[Strategy, PinPlan]:
        """Return the pin plans of guest `number`, from 0."""
        return {strategy: plans[number % len(plans)] for strategy, plans in self.plans.items()}


def places(topology: Topology, alone: Mapping[Strategy, PinPlan]) -> Places:
    """Return the places of as many guests as the host has CPUs for all their vCPUs. `alone`: the
    plans of one guest, which define its size and the topology that it is shown."""
    return Places({strategy: _side_by_side(topology, plan) for strategy, plan in alone.items()})


def _side_by_side(topology: Topology, alone: PinPlan) -> tuple[PinPlan, ...]:
    vcpus, iothreads = len(alone.vcpus), len(alone.iothreads)
    for guests in range(len(topology.pinnable) // vcpus, 1, -1):
        try:
            plans = pin_plans(topology, [vcpus] * guests, iothreads, alone.strategy)
        except UsageError:
            continue  # the strategy has no room for so many
        # All are clones of one guest, which saw its own topology when it booted.
        return tuple(replace(plan, guest_topology=alone.guest_topology) for plan in plans)
    return (alone,)


# Choose how many guests to try next, until the limit breaks. Pure.


class Search(StrEnum):
    UP = "up"
    """One more guest at each step."""
    BISECT = "bisect"
    """Twice as many until the limit breaks, then bisection."""


def next_count(held: Mapping[int, bool], most: int, search: Search) -> int | None:
    """Return how many guests to try next; None when the number is known, or `most` kept the limit.

    `held`: by number of guests, whether the limit held.
    """
    fitting, broken = bracket(held)
    if broken is None:
        if fitting >= most:
            return None
        step = 1 if search is Search.UP else max(1, fitting)
        return min(fitting + step, most)
    return (fitting + broken) // 2 if broken - fitting > 1 else None


def bracket(held: Mapping[int, bool]) -> tuple[int, int | None]:
    """Return the largest number that held below the smallest that broke (0 for none), and the
    latter; None if none broke."""
    broken = min((guests for guests, held_there in held.items() if not held_there), default=None)
    fitting = [
        guests for guests, there in held.items() if there and (broken is None or guests < broken)
    ]
    return max(fitting, default=0), broken


# Read a limit as people write it, 'frame_p95 < 16 ms', and check it against a workload's metrics.


_LIMIT = re.compile(
    r"\s*(?P<metric>\w+)\s*(?P<bound><=|>=|<|>)\s*(?P<quantity>[^<>=\s][^<>=]*?)\s*"
)
_LIKE_THIS = "Write a metric, <, <=, > or >=, a number and its unit: 'frame_p95 < 16 ms'."


def limit_of(text: str, program: Workload) -> Limit:
    """Return the limit that a text declares on one of the workload's metrics.

    Raises UsageError for an unknown metric, for a unit that is not the metric's, and for a limit on
    the side where values are better.
    """
    parts = _LIMIT.fullmatch(text)
    if parts is None:
        raise UsageError(f"--limit: expected a limit, got '{text[:80]}'", hint=_LIKE_THIS)
    known = metric_names(program.file.metrics)
    name, bound = parts["metric"], Bound(parts["bound"])
    if name not in known:
        raise UsageError(
            f"--limit: workload '{program.name}' has no metric '{name}'", hint=nearest(name, known)
        )
    value, unit = _value(parts["quantity"], name, known[name])
    _check_side(name, bound, known[name].better)
    return Limit(metric=name, bound=bound, value=value, unit=unit)


def _value(text: str, name: str, metric: MetricName) -> tuple[float, Unit]:
    try:
        number, scale = quantity(text)
    except ValueError as error:
        raise UsageError(f"--limit: {error}", hint=_LIKE_THIS) from error
    own = f"of '{name}', which has {_units(metric.unit)}"
    if scale is None:
        # A bare number of seconds is a slip by a factor of a thousand more often than not.
        if metric.unit not in (Unit.COUNT, Unit.FRACTION):
            raise UsageError(
                f"--limit: {text} has no unit: a value {own}, needs one", hint=_LIKE_THIS
            )
        return number, metric.unit
    if metric.unit is not None and scale.unit is not metric.unit:
        raise UsageError(f"--limit: {text} is not a value {own}")
    return number * scale.factor, scale.unit


def _units(unit: Unit | None) -> str:
    if unit is None:
        return "the unit that the program prints"
    words = [word for word, scale in SCALES.items() if scale.unit is unit]
    return f"one of the units {', '.join(words)}" if words else f"the unit {unit}"


def _check_side(name: str, bound: Bound, better: Better) -> None:
    wanted = {Better.LOWER: True, Better.HIGHER: False}.get(better)
    if wanted is not None and bound.is_upper is not wanted:
        ends, use = ("at most", "<") if wanted else ("at least", ">")
        raise UsageError(
            f"--limit: '{name}' is better {better}, so a limit must be '{ends}' a value",
            hint=f"Write '{name} {use} …'.",
        )


# Plan a density run.


STUDY = "selftest"
"""Study with the roles and the image of a density run."""

_RESTORE_S = 4.0
"""Time for a restore and its first answer, of an emulated guest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DensityRequest:
    """Hold a user's request. `most`: largest number of guests to try; None for as many as fit into
    the host's memory."""

    workload: OneProgram
    limit: Limit
    tunings: Sequence[str]
    blocks: int
    search: Search
    places: StatePaths
    results: Path
    most: int | None = None
    vcpus: int = 1
    memory_mib: int | None = None
    seed: int | None = None
    accel: Requested = "auto"
    wait_quiet_s: float = 600.0
    """Longest total wait for the host to become idle."""

    @property
    def sweep(self) -> SweepRequest:
        """Return the request of a sweep with the same requirements."""
        return SweepRequest(
            study=STUDY,
            places=self.places,
            results=self.results,
            overrides=Overrides(
                tunings=tuple(self.tunings),
                program=self.workload,
                blocks=self.blocks,
                vcpus=self.vcpus,
                memory_mib=self.memory_mib,
            ),
            seed=self.seed,
            accel=self.accel,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DensityPlan:
    """Hold a plan for this host. `most_by`: why no more than `most` guests are tried, a clause;
    `places`: each guest's CPUs under a tuning that pins."""

    request: DensityRequest
    planned: Planned
    most: int
    most_by: str
    places: Places

    @property
    def tunings(self) -> tuple[Tuning, ...]:
        return tuple(self.planned.tunings[name] for name in self.request.tunings)

    @property
    def memory_mib(self) -> int:
        return self.planned.plan.guest.memory_mib

    @property
    def needed_mib(self) -> int:
        """Return the memory of the largest number of guests, with their QEMUs."""
        return needed_bytes(self.most, self.memory_mib * MIB) // MIB

    @property
    def step_s(self) -> float:
        """Return the approximate duration of one step with few guests: a restore, warm-up, the
        window."""
        declared = self.request.workload.workload
        return _RESTORE_S + workload_of(declared).file.trial.least_s + declared.duration_s

    def order(self, block: int) -> tuple[str, ...]:
        """Return the tunings of a block, from 1, in the order in which they are tried."""
        seed = self.planned.plan.seed
        return block_order(self.request.tunings, seed=seed, block=block, what="density")


def plan_density(request: DensityRequest, accelerator: str | None = None) -> DensityPlan:
    """Return the plan. Raises UsageError for a workload or a tuning that does not work with many
    guests, HostError if this host does not support the tunings or lacks the memory."""
    _check_workload(request.workload)
    _check_tunings(request.tunings)
    return planned_density(request, plan_sweep(request.sweep, accelerator))


def planned_density(request: DensityRequest, planned: Planned) -> DensityPlan:
    """Return the plan of a request whose sweep is planned. Raises HostError if memory is short, and
    for a workload that guests cannot run here."""
    skipped = planned.plan.skipped_workloads.get(request.workload.name, {})
    if (why := skipped.get(str(Kind.GUEST))) is not None:
        raise HostError(f"{request.workload.name} does not run in guests here: {why}")
    most, most_by = _most(request.most, planned.plan.guest.memory_mib)
    return DensityPlan(
        request=request,
        planned=planned,
        most=most,
        most_by=most_by,
        places=places(planned.topology, planned.pin_plans),
    )


def _check_workload(one: OneProgram) -> None:
    program = workload_of(one.workload)
    why = None
    if program.uses_data_disk:
        why = "it uses the data disk, which only one guest has"
    elif program.peer(one.workload.parameters) is not None:
        why = "it needs a peer, which only one guest has"
    elif program.file.trial.kind == "once":
        why = "it is one run of fixed work, so guests have no common window"
    if why is not None:
        raise UsageError(
            f"workload '{one.name}' can't run in many guests at once: {why}",
            hint="'labctl workload list' shows the others.",
        )


def _check_tunings(names: Sequence[str]) -> None:
    for name, tuning in load_tunings(tuple(names)).items():
        why = None
        if tuning.kind is Kind.NATIVE:
            why = "it is not a guest"
        elif not tuning.restore:
            why = "its guests must boot, but density uses clones of one snapshot"
        elif tuning.pin.partition:
            why = "its partition leaves these CPUs to one guest"
        if why is not None:
            raise UsageError(f"tuning '{name}' has no density: {why}", hint="Leave it out.")


def _most(asked: int | None, memory_mib: int) -> tuple[int, str]:
    """Return the largest number of guests to try, and the reason for it."""
    room = most_guests(memory_mib * MIB)
    fitting, words = room if room is not None else (MOST_NEIGHBOURS, "the host reports no memory")
    if (asked or 1) > fitting:
        needed = needed_bytes(asked or 1, memory_mib * MIB) // MIB
        raise HostError(
            f"{counted(asked or 1, 'guest')} of {memory_mib} MiB: {needed} MiB needed, but memory "
            f"suffices for {fitting}: {words}",
            hint=f"Use --most {fitting} or less, or smaller guests (--memory)."
            if fitting
            else "Use smaller guests (--memory).",
        )
    if asked is not None and asked <= MOST_NEIGHBOURS:
        return asked, "--most"
    if fitting <= MOST_NEIGHBOURS:
        return fitting, "the host's memory"
    return MOST_NEIGHBOURS, "the most guests that labctl starts"
