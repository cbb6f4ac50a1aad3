"""Which CPU each thread of a guest gets, from the host's topology alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import UsageError
from labctl.base.tuning import PLAN, Tuning
from labctl.host.topology import EFFICIENT, Cpu, Topology

DEFAULT_VCPUS_AT_MOST = 4
"""Enough to see lock holders preempted; few enough that trials don't take the host over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPlan:
    """Where a pinned guest's threads run.

    `vcpus[n]` is the CPU of vCPU n, `iothreads[n]` the CPUs of iothread n + 1. `reasons` says why,
    `shares` what has to share a CPU or a core: sentences.
    """

    vcpus: tuple[int, ...]
    emulator: CpuSet
    iothreads: tuple[CpuSet, ...]
    housekeeping: CpuSet
    usable: CpuSet
    online: CpuSet
    reasons: tuple[str, ...]
    shares: tuple[str, ...]

    @property
    def vcpu_cpus(self) -> CpuSet:
        """The CPUs of all vCPUs together: what a native twin runs on."""
        return frozenset(self.vcpus)

    def to_json(self) -> dict[str, Any]:
        return {
            "vcpus": {str(number): cpu for number, cpu in enumerate(self.vcpus)},
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
    """A tuning's pins with the plan filled in. None, or no entry, is a thread left free."""

    vcpus: Mapping[int, CpuSet]
    emulator: CpuSet | None
    iothreads: Mapping[int, CpuSet]


def placement(tuning: Tuning, plan: PinPlan) -> Placement:
    """What `tuning` pins where. Raises UsageError when the plan has too few iothreads."""
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
    """How many vCPUs a guest gets when nobody says: 1 on a host with two CPUs, else what a
    housekeeping core and, from four cores on, a CPU for the guest's own helper threads leave."""
    cores = topology.usable_cores()
    spare = len(cores[0]) if len(cores) > 1 else 1
    helpers = 1 if len(cores) >= 4 else 0
    return max(1, min(DEFAULT_VCPUS_AT_MOST, len(topology.usable) - spare - helpers))


def pin_plan(topology: Topology, vcpus: int, iothreads: int) -> PinPlan:
    """The pin plan for a guest of `vcpus` vCPUs and `iothreads` iothreads.

    Housekeeping keeps the first core (the kernel's own work gathers on CPU 0), vCPUs fill the
    hardware threads of neighbouring cores of one last-level cache, else of one node, and the
    guest's helper threads get CPUs of their own where some are left.
    Raises UsageError when there are more vCPUs than usable CPUs, or none.
    """
    usable = topology.usable
    if vcpus < 1 or iothreads < 0:
        raise UsageError(f"a guest cannot have {vcpus} vCPUs and {iothreads} iothreads")
    if vcpus > len(usable):
        raise UsageError(
            f"cannot place {vcpus} vCPUs: {_cpus_for_us(topology)}",
            hint=f"Give the guest {len(usable)} at most ('--vcpus {len(usable)}'), or leave the "
            f"number out for {default_vcpus(topology)}.",
        )
    housekeeping, why_housekeeping = _housekeeping(topology, vcpus)
    chosen, why_vcpus = _vcpu_cpus(topology, vcpus, housekeeping)
    helpers = _helper_cpus(topology, frozenset(chosen), housekeeping)
    if helpers:
        emulator = frozenset({helpers[0]})
        own = [frozenset({cpu}) for cpu in helpers[1:]]
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
        vcpus=tuple(chosen),
        emulator=emulator,
        iothreads=placed,
        housekeeping=housekeeping,
        usable=usable,
        online=topology.online,
        reasons=(why_housekeeping, *why_vcpus, why_helpers, *_limits(topology)),
        shares=(),
    )
    return _with_shares(plan, topology)


def picture(plan: PinPlan, topology: Topology) -> str:
    """The host's cores with what runs on each; cores without anything are one line per node.

    >     package 0, node 0, L3 of CPUs 0-1
    >       core 0   [0: emulator, iothread 1, housekeeping]
    >       core 1   [1: vCPU 0]
    """
    named = _roles(plan)
    lines: list[str] = []
    groups: dict[tuple[int, int, int | None, str], list[CpuSet]] = {}
    for core in topology.usable_cores():
        cpu = topology.cpu(min(core))
        groups.setdefault((cpu.package, cpu.node, cpu.l3, cpu.kind), []).append(core)
    for (package, node, l3, kind), cores in sorted(
        groups.items(), key=lambda item: min(item[1][0])
    ):
        cpus = frozenset().union(*cores)
        cache = f", L3 of CPUs {format_cpus(cpus)}" if l3 is not None else ""
        lines.append(f"package {package}, node {node}{cache}{f', {kind} cores' if kind else ''}")
        for core in cores:
            if core & named.keys():
                threads = "  ".join(f"[{_thread(cpu, named)}]" for cpu in sorted(core))
                lines.append(f"  core {topology.cpu(min(core)).core:<4}{threads}")
        if free := [core for core in cores if not core & named.keys()]:
            lines.append(f"  free     CPUs {format_cpus(frozenset().union(*free))}")
    if offline := topology.present - topology.online:
        lines.append(f"offline    CPUs {format_cpus(offline)}")
    if forbidden := topology.online - topology.allowed:
        lines.append(f"forbidden  CPUs {format_cpus(forbidden)}")
    return "\n".join(lines)


def _thread(cpu: int, named: dict[int, list[str]]) -> str:
    return f"{cpu}: {', '.join(named[cpu])}" if cpu in named else f"{cpu}: free"


def _roles(plan: PinPlan) -> dict[int, list[str]]:
    """CPU to what runs there, in words, for every CPU that has something."""
    named: dict[int, list[str]] = {}
    for number, cpu in enumerate(plan.vcpus):
        named.setdefault(cpu, []).append(f"vCPU {number}")
    for cpus, what in (
        (plan.emulator, "emulator"),
        *((cpus, f"iothread {number}") for number, cpus in enumerate(plan.iothreads, 1)),
        (plan.housekeeping, "housekeeping"),
    ):
        for cpu in sorted(cpus):
            named.setdefault(cpu, []).append(what)
    return named


def _cpus_for_us(topology: Topology) -> str:
    """'the host has CPUs 0-7', with what keeps some of them from us."""
    said = f"the host has CPUs {format_cpus(topology.present)}"
    if topology.usable == topology.present:
        return said
    limits = [f"{format_cpus(topology.online)} online"]
    if not topology.online <= topology.allowed:
        limits.append(f"{format_cpus(topology.usable)} allowed to labctl")
    return f"{said} ({', '.join(limits)})"


def _housekeeping(topology: Topology, vcpus: int) -> tuple[CpuSet, str]:
    usable, cores = topology.usable, topology.usable_cores()
    first = min(usable)
    if vcpus == len(usable):
        if len(usable) == 1:
            why = f"There is one CPU, {first}: everything shares it."
        else:
            why = (
                f"{vcpus} vCPUs take all {vcpus} CPUs: housekeeping shares CPU {first} with a vCPU."
            )
        return frozenset({first}), why
    if len(cores) > 1 and vcpus <= len(usable) - len(cores[0]):
        why = (
            f"CPU {format_cpus(cores[0])}, the first core, is for housekeeping: the kernel's own "
            "work, interrupts, labctl."
        )
        return cores[0], why
    return frozenset({first}), (
        f"CPU {first} alone is for housekeeping (the kernel's own work, interrupts, labctl), "
        "because the vCPUs need the others."
    )


def _vcpu_cpus(
    topology: Topology, vcpus: int, housekeeping: CpuSet
) -> tuple[list[int], tuple[str, ...]]:
    """The CPUs of vCPU 0, 1, … and the reasons for them."""
    free = [core - housekeeping for core in topology.usable_cores() if core - housekeeping]
    if sum(map(len, free)) < vcpus:  # as many vCPUs as CPUs: housekeeping has to share
        return sorted(topology.usable), ()

    def first(core: CpuSet) -> Cpu:
        return topology.cpu(min(core))

    nearness: tuple[tuple[str, Callable[[Cpu], object]], ...] = (
        ("one last-level cache", lambda cpu: (cpu.package, cpu.l3)),
        ("one NUMA node", lambda cpu: (cpu.package, cpu.node)),
        ("one package", lambda cpu: cpu.package),
    )
    for words, shared in nearness:
        groups: dict[object, list[CpuSet]] = {}
        for core in free:
            # Cores of two kinds never mix: a vCPU's speed would depend on its number.
            groups.setdefault((shared(first(core)), first(core).kind), []).append(core)
        fitting = [group for group in groups.values() if sum(map(len, group)) >= vcpus]
        if fitting:
            best = min(fitting, key=lambda group: _preference(first(group[0]), topology))
            chosen = _fill(best, vcpus)
            kind = first(best[0]).kind
            cores = f" ({kind} cores)" if kind else ""
            together = f", which share {words}" if vcpus > 1 else ""
            return chosen, (
                f"{_vcpu_range(vcpus)} on CPU {format_cpus(chosen)}{cores}{together}.",
                *_smt(chosen, topology),
            )
    ordered = sorted(free, key=lambda core: _preference(first(core), topology))
    chosen = _fill(ordered, vcpus)
    return chosen, (
        f"{_vcpu_range(vcpus)} on CPU {format_cpus(chosen)}: no single cache, node or kind of core "
        "has room for all of them, so they differ in speed and in distance to memory.",
        *_smt(chosen, topology),
    )


def _preference(cpu: Cpu, topology: Topology) -> tuple[bool, bool, int]:
    return cpu.kind == EFFICIENT, cpu.node not in topology.memory_nodes, cpu.number


def _fill(cores: Iterable[CpuSet], count: int) -> list[int]:
    """The first `count` hardware threads, core by core."""
    return [cpu for core in cores for cpu in sorted(core)][:count]


def _vcpu_range(vcpus: int) -> str:
    return "vCPU 0 is" if vcpus == 1 else f"vCPUs 0-{vcpus - 1} are"


def _smt(chosen: list[int], topology: Topology) -> tuple[str, ...]:
    if all(len(topology.cpu(cpu).siblings & set(chosen)) == 1 for cpu in chosen):
        return ()
    return (
        "They fill the hardware threads of whole cores, so that nothing else competes inside a "
        "core that runs a vCPU.",
    )


def _helper_cpus(topology: Topology, vcpus: CpuSet, housekeeping: CpuSet) -> list[int]:
    """CPUs left for the emulator threads and iothreads, the best first: cores without a vCPU
    near the vCPUs, then the siblings of vCPUs; one thread of each core before a second."""
    home = topology.cpu(min(vcpus))

    def order(number: int) -> tuple[bool, bool, bool, bool, int]:
        cpu = topology.cpu(number)
        return (
            bool(cpu.siblings & vcpus),
            (cpu.package, cpu.l3) != (home.package, home.l3),
            cpu.node != home.node,
            number != min(cpu.siblings & topology.usable),
            number,
        )

    return sorted(topology.usable - vcpus - housekeeping, key=order)


def _limits(topology: Topology) -> tuple[str, ...]:
    limits = []
    if offline := topology.present - topology.online:
        limits.append(f"CPU {format_cpus(offline)} is offline.")
    if forbidden := topology.online - topology.allowed:
        limits.append(
            f"CPU {format_cpus(forbidden)} is out of reach: labctl's affinity or cpuset leaves "
            f"{format_cpus(topology.usable)}."
        )
    return tuple(limits)


def _with_shares(plan: PinPlan, topology: Topology) -> PinPlan:
    shares = [
        f"CPU {cpu} is shared by {_and(what)}."
        for cpu, what in sorted(_roles(plan).items())
        if len(what) > 1
    ]
    for number, cpu in enumerate(plan.vcpus):
        for sibling in sorted(topology.cpu(cpu).siblings & plan.usable - {cpu}):
            others = [what for what in _roles(plan).get(sibling, []) if not what.startswith("vCPU")]
            if others:
                shares.append(
                    f"vCPU {number} (CPU {cpu}) shares a core with {_and(others)} (CPU {sibling})."
                )
    return replace(plan, shares=tuple(shares))


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
