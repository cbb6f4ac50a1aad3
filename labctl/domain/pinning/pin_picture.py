"""Draw a pin plan on the host's cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labctl.base.cpus import CpuSet, format_cpus
from labctl.domain.pinning.pin_plan import PinPlan, roles
from labctl.host.topology import Topology


@dataclass(frozen=True, slots=True)
class CoreGroup:
    """Hold cores of one package, node, cache and kind. `cores`: of each that has a role, its number
    and the threads on each of its CPUs; `free`: CPUs of the others."""

    title: str
    cores: tuple[tuple[int, Mapping[int, Sequence[str]]], ...]
    free: CpuSet


def layout(plans: Sequence[PinPlan], topology: Topology) -> list[CoreGroup]:
    """Return the host's cores with the threads on each; cores without any are combined."""
    named = roles(plans)
    sharing: dict[int | None, list[int]] = {}
    for cpu in topology.cpus:
        sharing.setdefault(cpu.l3, []).append(cpu.number)
    groups: dict[tuple[int, int, int | None, str], list[CpuSet]] = {}
    for core in topology.cores(topology.pinnable):
        cpu = topology.cpu(min(core))
        groups.setdefault((cpu.package, cpu.node, cpu.l3, cpu.kind), []).append(core)
    found = []
    for (package, node, l3, kind), cores in groups.items():
        cache = f", L3 of CPUs {format_cpus(sharing[l3])}" if l3 is not None else ""
        memory = "" if node in topology.memory_nodes else " (no memory)"
        kinds = f", {kind} cores" if kind else ""
        found.append(
            CoreGroup(
                title=f"package {package}, node {node}{memory}{cache}{kinds}",
                cores=tuple(
                    (
                        topology.cpu(min(core)).core,
                        {cpu: tuple(named.get(cpu, ())) for cpu in sorted(core)},
                    )
                    for core in cores
                    if core & named.keys()
                ),
                free=frozenset().union(*(core for core in cores if not core & named.keys())),
            )
        )
    return found


def layout_json(plan: PinPlan, topology: Topology) -> list[dict[str, object]]:
    """Return the layout in the form that a run keeps, for a report to draw."""
    return [
        {
            "title": group.title,
            "cores": [
                {"core": core, "cpus": {str(cpu): list(roles) for cpu, roles in cpus.items()}}
                for core, cpus in group.cores
            ],
            "free": format_cpus(group.free),
        }
        for group in layout([plan], topology)
    ]


def picture(plans: Sequence[PinPlan], topology: Topology) -> str:
    """Return the host's cores with the threads on each; cores without any are one line per group.

    >     package 0, node 0, L3 of CPUs 0-1
    >       core 0   [0: emulator, iothread 1, housekeeping]
    >       core 1   [1: vCPU 0]
    """
    lines: list[str] = []
    for group in layout(plans, topology):
        lines.append(group.title)
        for core, cpus in group.cores:
            threads = "  ".join(
                f"[{cpu}: {', '.join(roles) or 'free'}]" for cpu, roles in cpus.items()
            )
            lines.append(f"  core {core:<4}{threads}")
        if group.free:
            lines.append(f"  free     CPUs {format_cpus(group.free)}")
    for word, cpus_of in (
        ("isolated", topology.isolated),
        ("offline", topology.present - topology.online),
        ("forbidden", topology.online - topology.pinnable),
    ):
        if cpus_of:
            lines.append(f"{word:<11}CPUs {format_cpus(cpus_of)}")
    return "\n".join(lines)
