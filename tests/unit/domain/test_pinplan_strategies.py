"""What each strategy promises, on hosts made for it and on any host at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.base.errors import UsageError
from labctl.base.tuning import Strategy
from labctl.domain.pinning.pin_plan import pin_plan, same_placement
from labctl.domain.pinning.vcpus import guest_topology
from labctl.host.topology import Cpu, Topology

from . import hosts

# host, strategy, vCPUs: their CPUs, sockets × cores × threads of the guest
TABLE = [
    ("compact", hosts.TWO_SOCKETS_SMT, Strategy.COMPACT, 4, [1, 9, 2, 10], (1, 2, 2)),
    ("compact, odd", hosts.TWO_SOCKETS_SMT, Strategy.COMPACT, 3, [1, 9, 2], (1, 3, 1)),
    (
        "compact, three threads of a core",
        hosts.topology([[0, 1, 2, 3], [4, 5, 6, 7]]), Strategy.COMPACT, 3, [4, 5, 6], (1, 3, 1),
    ),
    (
        "compact, larger than a socket",
        hosts.TWO_SOCKETS_SMT, Strategy.COMPACT, 10, [1, 9, 4, 12, 5, 13, 6, 14, 7, 15], (1, 5, 2),
    ),
    ("spread over sockets", hosts.TWO_SOCKETS_SMT, Strategy.SPREAD, 4, [1, 2, 4, 5], (2, 2, 1)),
    ("spread, odd", hosts.TWO_SOCKETS_SMT, Strategy.SPREAD, 3, [1, 2, 4], (1, 3, 1)),
    ("spread over caches", hosts.AMD_FOUR_L3, Strategy.SPREAD, 4, [1, 4, 8, 12], (1, 4, 1)),
    (
        "spread, more vCPUs than cores",
        hosts.FOUR_CORES_SMT, Strategy.SPREAD, 4, [1, 5, 2, 3], (1, 4, 1),
    ),
    ("spread over fast cores first", hosts.HYBRID, Strategy.SPREAD, 2, [2, 3], (1, 1, 2)),
    ("node with a core for each", hosts.TWO_SOCKETS_SMT, Strategy.NODE, 4, [4, 5, 6, 7], (1, 4, 1)),
    ("node, cores shared", hosts.TWO_SOCKETS_SMT, Strategy.NODE, 5, [1, 9, 2, 10, 3], (1, 5, 1)),
    (
        "node with memory",
        hosts.topology([[n] for n in range(6)], packages=2, memory_nodes=[1]),
        Strategy.NODE, 2, [3, 4], (1, 2, 1),
    ),
    ("siblings", hosts.FOUR_CORES_SMT, Strategy.SIBLINGS, 4, [1, 5, 2, 6], (1, 2, 2)),
    ("siblings, everything taken", hosts.ONE_CORE_SMT, Strategy.SIBLINGS, 2, [0, 1], (1, 1, 2)),
    (
        "siblings, one of them offline",
        hosts.topology([[0, 4], [1, 5], [2, 6], [3, 7]], offline=[5]),
        Strategy.SIBLINGS, 2, [2, 6], (1, 1, 2),
    ),
    (
        "siblings of four threads",
        hosts.topology([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]),
        Strategy.SIBLINGS, 8, [4, 5, 6, 7, 8, 9, 10, 11], (1, 2, 4),
    ),
    (
        "siblings, half a core each",
        hosts.topology([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]),
        Strategy.SIBLINGS, 6, [4, 5, 8, 9, 12, 13], (1, 3, 2),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("host", "strategy", "vcpus", "on", "guest"),
    [row[1:] for row in TABLE],
    ids=[r[0] for r in TABLE],
)
def test_each_strategy_places_vcpus_and_the_guest_sees_how(
    host: Topology, strategy: Strategy, vcpus: int, on: list[int], guest: tuple[int, int, int]
) -> None:
    plan = pin_plan(host, vcpus, 1, strategy)
    assert plan.strategy is strategy
    assert list(plan.vcpus) == on
    assert plan.guest_topology == guest
    assert list(plan.vcpu_nodes) == [host.cpu(cpu).node for cpu in on]


def test_a_cache_that_spans_nodes_does_not_draw_vcpus_off_their_node() -> None:
    # Sub-NUMA clustering: one L3 per socket, two nodes below it.
    cpus = [Cpu(number=n, core=n, siblings=frozenset({n}), l3=0, node=n // 4) for n in range(8)]
    host = Topology(cpus=tuple(cpus), allowed=frozenset(range(8)), memory_nodes=frozenset({0, 1}))
    assert pin_plan(host, 3, 0).vcpus == (1, 2, 3)
    assert pin_plan(host, 4, 0).vcpus == (4, 5, 6, 7), "node 0 has three CPUs left"


@pytest.mark.parametrize(
    ("chosen", "guest"),
    [
        ([1, 9, 4, 12], (2, 1, 2)),
        ([1, 4, 9, 12], (1, 4, 1)),  # siblings, but not in a row
        ([1, 9, 2, 4], (1, 4, 1)),  # one pair among four, three in one package
        ([1, 4, 2, 5], (1, 4, 1)),  # packages in turn
    ],
)
def test_the_guest_sees_what_vcpus_in_a_row_share(
    chosen: list[int], guest: tuple[int, int, int]
) -> None:
    assert guest_topology(hosts.TWO_SOCKETS_SMT, chosen) == guest


def test_a_host_without_smt_refuses_siblings_with_the_remedy() -> None:
    with pytest.raises(UsageError, match="needs cores with two free hardware threads") as caught:
        pin_plan(hosts.FOUR_CPUS, 2, 0, Strategy.SIBLINGS)
    assert "smt/control" in (caught.value.hint or "")


@pytest.mark.parametrize(("vcpus", "hint"), [(1, "--vcpus 2"), (3, "--vcpus 2"), (5, "--vcpus 4")])
def test_an_odd_guest_has_no_siblings(vcpus: int, hint: str) -> None:
    with pytest.raises(UsageError, match=f"cannot pair {vcpus} vCPUs on 3 cores") as caught:
        pin_plan(hosts.FOUR_CORES_SMT, vcpus, 0, Strategy.SIBLINGS)
    assert hint in (caught.value.hint or "")


def test_a_guest_larger_than_every_node_refuses_node_and_names_their_room() -> None:
    with pytest.raises(UsageError, match=r"\(node 0 for 6, node 1 for 8\)") as caught:
        pin_plan(hosts.TWO_SOCKETS_SMT, 9, 0, Strategy.NODE)
    assert "'--vcpus 8'" in (caught.value.hint or "")


def test_memory_on_nodes_without_cpus_refuses_node() -> None:
    host = replace(hosts.FOUR_CPUS, memory_nodes=frozenset({1}))
    with pytest.raises(UsageError, match="none has a free CPU"):
        pin_plan(host, 1, 0, Strategy.NODE)
    assert "NUMA node 0 has no memory of its own." in " ".join(pin_plan(host, 1, 0).reasons)


@pytest.mark.parametrize("strategy", [Strategy.SPREAD, Strategy.NODE, Strategy.SIBLINGS])
def test_a_strategy_that_changes_nothing_here_says_so(strategy: Strategy) -> None:
    compact = pin_plan(hosts.FOUR_CORES_SMT, 6, 1)
    plan = pin_plan(hosts.FOUR_CORES_SMT, 6, 1, strategy)
    assert same_placement(plan, compact)
    assert f"On this host '{strategy}' places these threads just as 'compact' does." in plan.reasons


def test_a_strategy_that_changes_something_does_not_claim_to_be_compact() -> None:
    compact = pin_plan(hosts.FOUR_CORES_SMT, 2, 1)
    plan = pin_plan(hosts.FOUR_CORES_SMT, 2, 1, Strategy.SPREAD)
    assert not same_placement(plan, compact)
    assert not any("compact" in reason for reason in plan.reasons)


def test_two_plans_that_differ_in_their_helpers_are_two_placements() -> None:
    plan = pin_plan(hosts.FOUR_CORES_SMT, 2, 1)
    assert not same_placement(plan, replace(plan, emulator=frozenset({0})))
    assert not same_placement(plan, replace(plan, vcpus=plan.vcpus[::-1]))
    assert same_placement(plan, replace(plan, strategy=Strategy.NODE, reasons=()))


def test_the_json_of_a_plan_tells_strategy_nodes_and_topology() -> None:
    data = pin_plan(hosts.TWO_SOCKETS_SMT, 2, 0, Strategy.SPREAD).to_json()
    assert data["strategy"] == "spread"
    assert data["vcpu_nodes"] == {"0": 0, "1": 1}
    assert data["guest_topology"] == {"sockets": 2, "cores": 1, "threads": 1}
