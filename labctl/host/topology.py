"""Read the host's CPUs from sysfs: cores, caches, nodes, and which of them labctl may use.

libvirt's capabilities are not used: libvirt reads the same files, leaves out offline CPUs, kinds of
cores and isolation, and needs a connection. A copy of another machine's sysfs works here.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.errors import HostError

SYS = Path("/sys")

PERFORMANCE = "performance"
EFFICIENT = "efficient"
LOW_POWER = "low-power"
_KINDS = {"cpu_core": PERFORMANCE, "cpu_atom": EFFICIENT, "cpu_lowpower": LOW_POWER}
"""PMUs of the kinds of cores: a hybrid x86 host has one per kind, whose folder lists its CPUs
(Documentation/admin-guide/perf and arch/x86/events/intel/core.c in the kernel's tree)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """Describe one logical CPU. An offline one has no place in the topology: its fields are the
    defaults.

    `l3` is the lowest CPU of those that share its level 3 cache, None if the kernel reports none.
    `kind` is PERFORMANCE, EFFICIENT or LOW_POWER on a hybrid x86 host, "" elsewhere.
    """

    number: int
    online: bool = True
    package: int = 0
    core: int = 0
    siblings: CpuSet = frozenset()
    """The hardware threads of its core, including itself."""
    l3: int | None = None
    node: int = 0
    kind: str = ""


# Without slots: the cached properties, needed by a plan for 1,024 CPUs, live in __dict__.
@dataclass(frozen=True, kw_only=True)
class Topology:
    """Describe the host's CPUs. `allowed`: those that this process's affinity and cpuset permit,
    online or not.
    """

    cpus: tuple[Cpu, ...]
    allowed: CpuSet
    memory_nodes: CpuSet
    """NUMA nodes that have memory."""
    isolated: CpuSet = frozenset()
    """CPUs that the kernel's scheduler leaves alone (isolcpus=) and that threads of ours may be
    pinned to: commonly not `allowed`, because every process starts without them."""

    @cached_property
    def present(self) -> CpuSet:
        return frozenset(cpu.number for cpu in self.cpus)

    @cached_property
    def online(self) -> CpuSet:
        return frozenset(cpu.number for cpu in self.cpus if cpu.online)

    @cached_property
    def usable(self) -> CpuSet:
        """Return the online CPUs that labctl may use: where unpinned threads run."""
        return self.online & self.allowed

    @cached_property
    def pinnable(self) -> CpuSet:
        """Return the usable and the isolated CPUs, to which labctl may pin threads."""
        return self.usable | self.online & self.isolated

    @cached_property
    def _by_number(self) -> dict[int, Cpu]:
        return {cpu.number: cpu for cpu in self.cpus}

    def cpu(self, number: int) -> Cpu:
        """Raise KeyError when the host has no such CPU."""
        return self._by_number[number]

    def without(self, cpus: CpuSet) -> Topology:
        """Return the same host without `cpus` for labctl's use."""
        if not cpus:
            return self
        return replace(self, allowed=self.allowed - cpus, isolated=self.isolated - cpus)

    def cores(self, cpus: CpuSet) -> tuple[CpuSet, ...]:
        """Group `cpus` by core, ordered by the lowest CPU of each.

        Firmware has been seen to report wrong siblings, so here no CPU is in two cores, and no core
        on two nodes, in two packages or below two caches of level 3.
        """
        cores: list[CpuSet] = []
        left = set(cpus)
        for number in sorted(cpus):
            if number in left:
                cpu = self.cpu(number)
                place = cpu.package, cpu.node, cpu.l3
                others = map(self.cpu, cpu.siblings & left)
                near = {cpu.number for cpu in others if (cpu.package, cpu.node, cpu.l3) == place}
                cores.append(frozenset(near | {number}))
                left -= cores[-1]
        return tuple(cores)

    def siblings(self, cpus: CpuSet) -> CpuSet:
        """Return the other online threads of the cores of `cpus`, some of which may be in `cpus`
        too."""
        others = (self.cpu(number).siblings - {number} for number in cpus)
        return frozenset().union(*others) & self.online


def read_topology(root: Path = SYS, *, allowed: CpuSet | None = None) -> Topology:
    """Read sysfs, or another machine's copy of it, below `root`.

    `allowed` is this process's affinity unless given; in a copy, all CPUs but the isolated ones.
    Files: Documentation/ABI/stable/sysfs-devices-system-cpu and -node in the kernel's tree.
    Raises HostError when sysfs lists no CPU, or none that is online and allowed.
    """
    folder = root / "devices/system/cpu"
    numbers = sorted(
        int(path.name.removeprefix("cpu"))
        for path in folder.glob("cpu[0-9]*")
        if re.fullmatch(r"cpu[0-9]+", path.name)
    )
    if not numbers:
        raise HostError(f"{folder} lists no CPU", hint="Mount sysfs at /sys.")
    # A kernel without CPU hotplug has no 'online' file: then every CPU is.
    online = _cpus(folder / "online", default=frozenset(numbers))
    isolated = _cpus(folder / "isolated", default=frozenset()) & online
    if allowed is not None:
        isolated &= allowed
    elif root == SYS:
        allowed = frozenset(os.sched_getaffinity(0))
        isolated &= _reachable(allowed, isolated, online)
    else:
        allowed = frozenset(numbers) - isolated or frozenset(numbers)
    nodes = _node_of_cpus(root)
    topology = Topology(
        cpus=tuple(_read_cpus(root, numbers, online, nodes)),
        allowed=allowed,
        memory_nodes=_cpus(
            root / "devices/system/node/has_memory", default=frozenset(nodes.values()) or {0}
        ),
        isolated=isolated,
    )
    if not topology.usable:
        raise HostError(
            f"no usable CPU: CPUs {format_cpus(topology.online)} are online, but this "
            f"process may use {format_cpus(topology.allowed) or 'none'}",
            hint="Widen its affinity (taskset) or its cpuset.",
        )
    return topology


def read_rt_runtime_us(root: Path = Path("/proc")) -> int:
    """Return the share of each second that real-time threads may take, in microseconds; -1: no
    limit.

    sched(7), "Limiting the CPU usage of real-time and deadline processes".
    """
    return _number(root / "sys/kernel/sched_rt_runtime_us", default=-1)


def _reachable(affinity: CpuSet, isolated: CpuSet, online: CpuSet) -> CpuSet:
    """Return the CPUs that a thread of ours may be pinned to.

    With isolcpus= init starts without the isolated CPUs (kernel/sched/core.c, sched_init_smp()),
    and so does every process, although its cpuset has them. A narrower affinity is someone's
    choice.
    """
    if isolated <= affinity:
        return affinity
    cpuset = set(affinity)

    def widen() -> None:
        try:
            # The kernel reduces the mask to the cpuset (sched_setaffinity(2), "Notes").
            os.sched_setaffinity(0, online)
        except OSError:
            return
        cpuset.update(os.sched_getaffinity(0))

    # Affinity is per thread: that of the others stays unchanged.
    thread = threading.Thread(target=widen)
    thread.start()
    thread.join()
    return frozenset(cpuset) if affinity == cpuset - isolated else affinity


def _read_cpus(
    root: Path, numbers: Iterable[int], online: CpuSet, nodes: dict[int, int]
) -> Iterable[Cpu]:
    kinds = _kinds(root)
    l3: dict[int, int] = {}
    for number in numbers:
        if number not in online:
            yield Cpu(number=number, online=False)
            continue
        folder = root / f"devices/system/cpu/cpu{number}"
        if number not in l3:
            shared = _l3(folder)
            l3.update(dict.fromkeys(shared, min(shared, default=number)))
        # Since 5.3 the file is core_cpus_list; the old name stays for compatibility.
        siblings = _cpus(folder / "topology/core_cpus_list", default=frozenset()) or _cpus(
            folder / "topology/thread_siblings_list", default=frozenset()
        )
        yield Cpu(
            number=number,
            # Some virtual machines say -1: "unknown", which is one package.
            package=max(_number(folder / "topology/physical_package_id", default=0), 0),
            core=_number(folder / "topology/core_id", default=number),
            siblings=siblings | {number},
            l3=l3.get(number),
            node=nodes.get(number, 0),
            kind=kinds.get(number, ""),
        )


def _l3(folder: Path) -> CpuSet:
    """Return the CPUs that share a CPU's level 3 cache, including itself; empty if it has none."""
    for index in sorted(folder.glob("cache/index[0-9]*"), reverse=True):
        if _number(index / "level", default=0) == 3:
            return _cpus(index / "shared_cpu_list", default=frozenset())
    return frozenset()


def _node_of_cpus(root: Path) -> dict[int, int]:
    nodes: dict[int, int] = {}
    for folder in root.glob("devices/system/node/node[0-9]*"):
        number = folder.name.removeprefix("node")
        if not number.isdecimal():
            continue  # a copy of sysfs may hold more than sysfs does
        node = int(number)
        for cpu in _cpus(folder / "cpulist", default=frozenset()):
            nodes[cpu] = node
    return nodes


def _kinds(root: Path) -> dict[int, str]:
    return {
        cpu: kind
        for device, kind in _KINDS.items()
        for cpu in _cpus(root / "devices" / device / "cpus", default=frozenset())
    }


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _cpus(path: Path, *, default: CpuSet | set[int]) -> CpuSet:
    text = _text(path)
    try:
        return frozenset(default) if text is None else parse_cpus(text)
    except ValueError:
        return frozenset(default)


def _number(path: Path, *, default: int) -> int:
    text = _text(path)
    try:
        return default if text is None else int(text)
    except ValueError:
        return default
