"""Choose the CPUs of guests' emulator threads and iothreads from what their vCPUs leave."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.base.cpus import CpuSet, format_cpus
from labctl.host.topology import Topology

Helpers = tuple[CpuSet, tuple[CpuSet, ...], str]
"""The CPUs of a guest's emulator threads and of each of its iothreads, and why."""


def helper_cpus(
    topology: Topology, guests: Sequence[Sequence[int]], housekeeping: CpuSet, iothreads: int
) -> list[Helpers]:
    """Return where each guest's helper threads run. `guests`: the CPUs of each one's vCPUs."""
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

    # One guest takes what there is; several leave other nodes' CPUs to the guests of those.
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
    """Return the CPU on the guest's NUMA nodes that the fewest emulators have; None: none there."""
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
