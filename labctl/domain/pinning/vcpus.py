"""Choose the vCPUs' CPUs by strategy, and the topology that the guest sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import UsageError
from labctl.base.tuning import Strategy
from labctl.host.topology import EFFICIENT, LOW_POWER, Cpu, Topology

_SLOWNESS = {EFFICIENT: 1, LOW_POWER: 2}

_THREADS_PER_CORE = (8, 4, 2)
"""Guest cores have a power of two of threads (QEMU's pseries requires it)."""


@dataclass(frozen=True, slots=True)
class _Core:
    """Hold a core and its threads that vCPUs may use."""

    threads: tuple[int, ...]
    cpu: Cpu
    """One of its CPUs, which identifies the core."""
    whole: bool
    """True if all of its threads are available to vCPUs."""
    memory: bool
    """True if its node has memory."""

    def cut(self, threads: int) -> _Core:
        """Return the core with only its first threads."""
        if threads >= len(self.threads):
            return self
        return replace(self, threads=self.threads[:threads])

    @property
    def slowness(self) -> int:
        return _SLOWNESS.get(self.cpu.kind, 0)

    @property
    def place(self) -> tuple[int, int, int, int, bool, int]:
        """Sort key: cores in this order are neighbours."""
        cpu = self.cpu
        return (
            self.slowness,
            cpu.package,
            cpu.node,
            -1 if cpu.l3 is None else cpu.l3,
            not self.whole,
            cpu.number,
        )

    @property
    def part(self) -> Hashable:
        """Return the node's part in its package: a package may have several nodes, and the
        reverse.
        """
        return self.cpu.package, self.cpu.node

    @property
    def cache(self) -> Hashable:
        """Return the level 3 cache within its node: a cache spans nodes with Intel's sub-NUMA
        clusters.
        """
        return self.part, self.cpu.l3


_Level = Callable[[_Core], Hashable]
"""Function of a core: cores with an equal result belong together."""

# Kinds of cores are mixed last: a vCPU's speed would depend on its number.
_TOGETHER: tuple[_Level, ...] = (
    lambda core: (core.cpu.kind, core.cache),
    lambda core: (core.cpu.kind, core.part),
    lambda core: (core.cpu.kind, core.cpu.node),
    lambda core: (core.cpu.kind, core.cpu.package),
    lambda core: core.cpu.kind,
    lambda core: None,
)
_ONE_KIND = _TOGETHER[-2:]
_ONE_NODE: tuple[_Level, ...] = (_TOGETHER[2], lambda core: core.cpu.node)


def vcpu_cpus(
    topology: Topology, vcpus: int, housekeeping: CpuSet, strategy: Strategy
) -> tuple[list[int], tuple[str, ...]]:
    """Return the CPUs of vCPU 0, 1, …, all different, and the reasons for them.

    `housekeeping` is used only if every CPU is needed. Raises UsageError if the strategy is
    impossible.
    """
    cores, why = _free_cores(topology, vcpus, housekeeping)
    chosen, reasons = _STRATEGIES[strategy](cores, vcpus)
    # Neighbours on the host are neighbours in the guest, whose topology counts in this order.
    ordered = sorted(chosen, key=lambda core: core.place)
    return [thread for core in ordered for thread in core.threads], (*why, *reasons)


def guest_topology(topology: Topology, chosen: Sequence[int]) -> tuple[int, int, int]:
    """Return sockets, cores per socket and threads per core for vCPUs that run on `chosen`.

    QEMU counts the threads of a core first, then the cores of a socket (-smp in qemu(1)). So vCPUs
    are threads of one core only if each core of the host has the same number of them, in a row;
    sockets likewise.
    """
    cores = {cpu: min(core) for core in topology.cores(frozenset(chosen)) for cpu in core}
    threads = _row_length([cores[cpu] for cpu in chosen])
    if threads not in _THREADS_PER_CORE:
        threads = 1
    per_socket = _row_length([topology.cpu(cpu).package for cpu in chosen]) or len(chosen)
    return len(chosen) // per_socket, per_socket // threads, threads


def untold(topology: Topology, chosen: Sequence[int]) -> tuple[str, ...]:
    """Return a sentence for vCPUs that share a core of the host although the guest's topology shows
    each with a core of its own: its cores must have equal numbers of threads."""
    if guest_topology(topology, chosen)[2] > 1:
        return ()
    number = {cpu: vcpu for vcpu, cpu in enumerate(chosen)}
    cores = topology.cores(frozenset(chosen))
    shared = [sorted(number[cpu] for cpu in core) for core in cores if len(core) > 1]
    if not shared:
        return ()
    named = "; ".join(f"vCPUs {format_cpus(frozenset(vcpus))}" for vcpus in sorted(shared))
    return (
        f"The guest can't be told which of its vCPUs share a core ({named}): all its cores would "
        "need as many threads, in a row. Its scheduler takes each vCPU for a core.",
    )


def _row_length(keys: Sequence[Hashable]) -> int | None:
    """Return the length of the rows of equal keys, if all have one length and no key has two
    rows."""
    rows = [(key, sum(1 for _ in row)) for key, row in groupby(keys)]
    lengths = {length for _, length in rows}
    return lengths.pop() if len(lengths) == 1 and len(dict(rows)) == len(rows) else None


def _free_cores(
    topology: Topology, vcpus: int, housekeeping: CpuSet
) -> tuple[list[_Core], tuple[str, ...]]:
    """Return the cores that vCPUs may have: isolated ones if these suffice, else any."""
    isolated = topology.isolated - housekeeping
    free, why = topology.usable - topology.isolated - housekeeping, ""
    if isolated and vcpus <= len(isolated):
        free = isolated
        why = (
            f"CPU {format_cpus(isolated)} is isolated (isolcpus): the kernel schedules nothing "
            "else there, so that is where the vCPUs are."
        )
    elif isolated:
        why = f"The isolated CPU {format_cpus(isolated)} has no room for {vcpus} vCPUs."
    for wider in (topology.pinnable - housekeeping, topology.pinnable):
        if len(free) < vcpus:
            free = wider
    cores = [
        _Core(
            threads=tuple(sorted(core)),
            cpu=(cpu := topology.cpu(min(core))),
            whole=cpu.siblings & topology.pinnable <= core,
            memory=cpu.node in topology.memory_nodes,
        )
        for core in topology.cores(free)
    ]
    return cores, (why,) if why else ()


_MIXED = "no kind of core alone has room for all of them, so they differ in speed"

_Choice = tuple[list[_Core], tuple[str, ...]]
"""The cores with the threads that vCPUs get, and the reasons."""


def _compact(cores: list[_Core], vcpus: int) -> _Choice:
    chosen = _filled(min(_with_room(cores, vcpus, _TOGETHER), key=_preference), vcpus)
    smt = (
        "They fill one core after the other, so that as little as can be competes inside a core "
        "that runs a vCPU."
    )
    together = any(len(core.threads) > 1 for core in chosen)
    return chosen, (_compact_sentence(chosen, vcpus), *([smt] if together else []))


def _compact_sentence(chosen: list[_Core], vcpus: int) -> str:
    nodes = {core.cpu.node for core in chosen}
    if vcpus == 1:
        shared = ""
    elif len({core.cpu.kind for core in chosen}) > 1:
        shared = f": {_MIXED}"
    elif len(nodes) > 1:
        shared = (
            f": no NUMA node alone has room for all of them, so they differ in their distance to "
            f"the memory of nodes {format_cpus(nodes)}"
        )
    elif len({core.cache for core in chosen}) > 1 or chosen[0].cpu.l3 is None:
        shared = ", which share one NUMA node"
    else:
        shared = ", which share one last-level cache and NUMA node"
    return f"{_vcpus_on(chosen, vcpus)}{shared}.{_no_memory(chosen)}"


def _spread(cores: list[_Core], vcpus: int) -> _Choice:
    chosen = _spread_out(min(_with_room(cores, vcpus, _ONE_KIND), key=_preference), vcpus)
    return chosen, (
        f"{_vcpus_on(chosen, vcpus)}, spread out as far as can be: {_counts(chosen)}."
        f"{_no_memory(chosen)}",
    )


def _node(cores: list[_Core], vcpus: int) -> _Choice:
    near = [core for core in cores if core.memory]
    nodes = _with_room(near, vcpus, _ONE_NODE)
    if not nodes:
        rooms: Counter[int] = Counter()
        for core in near:
            rooms[core.cpu.node] += len(core.threads)
        found = ", ".join(f"node {node} for {room}" for node, room in sorted(rooms.items()))
        most = max(rooms.values(), default=0)
        raise UsageError(
            f"strategy 'node': no NUMA node with memory has room for {vcpus} vCPUs beside "
            f"housekeeping ({found or 'none has a free CPU'})",
            hint=(f"Give the guest at most {most} ('--vcpus {most}'), or take" if most else "Take")
            + " strategy 'compact', which spans nodes where it has to.",
        )
    # A node with a core for each vCPU before one in which they share cores.
    best = min(
        nodes, key=lambda group: (group[0].slowness, len(group) < vcpus, group[0].cpu.number)
    )
    chosen = _spread_out(best, vcpus)
    return chosen, (
        f"{_vcpus_on(chosen, vcpus)}, all on NUMA node {chosen[0].cpu.node}, which has their "
        f"memory: {_counts(chosen)}.",
    )


def _siblings(cores: list[_Core], vcpus: int) -> _Choice:
    for threads in _THREADS_PER_CORE:
        full = _with_threads(cores, threads)
        if vcpus % threads == 0 and vcpus <= threads * len(full):
            chosen, reasons = _compact(full, vcpus)
            return chosen, (
                reasons[0],
                f"Each {threads} vCPUs in a row, from 0-{threads - 1} on, are threads of one core, "
                "which the guest's topology can show.",
            )
    pairs = _with_threads(cores, 2)
    if not pairs:
        raise UsageError(
            "strategy 'siblings' needs cores with two free hardware threads, and there is none: "
            f"CPU {_cpus(cores)} is free for vCPUs",
            hint="Take strategy 'compact'; or, if the host's processor has SMT, switch it on (see "
            "/sys/devices/system/cpu/smt/control).",
        )
    most = min(vcpus - vcpus % 2, 2 * len(pairs)) or 2
    raise UsageError(
        f"strategy 'siblings' cannot pair {vcpus} vCPUs on {_number(len(pairs), 'core')} with two "
        f"free hardware threads (CPU {_cpus(pairs)})",
        hint=f"Give the guest {most} vCPUs ('--vcpus {most}'), or take strategy 'compact'.",
    )


_STRATEGIES: dict[Strategy, Callable[[list[_Core], int], _Choice]] = {
    Strategy.COMPACT: _compact,
    Strategy.SPREAD: _spread,
    Strategy.NODE: _node,
    Strategy.SIBLINGS: _siblings,
}


def _with_room(cores: list[_Core], vcpus: int, levels: Iterable[_Level]) -> list[list[_Core]]:
    """Return the groups of cores with room for all vCPUs, of the first level that has such groups.

    Cores far from memory count only if those near it do not suffice.
    """
    near = [core for core in cores if core.memory]
    for among in [near, cores] if len(near) < len(cores) else [cores]:
        for level in levels:
            groups = [group for group in _grouped(among, level) if _room(group) >= vcpus]
            if groups:
                return groups
    return []


def _grouped(cores: Iterable[_Core], level: _Level) -> list[list[_Core]]:
    groups: dict[Hashable, list[_Core]] = {}
    for core in cores:
        groups.setdefault(level(core), []).append(core)
    return list(groups.values())


def _room(cores: Iterable[_Core]) -> int:
    return sum(len(core.threads) for core in cores)


def _preference(group: list[_Core]) -> tuple[int, int]:
    return group[0].slowness, group[0].cpu.number


def _filled(cores: list[_Core], vcpus: int) -> list[_Core]:
    """Fill core after core, the packages, nodes and caches with most room first, to use the
    fewest."""
    room: Counter[Hashable] = Counter()
    for core in cores:
        for key in ("package", core.cpu.package), ("part", core.part), ("cache", core.cache):
            room[key] += len(core.threads)

    def order(core: _Core) -> tuple[object, ...]:
        slowness, package, node, l3, partial, number = core.place
        return (
            (slowness, not core.memory, partial),
            (-room["package", core.cpu.package], package),
            (-room["part", core.part], node),
            (-room["cache", core.cache], l3),
            number,
        )

    chosen, left = [], vcpus
    for core in sorted(cores, key=order):
        if left:
            chosen.append(core.cut(left))
            left -= len(chosen[-1].threads)
    return chosen


def _spread_out(cores: list[_Core], vcpus: int) -> list[_Core]:
    """Return one thread of each core before a second of any; packages, nodes and caches of one kind
    of cores take turns. Faster kinds come first."""
    turns: list[_Core] = sorted(
        _in_turn(cores, (lambda core: core.cpu.package, lambda core: core.part, lambda c: c.cache)),
        key=lambda core: (core.slowness, not core.whole),
    )
    most = max(len(core.threads) for core in turns)
    deals = [core.cpu.number for n in range(most) for core in turns if n < len(core.threads)]
    dealt = Counter(deals[:vcpus])
    return [core.cut(dealt[core.cpu.number]) for core in turns if dealt[core.cpu.number]]


def _in_turn(cores: list[_Core], levels: Sequence[_Level]) -> list[_Core]:
    if not levels:
        return cores
    rows = zip_longest(*(_in_turn(group, levels[1:]) for group in _grouped(cores, levels[0])))
    return [core for row in rows for core in row if core is not None]


def _with_threads(cores: Iterable[_Core], threads: int) -> list[_Core]:
    """Return the cores with at least so many free threads, reduced to these."""
    return [core.cut(threads) for core in cores if len(core.threads) >= threads]


def _vcpus_on(chosen: list[_Core], vcpus: int) -> str:
    who = "vCPU 0 is" if vcpus == 1 else f"vCPUs 0-{vcpus - 1} are"
    kinds = {core.cpu.kind for core in chosen}
    kind = f" ({kinds.pop()} cores)" if len(kinds) == 1 and chosen[0].cpu.kind else ""
    return f"{who} on CPU {_cpus(chosen)}{kind}"


def _no_memory(chosen: list[_Core]) -> str:
    far = {core.cpu.node for core in chosen if not core.memory}
    return f" NUMA node {format_cpus(far)} has no memory of its own." if far else ""


def _counts(chosen: list[_Core]) -> str:
    """Return how many cores, caches and nodes the vCPUs use, in words."""
    counts = [_number(len(chosen), "core")]
    if all(core.cpu.l3 is not None for core in chosen):
        counts.append(_number(len({core.cache for core in chosen}), "last-level cache"))
    counts.append(_number(len({core.cpu.node for core in chosen}), "NUMA node"))
    mixed = len({core.cpu.kind for core in chosen}) > 1
    return ", ".join(counts) + (f"; {_MIXED}" if mixed else "")


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _cpus(cores: Iterable[_Core]) -> str:
    return format_cpus(thread for core in cores for thread in core.threads)
