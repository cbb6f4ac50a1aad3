"""A pin plan drawn on the host's cores."""

from __future__ import annotations

from labctl.base.cpus import CpuSet, format_cpus
from labctl.domain.pinplan import PinPlan
from labctl.host.topology import Topology


def picture(plan: PinPlan, topology: Topology) -> str:
    """The host's cores with what runs on each; cores without anything are one line per group.

    >     package 0, node 0, L3 of CPUs 0-1
    >       core 0   [0: emulator, iothread 1, housekeeping]
    >       core 1   [1: vCPU 0]
    """
    named = plan.roles()
    sharing: dict[int | None, list[int]] = {}
    for cpu in topology.cpus:
        sharing.setdefault(cpu.l3, []).append(cpu.number)
    groups: dict[tuple[int, int, int | None, str], list[CpuSet]] = {}
    for core in topology.cores(topology.pinnable):
        cpu = topology.cpu(min(core))
        groups.setdefault((cpu.package, cpu.node, cpu.l3, cpu.kind), []).append(core)
    lines: list[str] = []
    for (package, node, l3, kind), cores in groups.items():
        cache = f", L3 of CPUs {format_cpus(sharing[l3])}" if l3 is not None else ""
        memory = "" if node in topology.memory_nodes else " (no memory)"
        kinds = f", {kind} cores" if kind else ""
        lines.append(f"package {package}, node {node}{memory}{cache}{kinds}")
        for core in cores:
            if core & named.keys():
                threads = "  ".join(f"[{_thread(cpu, named)}]" for cpu in sorted(core))
                lines.append(f"  core {topology.cpu(min(core)).core:<4}{threads}")
        if free := [core for core in cores if not core & named.keys()]:
            lines.append(f"  free     CPUs {format_cpus(frozenset().union(*free))}")
    for word, cpus in (
        ("isolated", topology.isolated),
        ("offline", topology.present - topology.online),
        ("forbidden", topology.online - topology.pinnable),
    ):
        if cpus:
            lines.append(f"{word:<11}CPUs {format_cpus(cpus)}")
    return "\n".join(lines)


def _thread(cpu: int, named: dict[int, list[str]]) -> str:
    return f"{cpu}: {', '.join(named[cpu])}" if cpu in named else f"{cpu}: free"
