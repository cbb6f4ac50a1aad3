"""Hosts and guests for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labctl.base.tuning import Tuning
from labctl.domain.pinplan import PinPlan, pin_plan
from labctl.domain.render import DomainRequest
from labctl.host.topology import EFFICIENT, PERFORMANCE, Cpu, Topology

FIXTURES = Path(__file__).parent / "fixtures"


def topology(
    cores: Sequence[Sequence[int]],
    *,
    packages: int = 1,
    l3_cores: int | None = None,
    kinds: Sequence[str] | None = None,
    offline: Sequence[int] = (),
    allowed: Sequence[int] | None = None,
    memory_nodes: Sequence[int] | None = None,
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
        "data_disk": Path("/var/lib/labctl/running/data.raw"),
        "seed_disk": None,
        "console_log": Path("/var/lib/labctl/running/console.log"),
        "runner_socket": Path("/var/lib/labctl/running/runner.sock"),
        "agent_socket": Path("/var/lib/labctl/running/agent.sock"),
    }
    return DomainRequest(**{**values, **changes})
