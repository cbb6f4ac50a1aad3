"""Pin plans on recorded hosts, read by the reader from a sysfs tree (fixtures/README.md)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from labctl.base.cpus import parse_cpus
from labctl.base.errors import UsageError
from labctl.base.tuning import Strategy
from labctl.domain.pinning.pin_picture import picture
from labctl.domain.pinning.pin_plan import default_vcpus, pin_plan
from labctl.host.topology import Topology

from . import hosts

COMPACT, SPREAD, NODE, SIBLINGS = Strategy
MACHINES = sorted(path.stem for path in hosts.TOPOLOGIES.glob("*.txt"))

# machine, strategy, vCPUs: their CPUs, their nodes, sockets × cores × threads of the guest,
# emulator, iothread 1, housekeeping
TABLE = [
    ("one-core", COMPACT, 1, "0", "0", (1, 1, 1), "0", "0", "0"),
    ("two-cores", COMPACT, 1, "1", "0", (1, 1, 1), "0", "0", "0"),
    ("two-cores", COMPACT, 2, "0 1", "0", (1, 2, 1), "0", "0", "0"),
    ("core-i7-6700", COMPACT, 4, "1 5 2 6", "0", (1, 2, 2), "3", "7", "0,4"),
    ("core-i7-6700", SPREAD, 3, "1 2 3", "0", (1, 3, 1), "5", "6", "0,4"),
    ("core-i7-6700", SIBLINGS, 6, "1 5 2 6 3 7", "0", (1, 3, 2), "0,4", "0,4", "0,4"),
    ("xeon-e5-2680v2-2s", COMPACT, 4, "1 21 2 22", "0", (1, 2, 2), "3", "4", "0,20"),
    ("xeon-e5-2680v2-2s", SPREAD, 4, "1 2 10 11", "0-1", (2, 2, 1), "3", "4", "0,20"),
    ("xeon-e5-2680v2-2s", NODE, 4, "1 2 3 4", "0", (1, 4, 1), "5", "6", "0,20"),
    ("xeon-2s-interleaved", COMPACT, 4, "1 25 3 27", "1", (1, 2, 2), "5", "7", "0,24"),
    ("xeon-2s-interleaved", SPREAD, 4, "2 4 1 3", "0-1", (2, 2, 1), "5", "7", "0,24"),
    ("adjacent-2s", COMPACT, 4, "2 3 4 5", "0", (1, 2, 2), "6", "8", "0-1"),
    ("adjacent-2s", SPREAD, 2, "2 16", "0-1", (2, 1, 1), "4", "6", "0-1"),
    ("adjacent-2s", NODE, 8, "16 18 20 22 24 26 28 30", "1", (1, 8, 1), "2", "4", "0-1"),
    # One L3 over two nodes: vCPUs stay on one of these.
    ("xeon-gold-6542y-snc2", SPREAD, 4, "1 12 24 36", "0-3", (2, 2, 1), "2", "3", "0,48"),
    # Six threads are left in the first core complex.
    ("epyc-zen2-2s-nps1", COMPACT, 6, "1 129 2 130 3 131", "0", (1, 3, 2), "4", "5", "0,128"),
    (
        "epyc-zen2-2s-nps1", COMPACT, 8,
        "4 132 5 133 6 134 7 135", "0", (1, 4, 2), "1", "2", "0,128",
    ),
    ("epyc-zen2-2s-nps1", SPREAD, 4, "1 4 64 68", "0-1", (2, 2, 1), "2", "3", "0,128"),
    ("epyc-zen2-2s-nps1", NODE, 4, "1 4 8 12", "0", (1, 4, 1), "2", "3", "0,128"),
    ("epyc-zen2-2s-nps4", SPREAD, 4, "1 16 64 80", "0-1,4-5", (2, 2, 1), "2", "3", "0,128"),
    ("epyc-7451-2s", COMPACT, 6, "3 51 4 52 5 53", "0", (1, 3, 2), "1", "2", "0,48"),
    (
        "epyc-7451-2s", COMPACT, 8,
        "1 49 3 51 4 52 5 53",
        "0", (1, 4, 2), "2", "50", "0,48",
    ),
    # Nodes 0 and 3 have no memory.
    ("threadripper-3960x-nps4", COMPACT, 4, "6 30 7 31", "1", (1, 2, 2), "8", "32", "0,24"),
    ("threadripper-3960x-nps4", SPREAD, 4, "6 9 12 15", "1-2", (1, 4, 1), "7", "8", "0,24"),
    ("threadripper-3960x-nps4", NODE, 4, "6 7 9 10", "1", (1, 4, 1), "8", "32", "0,24"),
    ("power-cpus-without-memory", COMPACT, 4, "1 2 3 4", "2", (1, 1, 4), "5", "6", "0"),
    ("core-i7-12700", COMPACT, 4, "2 3 4 5", "0", (1, 2, 2), "6", "8", "0-1"),
    ("core-i7-12700", SPREAD, 7, "2 4 6 8 10 12 14", "0", (1, 7, 1), "16", "17", "0-1"),
    ("core-ultra-9-185h", COMPACT, 4, "1 2 3 4", "0", (1, 2, 2), "6", "8", "0,5"),
    # Low-power cores come last.
    (
        "core-ultra-9-185h", COMPACT, 19,
        "1 2 3 4 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20", "0", (1, 19, 1), "21", "21", "0,5",
    ),
    ("core-ultra-9-185h", NODE, 6, "1 2 3 6 8 10", "0", (1, 6, 1), "12", "13", "0,5"),
    (
        "core-ultra-9-185h", SPREAD, 11,
        "1 3 6 8 10 12 13 14 15 16 17", "0", (1, 11, 1), "18", "19", "0,5",
    ),
    ("neoverse-n1-64", COMPACT, 4, "1 2 3 4", "0", (1, 4, 1), "5", "6", "0"),
    ("kunpeng-920-2s", COMPACT, 4, "1 2 3 4", "0", (1, 4, 1), "5", "6", "0"),
    ("kunpeng-920-2s", SPREAD, 4, "1 32 64 96", "0-3", (2, 2, 1), "2", "3", "0"),
    ("xeon-4s-offline", COMPACT, 2, "1 9", "0", (1, 1, 2), "3", "4", "0,8"),
    ("xeon-4s-offline", SPREAD, 4, "4 1 6 3", "0", (4, 1, 1), "7", "10", "0,8"),
    ("container-in-epyc", COMPACT, 4, "8 136 9 137", "0", (1, 2, 2), "10", "11", "6,134"),
    ("container-in-epyc", SPREAD, 2, "7 8", "0", (1, 2, 1), "9", "10", "6,134"),
    ("sixteen-sockets", COMPACT, 4, "1 513 2 514", "0", (1, 2, 2), "3", "4", "0,512"),
]  # fmt: skip


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Topology]:
    read: dict[str, Topology] = {}

    def by_name(name: str) -> Topology:
        if name not in read:
            read[name] = hosts.machine(name, tmp_path_factory.mktemp(name))
        return read[name]

    return by_name


@pytest.mark.parametrize(
    ("name", "strategy", "vcpus", "on", "nodes", "guest", "emulator", "iothread", "housekeeping"),
    TABLE,
    ids=[f"{row[0]}-{row[1]}-{row[2]}" for row in TABLE],
)
def test_each_thread_has_its_place(
    machine: Callable[[str], Topology],
    name: str,
    strategy: Strategy,
    vcpus: int,
    on: str,
    nodes: str,
    guest: tuple[int, int, int],
    emulator: str,
    iothread: str,
    housekeeping: str,
) -> None:
    plan = pin_plan(machine(name), vcpus, 1, strategy)
    assert list(plan.vcpus) == [int(cpu) for cpu in on.split()]
    assert set(plan.vcpu_nodes) == parse_cpus(nodes)
    assert plan.guest_topology == guest
    assert plan.emulator == parse_cpus(emulator)
    assert plan.iothreads == (parse_cpus(iothread),)
    assert plan.housekeeping == parse_cpus(housekeeping)


@pytest.mark.parametrize("name", MACHINES)
def test_the_default_guest_shares_cache_and_node_and_leaves_cpu_0_alone(
    machine: Callable[[str], Topology], name: str
) -> None:
    host = machine(name)
    plan = pin_plan(host, default_vcpus(host), 1)
    cpus = [host.cpu(cpu) for cpu in plan.vcpus]
    assert len({(cpu.package, cpu.node, cpu.l3, cpu.kind) for cpu in cpus}) == 1
    if len(host.usable) > 1:
        assert not plan.vcpu_cpus & plan.housekeeping
        assert not plan.vcpu_cpus & (plan.emulator | plan.iothreads[0])


@pytest.mark.parametrize(
    ("name", "strategy", "vcpus", "says"),
    [
        ("neoverse-n1-64", SIBLINGS, 2, "needs cores with two free hardware threads"),
        ("core-i7-12700", SIBLINGS, 16, "cannot pair 16 vCPUs on 7 cores"),
        ("power-cpus-without-memory", NODE, 2, "none has a free CPU"),
        ("threadripper-3960x-nps4", NODE, 14, "node 1 for 12, node 2 for 12"),
        ("container-in-epyc", COMPACT, 13, "6-11,134-139 allowed to labctl"),
        ("xeon-4s-offline", COMPACT, 13, "0-1,3-4,6-12,15 online"),
    ],
)
def test_what_a_host_cannot_have_is_refused_with_what_it_has(
    machine: Callable[[str], Topology], name: str, strategy: Strategy, vcpus: int, says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        pin_plan(machine(name), vcpus, 1, strategy)
    assert caught.value.hint


def test_kinds_of_core_mix_only_where_none_has_room(machine: Callable[[str], Topology]) -> None:
    host = machine("core-i7-12700")
    assert {host.cpu(cpu).kind for cpu in pin_plan(host, 14, 0).vcpus} == {"performance"}
    mixed = pin_plan(host, 15, 0)
    assert {host.cpu(cpu).kind for cpu in mixed.vcpus} == {"performance", "efficient"}
    assert any("they differ in speed" in reason for reason in mixed.reasons)


def test_a_guest_larger_than_a_node_takes_whole_nodes_of_one_package(
    machine: Callable[[str], Topology],
) -> None:
    plan = pin_plan(machine("epyc-zen2-2s-nps4"), 64, 0)
    assert set(plan.vcpu_nodes) == {1, 2}, "node 0 has housekeeping"
    assert plan.guest_topology == (1, 32, 2)
    assert any("distance to the memory of nodes 1-2" in reason for reason in plan.reasons)


def test_the_picture_of_a_hybrid_host_tells_kinds_and_caches(
    machine: Callable[[str], Topology],
) -> None:
    host = machine("core-ultra-9-185h")
    assert picture([pin_plan(host, 2, 1)], host).splitlines() == [
        "package 0, node 0, L3 of CPUs 0-19, performance cores",
        "  core 16  [0: housekeeping]  [5: housekeeping]",
        "  core 8   [1: vCPU 0]  [2: vCPU 1]",
        "  core 12  [3: emulator]  [4: free]",
        "  core 20  [6: iothread 1]  [7: free]",
        "  free     CPUs 8-11",
        "package 0, node 0, L3 of CPUs 0-19, efficient cores",
        "  free     CPUs 12-19",
        "package 0, node 0, low-power cores",
        "  free     CPUs 20-21",
    ]


def test_the_picture_tells_nodes_without_memory_and_cpus_out_of_reach(
    machine: Callable[[str], Topology],
) -> None:
    host = machine("power-cpus-without-memory")
    assert picture([pin_plan(host, 2, 0)], host).startswith("package 2, node 2 (no memory), L3 of")
    host = machine("container-in-epyc")
    assert picture([pin_plan(host, 2, 0)], host).endswith("forbidden  CPUs 0-5,12-133,140-255")
