"""Decide which CPU each thread of a guest gets, from the host's topology alone
(docs/pin-plan.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import UsageError
from labctl.base.tuning import PLAN, Strategy, Tuning
from labctl.domain.pinning.vcpus import guest_topology, vcpu_cpus
from labctl.host.topology import Topology

DEFAULT_VCPUS_AT_MOST = 4
"""Enough to see lock holders preempted; few enough that trials don't take the host over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPlan:
    """Say where a pinned guest's threads run.

    `vcpus[n]` is the CPU of vCPU n and `vcpu_nodes[n]` that CPU's NUMA node, `iothreads[n]` the
    CPUs of iothread n + 1. `guest_topology` is the sockets, cores per socket and threads per core
    that show the guest what its vCPUs share. `reasons` says why, `shares` what has to share a CPU
    or a core: sentences.
    """

    strategy: Strategy
    vcpus: tuple[int, ...]
    vcpu_nodes: tuple[int, ...]
    guest_topology: tuple[int, int, int]
    emulator: CpuSet
    iothreads: tuple[CpuSet, ...]
    housekeeping: CpuSet
    usable: CpuSet
    online: CpuSet
    reasons: tuple[str, ...]
    shares: tuple[str, ...]

    @property
    def vcpu_cpus(self) -> CpuSet:
        """Return the CPUs of all vCPUs together: what a native twin runs on."""
        return frozenset(self.vcpus)

    def roles(self) -> dict[int, list[str]]:
        """Return CPU to what runs there, in words, for every CPU that has something."""
        named: dict[int, list[str]] = {}
        for number, cpu in enumerate(self.vcpus):
            named.setdefault(cpu, []).append(f"vCPU {number}")
        for cpus, what in (
            (self.emulator, "emulator"),
            *((cpus, f"iothread {number}") for number, cpus in enumerate(self.iothreads, 1)),
            (self.housekeeping, "housekeeping"),
        ):
            for cpu in sorted(cpus):
                named.setdefault(cpu, []).append(what)
        return named

    def to_json(self) -> dict[str, Any]:
        sockets, cores, threads = self.guest_topology
        return {
            "strategy": self.strategy.value,
            "vcpus": {str(number): cpu for number, cpu in enumerate(self.vcpus)},
            "vcpu_nodes": {str(number): node for number, node in enumerate(self.vcpu_nodes)},
            "guest_topology": {"sockets": sockets, "cores": cores, "threads": threads},
            "emulator": format_cpus(self.emulator),
            "iothreads": {
                str(number): format_cpus(cpus) for number, cpus in enumerate(self.iothreads, 1)
            },
            "housekeeping": format_cpus(self.housekeeping),
            "usable": format_cpus(self.usable),
            "online": format_cpus(self.online),
            "reasons": list(self.reasons),
            "shares": list(self.shares),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Hold a tuning's pins with the plan filled in. None, or no entry, is a thread left free."""

    vcpus: Mapping[int, CpuSet]
    emulator: CpuSet | None
    iothreads: Mapping[int, CpuSet]


def placement(tuning: Tuning, plan: PinPlan) -> Placement:
    """Return what `tuning` pins where. Raises UsageError when the plan has too few iothreads."""
    if tuning.iothreads > len(plan.iothreads):
        raise UsageError(
            f"tuning '{tuning.name}' has {tuning.iothreads} iothreads and the pin plan places "
            f"{len(plan.iothreads)}",
            hint="Make the pin plan for as many iothreads as the tunings have at most.",
        )
    pin = tuning.pin
    planned_vcpus = {number: frozenset({cpu}) for number, cpu in enumerate(plan.vcpus)}
    planned_iothreads = dict(enumerate(plan.iothreads[: tuning.iothreads], 1))
    return Placement(
        vcpus=_chosen(pin.vcpus, planned_vcpus),
        emulator=plan.emulator if pin.emulator == PLAN else _explicit(pin.emulator),
        iothreads=_chosen(pin.iothreads, planned_iothreads),
    )


def _chosen(
    pin: str | Mapping[int, CpuSet] | None, planned: Mapping[int, CpuSet]
) -> Mapping[int, CpuSet]:
    if pin is None:
        return {}
    return planned if isinstance(pin, str) else pin


def _explicit(pin: str | CpuSet | None) -> CpuSet | None:
    return None if isinstance(pin, str) else pin


def default_vcpus(topology: Topology) -> int:
    """Return how many vCPUs a guest gets by default: 1 on a host with two CPUs, else what a
    housekeeping core and, from four cores on, a CPU for the guest's own helper threads leave; on a
    host with isolated CPUs no more than these."""
    cores = topology.cores(topology.pinnable)
    spare = len(cores[0]) if len(cores) > 1 else 1
    helpers = 1 if len(cores) >= 4 else 0
    room = len(topology.isolated) or len(topology.usable) - spare - helpers
    return max(1, min(DEFAULT_VCPUS_AT_MOST, room))


def pin_plan(
    topology: Topology, vcpus: int, iothreads: int, strategy: Strategy = Strategy.COMPACT
) -> PinPlan:
    """Return the pin plan for a guest of `vcpus` vCPUs and `iothreads` iothreads.

    Housekeeping keeps the first core (the kernel's own work gathers on CPU 0), the strategy
    chooses the vCPUs' CPUs among the others, and the guest's helper threads get CPUs of their own
    where some are left. Raises UsageError when there are more vCPUs than CPUs, or none, and where
    the strategy can't be had.
    """
    if vcpus < 1 or iothreads < 0:
        raise UsageError(f"a guest cannot have {vcpus} vCPUs and {iothreads} iothreads")
    if vcpus > len(topology.pinnable):
        raise UsageError(
            f"cannot place {vcpus} vCPUs: {_cpus_for_us(topology)}",
            hint=f"Give the guest {len(topology.pinnable)} at most "
            f"('--vcpus {len(topology.pinnable)}'), or leave the number out for "
            f"{default_vcpus(topology)}.",
        )
    housekeeping, why_housekeeping = _housekeeping(topology, vcpus)
    chosen, why_vcpus = vcpu_cpus(topology, vcpus, housekeeping, strategy)
    why_same: tuple[str, ...] = ()
    if strategy is not Strategy.COMPACT:
        # Helpers' CPUs follow from the vCPUs'.
        compact, _ = vcpu_cpus(topology, vcpus, housekeeping, Strategy.COMPACT)
        if chosen == compact:
            why_same = (f"On this host '{strategy}' places these threads just as 'compact' does.",)
    helpers = _helper_cpus(topology, frozenset(chosen), housekeeping)
    if helpers:
        emulator = frozenset({helpers[0]})
        own = [frozenset({cpu}) for cpu in helpers[1 : iothreads + 1]]
        placed = tuple(own[n] if n < len(own) else emulator for n in range(iothreads))
        why_helpers = (
            f"The emulator threads have CPU {helpers[0]}, so that neither the vCPUs nor the host's "
            "housekeeping wait for them."
        )
    else:
        emulator, placed = housekeeping, (housekeeping,) * iothreads
        why_helpers = (
            "No CPU is left for the emulator threads and iothreads: they run with the host's "
            f"housekeeping on CPU {format_cpus(housekeeping)}."
        )
    plan = PinPlan(
        strategy=strategy,
        vcpus=tuple(chosen),
        vcpu_nodes=tuple(topology.cpu(cpu).node for cpu in chosen),
        guest_topology=guest_topology(topology, chosen),
        emulator=emulator,
        iothreads=placed,
        housekeeping=housekeeping,
        usable=topology.usable,
        online=topology.online,
        reasons=(why_housekeeping, *why_vcpus, *why_same, why_helpers, *_limits(topology)),
        shares=(),
    )
    return replace(plan, shares=_shares(plan, topology))


def same_placement(a: PinPlan, b: PinPlan) -> bool:
    """Return whether two plans put every thread on the same CPUs, whatever their strategies are
    called.

    Tunings that differ by such plans alone are one tuning.
    """
    return (a.vcpus, a.emulator, a.iothreads) == (b.vcpus, b.emulator, b.iothreads)


def _cpus_for_us(topology: Topology) -> str:
    """'the host has CPUs 0-7', with what keeps some of them from us."""
    said = f"the host has CPUs {format_cpus(topology.present)}"
    if topology.pinnable == topology.present:
        return said
    limits = [f"{format_cpus(topology.online)} online"]
    if not topology.online <= topology.pinnable:
        limits.append(f"{format_cpus(topology.pinnable)} allowed to labctl")
    return f"{said} ({', '.join(limits)})"


def _housekeeping(topology: Topology, vcpus: int) -> tuple[CpuSet, str]:
    # Nothing is scheduled onto an isolated CPU, so that housekeeping has no use for it.
    shared = topology.usable - topology.isolated or topology.usable
    cores = topology.cores(shared)
    first, every = min(shared), len(topology.pinnable)
    if vcpus == every:
        if every == 1:
            why = f"There is one CPU, {first}: everything shares it."
        else:
            why = (
                f"{vcpus} vCPUs take all {vcpus} CPUs: housekeeping shares CPU {first} with a vCPU."
            )
        return frozenset({first}), why
    if len(topology.cores(topology.pinnable)) > 1 and vcpus <= every - len(cores[0]):
        why = (
            f"CPU {format_cpus(cores[0])}, the first core, is for housekeeping: the kernel's own "
            "work, interrupts, labctl."
        )
        return cores[0], why
    return frozenset({first}), (
        f"CPU {first} alone is for housekeeping (the kernel's own work, interrupts, labctl), "
        "because the vCPUs need the others."
    )


def _helper_cpus(topology: Topology, vcpus: CpuSet, housekeeping: CpuSet) -> list[int]:
    """Return CPUs left for the emulator threads and iothreads, the best first: cores without a vCPU
    near the vCPUs, then the siblings of vCPUs; one thread of each core before a second."""
    home = topology.cpu(min(vcpus))
    busy = frozenset().union(*(topology.cpu(number).siblings for number in vcpus))
    firsts = frozenset(min(core) for core in topology.cores(topology.pinnable))

    def order(number: int) -> tuple[bool, bool, bool, bool, bool, int]:
        cpu = topology.cpu(number)
        return (
            number in topology.isolated,
            number in busy,
            (cpu.package, cpu.l3) != (home.package, home.l3),
            cpu.node != home.node,
            number not in firsts,
            number,
        )

    return sorted(topology.pinnable - vcpus - housekeeping, key=order)


def _limits(topology: Topology) -> tuple[str, ...]:
    limits = []
    if offline := topology.present - topology.online:
        limits.append(f"CPU {format_cpus(offline)} is offline.")
    if forbidden := topology.online - topology.pinnable:
        limits.append(
            f"CPU {format_cpus(forbidden)} is out of reach: labctl's affinity or cpuset leaves "
            f"{format_cpus(topology.usable)}."
        )
    return tuple(limits)


def _shares(plan: PinPlan, topology: Topology) -> tuple[str, ...]:
    named = plan.roles()
    shares = [
        f"CPU {cpu} is shared by {_and(what)}." for cpu, what in sorted(named.items()) if what[1:]
    ]
    for number, cpu in enumerate(plan.vcpus):
        for sibling in sorted((topology.cpu(cpu).siblings & topology.pinnable) - {cpu}):
            others = [what for what in named.get(sibling, []) if not what.startswith("vCPU")]
            if others:
                shares.append(
                    f"vCPU {number} (CPU {cpu}) shares a core with {_and(others)} (CPU {sibling})."
                )
    return tuple(shares)


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
