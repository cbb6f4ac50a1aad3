"""Decide which conditions this host supports, and on which CPUs their neighbours run."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.errors import HostError
from labctl.base.tuning import Strategy, Tuning
from labctl.domain.pinning.pin_plan import PinPlan, placement
from labctl.host import cgroups
from labctl.host.cgroups import Layout
from labctl.host.guest_memory import MIB, why_too_many
from labctl.host.own_cgroups import CpuLimits, why_no_limits
from labctl.host.topology import Topology
from labctl.store.records.plan_record import HOG
from labctl.study.conditions import (
    EMULATOR,
    EVERYWHERE,
    SIBLINGS,
    VCPUS,
    Condition,
    Kind,
    Neighbour,
    load_condition,
)
from labctl.study.plan import Plan
from labctl.study.study import Study
from labctl.workloads.beside import Beside
from labctl.workloads.registry import checkers
from labctl.workloads.workload import Workload

# Look up the conditions of a plan, and the workloads that run beside its trials.


def condition_of(plan: Plan | Study, name: str) -> Condition | None:
    """Return the neighbours beside trials of a plan's condition; None for a quiet one."""
    if name in plan.neighbours:
        return plan.neighbours[name]
    if plan.neighbours or name != HOG:
        return None
    return load_condition(HOG, checkers())


def noisy(plan: Plan | Study) -> list[Condition]:
    """Return the conditions of a plan that have neighbours."""
    found = (condition_of(plan, name) for name in plan.conditions)
    return [condition for condition in found if condition is not None]


def beside_of(neighbour: Neighbour) -> Beside:
    """Return the workload of a neighbour. Raises as `Beside.of` does."""
    return Beside.of(neighbour.program, neighbour.definition, neighbour.parameters, neighbour.run_s)


def neighbours_of(plan: Plan | Study) -> Iterator[Neighbour]:
    """Yield all neighbours of a plan's conditions."""
    for condition in noisy(plan):
        yield from condition.neighbours


def programs_beside(plan: Plan | Study) -> list[Workload]:
    """Return the workloads that neighbours run."""
    return [beside_of(one).program for one in neighbours_of(plan)]


def most_guests(plan: Plan | Study) -> int:
    """Return the largest number of guests that run beside a trial."""
    return max((condition.guests for condition in noisy(plan)), default=0)


def on_the_host(plan: Plan | Study) -> list[str]:
    """Return the conditions whose neighbours run in the image's tree on the host."""
    return [
        condition.name
        for condition in noisy(plan)
        if any(one.kind is not Kind.GUESTS for one in condition.neighbours)
    ]


def cpus_of(neighbour: Neighbour, topology: Topology, pin_plan: PinPlan) -> CpuSet:
    """Return the CPUs that neighbours may use, the same under every tuning; none if the host has no
    such CPU."""
    named = {
        EVERYWHERE: topology.usable,
        VCPUS: pin_plan.vcpu_cpus,
        SIBLINGS: (topology.siblings(pin_plan.vcpu_cpus) - pin_plan.vcpu_cpus) & topology.usable,
        EMULATOR: pin_plan.emulator,
    }
    found = named.get(neighbour.cpus)
    return parse_cpus(neighbour.cpus) if found is None else found


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestsHere:
    """Hold the resources that a run's guests take of this host. `total_bytes`: all of its memory;
    `keeps_network`: they stay on the networks of the domain that they are copies of."""

    memory_mib: int
    total_bytes: int
    keeps_network: bool = False

    @classmethod
    def of(cls, memory_mib: int, *, keeps_network: bool = False) -> GuestsHere:
        """Return the resources that guests of that size take of this host."""
        total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(memory_mib=memory_mib, total_bytes=total_bytes, keeps_network=keeps_network)

    def why_not(self, condition: Condition) -> str | None:
        """Return why a condition's neighbours cannot be guests here; None if they can."""
        if not condition.guests:
            return None
        if self.keeps_network:
            return (
                "neighbours that are guests would have the addresses of the measured one, and "
                "with --keep-network they would be on its networks"
            )
        # Includes the measured guest.
        return why_too_many(condition.guests + 1, self.memory_mib * MIB, self.total_bytes)


def unfit_conditions(
    conditions: Mapping[str, Condition],
    topology: Topology,
    pin_plans: Mapping[Strategy, PinPlan],
    asked_for: Collection[str],
    guests: GuestsHere,
    layout: Layout | None = None,
) -> dict[str, str]:
    """Return the conditions that this host does not support, with the reason. `layout`: of its
    cgroups. Raises HostError for one that is requested by name."""
    layout = layout or cgroups.detect()
    pin_plan = pin_plans[Strategy.COMPACT]
    found: dict[str, str] = {}
    for name, condition in conditions.items():
        reasons = [
            guests.why_not(condition),
            *(why_not(one, topology, pin_plan, layout) for one in condition.neighbours),
        ]
        if why := next((reason for reason in reasons if reason), None):
            found[name] = why
    for name in asked_for:
        if name in found:
            raise HostError(
                f"this host can't have the condition '{name}': {found[name]}",
                hint="Choose another: --condition quiet.",
            )
    return found


def why_not_isolated(
    tuning: Tuning,
    conditions: Iterable[Condition],
    topology: Topology,
    pin_plans: Mapping[Strategy, PinPlan],
) -> str | None:
    """Return why a tuning with a cpuset partition cannot be measured under one of these conditions;
    None if it can. The kernel lets no neighbour run on the CPUs of a partition."""
    if not tuning.pin.partition:
        return None
    vcpus = frozenset().union(*placement(tuning, pin_plans[tuning.pin.strategy]).vcpus.values())
    for condition in conditions:
        for one in condition.neighbours:
            if shared := cpus_of(one, topology, pin_plans[Strategy.COMPACT]) & vcpus:
                return (
                    f"the condition '{condition.name}' has neighbours on CPU {format_cpus(shared)},"
                    " which the tuning isolates for the vCPUs"
                )
    return None


def why_not(
    neighbour: Neighbour, topology: Topology, pin_plan: PinPlan, layout: Layout
) -> str | None:
    """Return why this host cannot have such neighbours; None if it can."""
    cpus = cpus_of(neighbour, topology, pin_plan)
    if not cpus:
        return "no core that has a vCPU has another hardware thread that labctl may use"
    if missing := cpus - topology.usable:
        return (
            f"its neighbours want CPUs {format_cpus(missing)}, and this host's are "
            f"{format_cpus(topology.usable)}"
        )
    if neighbour.kind is Kind.CGROUP:
        limits = CpuLimits(quota_percent=neighbour.quota_percent)
        return why_no_limits(layout, limits)
    return None
