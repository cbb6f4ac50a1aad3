"""The host's CPUs as sysfs describes them: cores, caches, nodes, and which of them we may use."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.errors import HostError

PERFORMANCE = "performance"
EFFICIENT = "efficient"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """One logical CPU. An offline one has no place in the topology: its fields are the defaults.

    `l3` is the lowest CPU of those that share its last-level cache, None where the kernel does
    not tell. `kind` is PERFORMANCE or EFFICIENT on a hybrid host, "" elsewhere.
    """

    number: int
    online: bool = True
    package: int = 0
    core: int = 0
    siblings: CpuSet = frozenset()
    """The hardware threads of its core, itself included."""
    l3: int | None = None
    node: int = 0
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """`allowed`: what this process's affinity and cpuset leave to it, online or not."""

    cpus: tuple[Cpu, ...]
    allowed: CpuSet
    memory_nodes: CpuSet
    """NUMA nodes that have memory."""

    @property
    def present(self) -> CpuSet:
        return frozenset(cpu.number for cpu in self.cpus)

    @property
    def online(self) -> CpuSet:
        return frozenset(cpu.number for cpu in self.cpus if cpu.online)

    @property
    def usable(self) -> CpuSet:
        """The CPUs that are online and that we may use."""
        return self.online & self.allowed

    def cpu(self, number: int) -> Cpu:
        """Raises KeyError when the host has no such CPU."""
        for cpu in self.cpus:
            if cpu.number == number:
                return cpu
        raise KeyError(number)

    def usable_cores(self) -> tuple[CpuSet, ...]:
        """The usable threads of each core that has any, ordered by their lowest CPU."""
        cores = {self.cpu(number).siblings & self.usable for number in self.usable}
        return tuple(sorted(cores, key=min))


def read_topology(root: Path = Path("/sys"), *, allowed: CpuSet | None = None) -> Topology:
    """Read sysfs below `root`; `allowed` is this process's affinity unless given.

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
    nodes = _node_of_cpus(root)
    kinds = _kinds(root)
    topology = Topology(
        cpus=tuple(
            _read_cpu(folder / f"cpu{number}", number, nodes.get(number, 0), kinds.get(number, ""))
            if number in online
            else Cpu(number=number, online=False)
            for number in numbers
        ),
        allowed=frozenset(os.sched_getaffinity(0)) if allowed is None else allowed,
        memory_nodes=_cpus(
            root / "devices/system/node/has_memory", default=frozenset(nodes.values()) or {0}
        ),
    )
    if not topology.usable:
        raise HostError(
            f"no CPU is left: CPUs {format_cpus(topology.online)} are online and this process may "
            f"use {format_cpus(topology.allowed) or 'none'}",
            hint="Widen its affinity (taskset) or its cpuset.",
        )
    return topology


def read_rt_runtime_us(root: Path = Path("/proc")) -> int:
    """How much of each second real-time threads may take, in microseconds; -1: all of it.

    sched(7), "Limiting the CPU usage of real-time and deadline processes".
    """
    return _number(root / "sys/kernel/sched_rt_runtime_us", default=-1)


def _read_cpu(folder: Path, number: int, node: int, kind: str) -> Cpu:
    topology = folder / "topology"
    # Since 5.3 the file is core_cpus_list; the old name stays for compatibility.
    siblings = _cpus(topology / "core_cpus_list", default=frozenset()) or _cpus(
        topology / "thread_siblings_list", default=frozenset()
    )
    return Cpu(
        number=number,
        # Some virtual machines say -1: "unknown", which is one package.
        package=max(_number(topology / "physical_package_id", default=0), 0),
        core=_number(topology / "core_id", default=number),
        siblings=siblings | {number},
        l3=_l3(folder),
        node=node,
        kind=kind,
    )


def _l3(folder: Path) -> int | None:
    for index in sorted(folder.glob("cache/index[0-9]*")):
        if _number(index / "level", default=0) == 3:
            shared = _cpus(index / "shared_cpu_list", default=frozenset())
            return min(shared) if shared else None
    return None


def _node_of_cpus(root: Path) -> dict[int, int]:
    nodes: dict[int, int] = {}
    for folder in root.glob("devices/system/node/node[0-9]*"):
        node = int(folder.name.removeprefix("node"))
        for cpu in _cpus(folder / "cpulist", default=frozenset()):
            nodes[cpu] = node
    return nodes


def _kinds(root: Path) -> dict[int, str]:
    # Hybrid x86 hosts have one PMU per kind of core, which lists its CPUs.
    kinds: dict[int, str] = {}
    for device, kind in (("cpu_core", PERFORMANCE), ("cpu_atom", EFFICIENT)):
        for cpu in _cpus(root / "devices" / device / "cpus", default=frozenset()):
            kinds[cpu] = kind
    return kinds


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
