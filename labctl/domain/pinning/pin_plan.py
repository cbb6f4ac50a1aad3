"""Decide which CPU each thread of a guest gets, from the host's topology alone
(docs/pin-plan.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import UsageError
from labctl.base.placement import RT_RUNTIME_US, HostCpus
from labctl.base.tuning import PLAN, Strategy, Tuning
from labctl.domain.pinning.vcpus import guest_topology, untold, vcpu_cpus
from labctl.host.topology import Topology

# Choose the CPUs of guests' emulator threads and iothreads among those that the vCPUs leave.


Helpers = tuple[CpuSet, tuple[CpuSet, ...], str]
"""CPUs of a guest's emulator threads and of each of its iothreads, and why."""


def helper_cpus(
    topology: Topology, guests: Sequence[Sequence[int]], housekeeping: CpuSet, iothreads: int
) -> list[Helpers]:
    """Return the CPUs of each guest's helper threads. `guests`: the CPUs of each one's vCPUs."""
    vcpus = frozenset(cpu for cpus in guests for cpu in cpus)
    free = [_free(topology, frozenset(cpus), vcpus, housekeeping) for cpus in guests]
    taken: set[int] = set()

    def own(guest: int, *, near: bool) -> int | None:
        """Take a free CPU for a thread of the guest; `near`: on a NUMA node of its vCPUs."""
        nodes = {topology.cpu(cpu).node for cpu in guests[guest]}
        for cpu in free[guest]:
            if cpu not in taken and (not near or topology.cpu(cpu).node in nodes):
                taken.add(cpu)
                return cpu
        return None

    # One guest takes any CPU; several leave other nodes' CPUs to the guests of those nodes.
    near = len(guests) > 1
    emulators = [own(guest, near=near) for guest in range(len(guests))]
    alone = [cpu is not None for cpu in emulators]
    for guest, cpu in enumerate(emulators):
        if cpu is None:
            emulators[guest] = _shared(topology, guests[guest], emulators)
    placed: list[list[CpuSet]] = [[] for _ in guests]
    for _ in range(iothreads):
        for guest, emulator in enumerate(emulators):
            cpu = own(guest, near=near) if alone[guest] else None
            cpu = emulator if cpu is None else cpu
            placed[guest].append(housekeeping if cpu is None else frozenset({cpu}))
    return [
        (
            housekeeping if cpu is None else frozenset({cpu}),
            tuple(placed[guest]),
            _why_helpers(cpu, housekeeping, alone=alone[guest]),
        )
        for guest, cpu in enumerate(emulators)
    ]


def _shared(
    topology: Topology, vcpus: Sequence[int], emulators: Sequence[int | None]
) -> int | None:
    """Return the CPU on the guest's NUMA nodes with the fewest emulators; None if there is none."""
    nodes = {topology.cpu(cpu).node for cpu in vcpus}
    near = [cpu for cpu in emulators if cpu is not None and topology.cpu(cpu).node in nodes]
    return min(near, key=lambda cpu: (near.count(cpu), cpu), default=None)


def _why_helpers(cpu: int | None, housekeeping: CpuSet, *, alone: bool) -> str:
    if cpu is None:
        return (
            "No CPU is left for the emulator threads and iothreads: they run with the host's "
            f"housekeeping on CPU {format_cpus(housekeeping)}."
        )
    if alone:
        return (
            f"The emulator threads have CPU {cpu}, so that neither the vCPUs nor the host's "
            "housekeeping wait for them."
        )
    return (
        f"No CPU near the vCPUs is left for this guest's emulator threads and iothreads alone: "
        f"they share CPU {cpu} with another guest's."
    )


def _free(topology: Topology, own: CpuSet, vcpus: CpuSet, housekeeping: CpuSet) -> list[int]:
    """Return CPUs left for the emulator threads and iothreads, the best first: cores without a vCPU
    near the guest's `own` vCPUs, then the siblings of vCPUs; one thread of each core before a
    second. `vcpus`: those of all guests."""
    home = topology.cpu(min(own))
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


DEFAULT_VCPUS_AT_MOST = 4
"""Enough to see preempted lock holders; few enough that trials do not use the whole host."""


HOUSEKEEPING = "housekeeping"
"""Name of the role of housekeeping CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPlan:
    """Hold the CPUs of a pinned guest's threads.

    `vcpus[n]` is the CPU of vCPU n and `vcpu_nodes[n]` that CPU's NUMA node, `iothreads[n]` the
    CPUs of iothread n + 1. `guest_topology` is the sockets, cores per socket and threads per core
    that show the guest what its vCPUs share. `reasons` explains the choice, `shares` lists threads
    that have to share a CPU or a core: sentences.
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
    host: HostCpus
    """CPUs that the plan was made for, with the kernel's default of real-time throttling."""

    @property
    def vcpu_cpus(self) -> CpuSet:
        """Return the CPUs of all vCPUs together, on which a native twin runs."""
        return frozenset(self.vcpus)

    def roles(self) -> dict[int, list[str]]:
        """Return CPU to its threads, in words, for every CPU with a role."""
        named: dict[int, list[str]] = {}
        for number, cpu in enumerate(self.vcpus):
            named.setdefault(cpu, []).append(f"vCPU {number}")
        for cpus, what in (
            (self.emulator, "emulator"),
            *((cpus, f"iothread {number}") for number, cpus in enumerate(self.iothreads, 1)),
            (self.housekeeping, HOUSEKEEPING),
        ):
            for cpu in sorted(cpus):
                named.setdefault(cpu, []).append(what)
        return named

    def to_json(self) -> dict[str, object]:
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
    """Hold a tuning's pins with the plan filled in. None, or no entry, leaves a thread free."""

    vcpus: Mapping[int, CpuSet]
    emulator: CpuSet | None
    iothreads: Mapping[int, CpuSet]


def placement(tuning: Tuning, plan: PinPlan) -> Placement:
    """Return the CPUs that `tuning` pins threads to. Raises UsageError if the plan has too few
    iothreads."""
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


def vhost_cpus(tuning: Tuning, plan: PinPlan) -> CpuSet | None:
    """Return the CPUs that `tuning` pins the kernel's vhost workers to; None leaves them. libvirt's
    XML has no setting for it."""
    pin = tuning.pin.vhost
    return plan.emulator if pin == PLAN else _explicit(pin)


def _chosen(
    pin: str | Mapping[int, CpuSet] | None, planned: Mapping[int, CpuSet]
) -> Mapping[int, CpuSet]:
    if pin is None:
        return {}
    return planned if isinstance(pin, str) else pin


def _explicit(pin: str | CpuSet | None) -> CpuSet | None:
    return None if isinstance(pin, str) else pin


def default_vcpus(topology: Topology) -> int:
    """Return the default number of a guest's vCPUs: 1 on a host with two CPUs, else those left by a
    housekeeping core and, from four cores on, a CPU for the guest's own helper threads; on a host
    with isolated CPUs no more than these."""
    cores = topology.cores(topology.pinnable)
    spare = len(cores[0]) if len(cores) > 1 else 1
    helpers = 1 if len(cores) >= 4 else 0
    room = len(topology.isolated) or len(topology.usable) - spare - helpers
    return max(1, min(DEFAULT_VCPUS_AT_MOST, room))


def default_sizes(topology: Topology, guests: int) -> list[int]:
    """Return the vCPUs of each of so many guests: as many as leave the host its housekeeping core
    and each guest a CPU for its helper threads, at least one."""
    if guests == 1:
        return [default_vcpus(topology)]
    cores = topology.cores(topology.pinnable)
    room = len(topology.pinnable) - (len(cores[0]) if len(cores) > 1 else 1)
    return [max(1, min(DEFAULT_VCPUS_AT_MOST, (room - guests) // guests))] * guests


def pin_plan(
    topology: Topology, vcpus: int, iothreads: int, strategy: Strategy = Strategy.COMPACT
) -> PinPlan:
    """Return the pin plan for a guest of `vcpus` vCPUs and `iothreads` iothreads.

    Housekeeping keeps the first core (the kernel's own work gathers on CPU 0), the strategy chooses
    the vCPUs' CPUs among the others, and the guest's helper threads get CPUs of their own if some
    are left. Raises UsageError if there are more vCPUs than CPUs, or none, and if the strategy is
    impossible.
    """
    return pin_plans(topology, [vcpus], iothreads, strategy)[0]


def pin_plans(
    topology: Topology,
    sizes: Sequence[int],
    iothreads: int,
    strategy: Strategy = Strategy.COMPACT,
) -> tuple[PinPlan, ...]:
    """Return a pin plan for each of several guests of `sizes` vCPUs, with `iothreads` each.

    No two vCPUs share a CPU. The largest guest chooses first, so that small ones fill the gaps, and
    each goes to one NUMA node with a CPU for its helper threads if one has room. Helper threads get
    the CPUs that the vCPUs leave on that node: an emulator CPU for each guest before a CPU for any
    iothread. Housekeeping is the same for all. Raises UsageError if there are more vCPUs than CPUs,
    or none, and if the strategy is impossible.
    """
    if not sizes or min(sizes) < 1 or iothreads < 0:
        raise UsageError(f"a guest cannot have {_listed(sizes)} vCPUs and {iothreads} iothreads")
    _check_room(topology, sizes)
    housekeeping, why_housekeeping = _housekeeping(topology, sum(sizes))
    chosen: dict[int, tuple[list[int], tuple[str, ...]]] = {}
    taken: CpuSet = frozenset()
    settled: Counter[int] = Counter()
    for guest in sorted(range(len(sizes)), key=lambda guest: (-sizes[guest], guest)):
        left = topology.without(taken)
        if len(sizes) > 1 and strategy is not Strategy.SPREAD:
            left = _home(left, sizes[guest], housekeeping, settled)
        cpus, why = vcpu_cpus(left, sizes[guest], housekeeping, strategy)
        settled.update({topology.cpu(cpu).node for cpu in cpus})
        chosen[guest] = cpus, (*why, *_same(left, cpus, housekeeping, strategy))
        taken |= frozenset(cpus)
    helpers = helper_cpus(
        topology, [chosen[guest][0] for guest in range(len(sizes))], housekeeping, iothreads
    )
    plans = []
    for guest in range(len(sizes)):
        cpus, why = chosen[guest]
        emulator, placed, why_helpers = helpers[guest]
        plans.append(
            PinPlan(
                strategy=strategy,
                vcpus=tuple(cpus),
                vcpu_nodes=tuple(topology.cpu(cpu).node for cpu in cpus),
                guest_topology=guest_topology(topology, cpus),
                emulator=emulator,
                iothreads=placed,
                housekeeping=housekeeping,
                usable=topology.usable,
                online=topology.online,
                reasons=(
                    *(why_housekeeping, *why, *untold(topology, cpus)),
                    *(why_helpers, *_limits(topology)),
                ),
                shares=(),
                host=HostCpus(
                    present=topology.present,
                    online=topology.online,
                    usable=topology.usable,
                    pinnable=topology.pinnable,
                    isolated=topology.isolated,
                    housekeeping=housekeeping,
                    memory_nodes=topology.memory_nodes,
                    rt_runtime_us=RT_RUNTIME_US,
                ),
            )
        )
    return tuple(replace(plan, shares=shares([plan], topology)) for plan in plans)


def _home(left: Topology, vcpus: int, housekeeping: CpuSet, settled: Mapping[int, int]) -> Topology:
    """Return the first NUMA node that has room for the guest and a CPU for its helper threads,
    beside one for each guest that has `settled` there; all CPUs that are `left` if no node has."""
    for node in sorted(left.memory_nodes):
        here = frozenset(cpu for cpu in left.pinnable if left.cpu(cpu).node == node)
        if len(here - housekeeping) - settled.get(node, 0) > vcpus:
            return left.without(left.pinnable - here)
    return left


def _listed(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes)) or "no"


def _check_room(topology: Topology, sizes: Sequence[int]) -> None:
    """Raise UsageError if the guests have more vCPUs than labctl may pin to."""
    room = len(topology.pinnable)
    if sum(sizes) <= room:
        return
    if len(sizes) == 1:
        raise UsageError(
            f"cannot place {sizes[0]} vCPUs: {_cpus_for_us(topology)}",
            hint=f"Give the guest {room} at most ('--vcpus {room}'), or leave the number out for "
            f"{default_vcpus(topology)}.",
        )
    raise UsageError(
        f"cannot place {len(sizes)} guests with {sum(sizes)} vCPUs in all, each on a CPU of its "
        f"own: {_cpus_for_us(topology)}",
        hint=f"Plan for {room} vCPUs at most: fewer guests, or smaller ones.",
    )


def _same(
    topology: Topology, chosen: Sequence[int], housekeeping: CpuSet, strategy: Strategy
) -> tuple[str, ...]:
    if strategy is Strategy.COMPACT:
        return ()
    # Helpers' CPUs follow from the vCPUs'.
    compact, _ = vcpu_cpus(topology, len(chosen), housekeeping, Strategy.COMPACT)
    if chosen != compact:
        return ()
    return (f"On this host '{strategy}' places these threads just as 'compact' does.",)


def same_placement(a: PinPlan, b: PinPlan) -> bool:
    """Return whether two plans put every thread on the same CPUs, whatever the names of their
    strategies.

    Tunings that differ only by such plans are one tuning.
    """
    return (a.vcpus, a.emulator, a.iothreads) == (b.vcpus, b.emulator, b.iothreads)


def _cpus_for_us(topology: Topology) -> str:
    """Return 'the host has CPUs 0-7', with the reason why some are not available to labctl."""
    said = f"the host has CPUs {format_cpus(topology.present)}"
    if topology.pinnable == topology.present:
        return said
    limits = [f"{format_cpus(topology.online)} online"]
    if not topology.online <= topology.pinnable:
        limits.append(f"{format_cpus(topology.pinnable)} allowed to labctl")
    return f"{said} ({', '.join(limits)})"


def _housekeeping(topology: Topology, vcpus: int) -> tuple[CpuSet, str]:
    # Nothing is scheduled onto an isolated CPU, so housekeeping cannot use it.
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


def roles(plans: Sequence[PinPlan]) -> dict[int, list[str]]:
    """Return CPU to its threads, in words, for every CPU of a guest or of housekeeping; with
    several guests each word names its own."""
    if len(plans) == 1:
        return plans[0].roles()
    named: dict[int, list[str]] = {}
    for guest, plan in enumerate(plans, 1):
        for cpu, words in plan.roles().items():
            here = named.setdefault(cpu, [])
            here += [f"guest {guest} {word}" for word in words if word != HOUSEKEEPING]
    for cpu in plans[0].housekeeping:
        named.setdefault(cpu, []).append(HOUSEKEEPING)
    return dict(sorted(named.items()))


def shares(plans: Sequence[PinPlan], topology: Topology) -> tuple[str, ...]:
    """Return a sentence for each CPU that several threads share, and for each vCPU that shares its
    core with anything but vCPUs of its own guest."""
    named = roles(plans)
    found = [
        f"CPU {cpu} is shared by {_and(what)}." for cpu, what in sorted(named.items()) if what[1:]
    ]
    for guest, plan in enumerate(plans, 1):
        who = f"guest {guest} " if len(plans) > 1 else ""
        for number, cpu in enumerate(plan.vcpus):
            for sibling in sorted((topology.cpu(cpu).siblings & topology.pinnable) - {cpu}):
                others = [
                    what for what in named.get(sibling, []) if not what.startswith(f"{who}vCPU")
                ]
                if others:
                    found.append(
                        f"{who}vCPU {number} (CPU {cpu}) shares a core with {_and(others)} "
                        f"(CPU {sibling})."
                    )
    return tuple(
        sentence[0].upper() + sentence[1:] if sentence.startswith("guest") else sentence
        for sentence in found
    )


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
