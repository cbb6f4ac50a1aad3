"""Compute the parts of a guest that a template cannot: CPU and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labctl.base.cpus import CpuSet
from labctl.base.errors import UsageError
from labctl.base.tuning import Tuning
from labctl.domain.pinning.pin_plan import PinPlan

PAGE_KIB = {"2M": 2048, "1G": 1024 * 1024}
"""Size of huge pages by its name in a tuning."""

_L3 = "3"
"""libvirt: CPU cache mode 'emulate' can only be used with level='3'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Describe a NUMA node of the guest: its vCPUs, its memory, and the host's node behind it."""

    vcpus: CpuSet
    memory_mib: int
    host_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuElement:
    """Hold the content of `<cpu>`. `topology`: sockets, cores, threads. `cache_level` None: all
    levels."""

    mode: str | None
    model: str | None
    topology: tuple[int, int, int] | None
    features: Mapping[str, str]
    cache: str | None
    cache_level: str | None
    cells: tuple[Cell, ...]

    @property
    def is_empty(self) -> bool:
        return self.mode is None and not self.has_children

    @property
    def has_children(self) -> bool:
        return bool(self.model or self.topology or self.features or self.cache or self.cells)


def cpu_element(
    tuning: Tuning,
    plan: PinPlan,
    *,
    accelerator: str,
    disabled_features: tuple[str, ...],
    memory_mib: int,
) -> CpuElement:
    """Return the tuning's change of virt-install's default: the host's CPU under KVM, and libvirt's
    own choice under TCG. `disabled_features`: features of the host's CPU that its KVM cannot
    provide."""
    cpu = tuning.cpu
    mode = cpu.mode or ("host-passthrough" if accelerator == "kvm" else None)
    # A named model has exactly the features of its name.
    left_out = disabled_features if accelerator == "kvm" and mode != "custom" else ()
    return CpuElement(
        mode=mode,
        model=cpu.model,
        topology=plan.guest_topology if cpu.topology else None,
        features={**dict.fromkeys(left_out, "disable"), **cpu.features},
        cache=cpu.cache,
        cache_level=_L3 if cpu.cache == "emulate" else None,
        cells=cells(plan, memory_mib) if tuning.memory.cells else (),
    )


def cells(plan: PinPlan, memory_mib: int) -> tuple[Cell, ...]:
    """Return the host's nodes that the vCPUs are planned on, as the guest's: memory by number of
    vCPUs, in whole MiB, with the remainder in the first one.

    Raises UsageError if there is less than a MiB per vCPU.
    """
    share = memory_mib // len(plan.vcpu_nodes)
    if share == 0:
        raise UsageError(f"{memory_mib} MiB can't be shared by {len(plan.vcpu_nodes)} vCPUs' nodes")
    nodes = list(dict.fromkeys(plan.vcpu_nodes))
    members = {
        node: frozenset(vcpu for vcpu, at in enumerate(plan.vcpu_nodes) if at == node)
        for node in nodes
    }
    rest = memory_mib - share * len(plan.vcpu_nodes)
    return tuple(
        Cell(
            vcpus=members[node],
            memory_mib=share * len(members[node]) + (rest if node == nodes[0] else 0),
            host_node=node,
        )
        for node in nodes
    )


def memory_nodes(tuning: Tuning, plan: PinPlan) -> CpuSet | None:
    """Return the host's NUMA nodes for the guest's memory; None leaves it free.

    Raises UsageError for 'preferred' over several nodes: the kernel prefers one
    (set_mempolicy(2)).
    """
    if tuning.memory.numa is None:
        return None
    nodes = frozenset(plan.vcpu_nodes)
    if tuning.memory.numa == "preferred" and len(nodes) > 1 and not tuning.memory.cells:
        raise UsageError(
            f"tuning '{tuning.name}': 'memory.numa' is 'preferred', which takes one NUMA node, and "
            f"the vCPUs are on {len(nodes)}",
            hint="Write 'pin: {strategy: node}', or 'memory: {numa: strict}'.",
        )
    return nodes
