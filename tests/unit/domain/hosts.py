"""Hosts and guests for the tests of this folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from labctl.base.cpus import format_cpus
from labctl.base.tuning import Tuning
from labctl.domain.pinning.pin_plan import PinPlan, pin_plan
from labctl.domain.render import DomainRequest
from labctl.host.topology import EFFICIENT, PERFORMANCE, Cpu, Topology, read_topology

FIXTURES = Path(__file__).parent / "fixtures"
TOPOLOGIES = FIXTURES / "topologies"

_LINE = re.compile(r"(\w+)(?: (\d+))?(?: by (\d+))?: *(.*)")


def topology(
    cores: Sequence[Sequence[int]],
    *,
    packages: int = 1,
    l3_cores: int | None = None,
    kinds: Sequence[str] | None = None,
    offline: Sequence[int] = (),
    allowed: Sequence[int] | None = None,
    memory_nodes: Sequence[int] | None = None,
    isolated: Sequence[int] = (),
) -> Topology:
    """A host of the given cores (each a list of its hardware threads), spread evenly over
    packages, which are NUMA nodes as well; `l3_cores` cores share a last-level cache."""
    per_package = len(cores) // packages
    per_l3 = l3_cores or per_package
    cpus = []
    for number, threads in enumerate(cores):
        siblings = frozenset(threads) - frozenset(offline)
        first_of_l3 = (number // per_l3) * per_l3
        l3 = min(cpu for core in cores[first_of_l3 : first_of_l3 + per_l3] for cpu in core)
        for cpu in threads:
            if cpu in offline:
                cpus.append(Cpu(number=cpu, online=False))
                continue
            cpus.append(
                Cpu(
                    number=cpu,
                    package=number // per_package,
                    core=number % per_package,
                    siblings=siblings,
                    l3=l3,
                    node=number // per_package,
                    kind=kinds[number] if kinds else "",
                )
            )
    return Topology(
        cpus=tuple(sorted(cpus, key=lambda cpu: cpu.number)),
        allowed=frozenset(cpu.number for cpu in cpus) if allowed is None else frozenset(allowed),
        memory_nodes=frozenset(range(packages) if memory_nodes is None else memory_nodes),
        isolated=frozenset(isolated),
    )


ONE_CPU = topology([[0]])
TWO_CPUS = topology([[0], [1]])
ONE_CORE_SMT = topology([[0, 1]])
FOUR_CPUS = topology([[0], [1], [2], [3]])
FOUR_CORES_SMT = topology([[0, 4], [1, 5], [2, 6], [3, 7]])
TWO_SOCKETS_SMT = topology([[n, n + 8] for n in range(8)], packages=2)
AMD_FOUR_L3 = topology([[n, n + 16] for n in range(16)], l3_cores=4)
HYBRID = topology(
    [[0, 1], [2, 3], [4], [5], [6], [7]],
    kinds=[PERFORMANCE] * 2 + [EFFICIENT] * 4,
)


def machine(name: str, root: Path) -> Topology:
    """A recorded host as the reader finds it in a sysfs tree, which is made in `root`."""
    allowed = None
    groups: dict[str, dict[int, list[int]]] = {}
    for line in (TOPOLOGIES / f"{name}.txt").read_text().splitlines():
        if found := _LINE.fullmatch(line):
            key, number, by, lists = found.groups()
            named = groups.setdefault(key, {})
            for group in _groups(lists, by):
                named[len(named) if number is None else int(number)] = group
    if "allowed" in groups:
        allowed = frozenset(groups.pop("allowed")[0])
    write_sysfs(root, groups)
    return read_topology(root, allowed=allowed)


def _groups(lists: str, by: str | None) -> Iterator[list[int]]:
    parts = [_numbers(part) for part in lists.split(" and ")]
    size = int(by) if by else max(len(parts[0]), 1)
    for at in range(0, max(len(parts[0]), 1), size):
        yield [number for part in parts for number in part[at : at + size]]


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        numbers += range(int(first), int(last or first) + 1, int(step or 1))
    return numbers


def write_sysfs(root: Path, groups: dict[str, dict[int, list[int]]]) -> None:
    """The files of a sysfs tree that tell of CPUs, laid out as the kernel does."""
    online = groups["online"][0]
    files: dict[str, str] = {"devices/system/cpu/online": format_cpus(online)}
    # Of an offline CPU there is little but its folder.
    for cpu in groups.get("present", {0: []})[0]:
        files[f"devices/system/cpu/cpu{cpu}/uevent"] = ""
    with_l3 = {cpu for shared in groups.get("l3", {}).values() for cpu in shared}
    for cpu in online:
        # A core of one thread is in no group; one without an L3 has caches of its own alone.
        files[f"devices/system/cpu/cpu{cpu}/topology/core_cpus_list"] = str(cpu)
        files[f"devices/system/cpu/cpu{cpu}/topology/core_id"] = str(cpu)
        if cpu not in with_l3:
            files[f"devices/system/cpu/cpu{cpu}/cache/index2/level"] = "2"
            files[f"devices/system/cpu/cpu{cpu}/cache/index2/shared_cpu_list"] = str(cpu)
    for siblings in groups.get("siblings", {}).values():
        for cpu in siblings:
            files[f"devices/system/cpu/cpu{cpu}/topology/core_cpus_list"] = format_cpus(siblings)
    for shared in groups.get("l3", {}).values():
        for cpu in shared:
            files[f"devices/system/cpu/cpu{cpu}/cache/index3/level"] = "3"
            files[f"devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list"] = format_cpus(shared)
    ids = groups.get("core_id", {}).get(0, [])
    for package, cpus in groups["package"].items():
        cores = [group for group in groups.get("siblings", {}).values() if set(group) <= set(cpus)]
        for number, core in enumerate(cores):
            for cpu in core:
                core_id = ids[number] if ids else number
                files[f"devices/system/cpu/cpu{cpu}/topology/core_id"] = str(core_id)
        for cpu in cpus:
            files[f"devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = str(package)
    for node, cpus in groups["node"].items():
        files[f"devices/system/node/node{node}/cpulist"] = format_cpus(cpus)
    memory = groups.get("memory", {0: list(groups["node"])})[0]
    files["devices/system/node/has_memory"] = format_cpus(memory)
    for kind in "cpu_core", "cpu_atom", "cpu_lowpower":
        if kind in groups:
            files[f"devices/{kind}/cpus"] = format_cpus(groups[kind][0])
    if "isolated" in groups:
        files["devices/system/cpu/isolated"] = format_cpus(groups["isolated"][0])
    for folder in {(root / name).parent for name in files}:
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name).write_text(f"{text}\n")


def request(
    tuning: Tuning,
    *,
    host: Topology = FOUR_CORES_SMT,
    vcpus: int = 2,
    plan: PinPlan | None = None,
    **changes: Any,
) -> DomainRequest:
    """A guest of a tuning on a host."""
    values: dict[str, Any] = {
        "name": "labctl-guest",
        "uuid": "5f0c1ab2-3d4e-4f56-8a9b-0c1d2e3f4a5b",
        "tuning": tuning,
        "plan": plan or pin_plan(host, vcpus, tuning.iothreads),
        "accelerator": "tcg",
        "vcpus": vcpus,
        "memory_mib": 1024,
        "kernel": Path("/var/lib/labctl/images/vmlinuz"),
        "initrd": Path("/var/lib/labctl/images/initrd.img"),
        "cmdline": "root=/dev/vda console=ttyS0",
        "root_disk": Path("/var/lib/labctl/running/root.qcow2"),
        "data_disks": (Path("/var/lib/labctl/running/data.raw"),),
        "seed_disk": None,
        "console_log": Path("/var/lib/labctl/running/console.log"),
        "runner_socket": Path("/var/lib/labctl/running/runner.sock"),
        "agent_socket": Path("/var/lib/labctl/running/agent.sock"),
    }
    return DomainRequest(**{**values, **changes})
