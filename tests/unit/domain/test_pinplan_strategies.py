"""What each strategy promises, on hosts made for it and on any host at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.base.errors import UsageError
from labctl.base.tuning import Strategy
from labctl.domain.pinpicture import picture
from labctl.domain.pinplan import PinPlan, default_vcpus, pin_plan, same_placement
from labctl.domain.pinvcpus import guest_topology
from labctl.host.topology import EFFICIENT, PERFORMANCE, Cpu, Topology

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


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Any host: packages, nodes and caches in any nesting, SMT, kinds of core, holes, limits."""
    cores = draw(st.integers(1, 12))
    threads = draw(st.sampled_from([1, 1, 2, 2, 4]))
    adjacent = draw(st.booleans())
    packages = draw(st.integers(1, 3))
    nodes = draw(st.integers(1, 4))
    cores_per_l3 = draw(st.one_of(st.none(), st.integers(1, cores)))
    hybrid = draw(st.booleans())
    count = cores * threads
    numbers = st.sets(st.integers(0, count - 1), max_size=count)
    offline = draw(numbers)
    allowed = draw(st.one_of(st.just(set(range(count))), numbers))
    isolated = draw(st.one_of(st.just(set()), numbers))
    lies = draw(st.booleans())  # sysfs that contradicts itself about siblings
    cpus = []
    for number in range(count):
        if number in offline:
            cpus.append(Cpu(number=number, online=False))
            continue
        core = number // threads if adjacent else number % cores
        siblings = {n for n in range(count) if (n // threads if adjacent else n % cores) == core}
        if lies:
            siblings = draw(numbers)
        cpus.append(
            Cpu(
                number=number,
                package=core * packages // cores,
                core=core,
                siblings=frozenset(siblings - offline | {number}),
                l3=None if cores_per_l3 is None else core // cores_per_l3,
                node=core * nodes // cores,
                kind=(PERFORMANCE if core % 3 else EFFICIENT) if hybrid else "",
            )
        )
    memory = draw(st.sets(st.integers(0, nodes - 1), min_size=1))
    host = Topology(
        cpus=tuple(cpus),
        allowed=frozenset(allowed),
        memory_nodes=frozenset(memory),
        isolated=frozenset(isolated - offline),
    )
    if not host.usable:
        host = replace(
            host,
            cpus=(Cpu(number=0, siblings=frozenset({0})), *cpus[1:]),
            allowed=frozenset({0, *allowed}),
        )
    return host


@given(topologies(), st.floats(0, 1), st.integers(0, 3), st.sampled_from(Strategy))
def test_any_plan_keeps_the_rules(
    host: Topology, taken: float, iothreads: int, strategy: Strategy
) -> None:
    vcpus = max(1, round(taken * len(host.pinnable)))
    try:
        plan = pin_plan(host, vcpus, iothreads, strategy)
    except UsageError:
        if strategy in (Strategy.NODE, Strategy.SIBLINGS):
            return
        raise
    assert len(plan.vcpus) == len(plan.vcpu_cpus) == vcpus
    assert plan.vcpu_cpus | plan.emulator | plan.housekeeping <= host.pinnable
    assert plan.housekeeping <= host.usable
    assert len(plan.iothreads) == iothreads
    helpers = plan.emulator.union(*plan.iothreads)
    if vcpus < len(host.pinnable):
        assert not plan.vcpu_cpus & plan.housekeeping
        assert not plan.vcpu_cpus & helpers
    _says_what_shares(plan)
    sockets, cores, threads = plan.guest_topology
    assert sockets * cores * threads == vcpus
    assert pin_plan(host, vcpus, iothreads, strategy) == plan
    assert picture(plan, host)


def _says_what_shares(plan: PinPlan) -> None:
    for cpu, roles in plan.roles().items():
        said = [line for line in plan.shares if line.startswith(f"CPU {cpu} is shared by ")]
        assert len(said) == (len(roles) > 1)
        assert all(role in line for line in said for role in roles)


@given(topologies(), st.integers(1, 48))
def test_guest_threads_are_threads_of_one_core_of_the_host(host: Topology, vcpus: int) -> None:
    plan = pin_plan(host, min(vcpus, len(host.pinnable)), 0)
    _, _, threads = plan.guest_topology
    for at in range(0, len(plan.vcpus), threads):
        together = plan.vcpus[at : at + threads]
        assert any(set(together) <= core for core in host.cores(plan.vcpu_cpus))


@given(topologies(), st.integers(1, 48))
def test_vcpus_leave_a_node_only_when_none_has_room(host: Topology, vcpus: int) -> None:
    host = replace(host, isolated=frozenset(), memory_nodes=frozenset(range(4)))
    host = replace(host, cpus=tuple(replace(cpu, kind="") for cpu in host.cpus))
    plan = pin_plan(host, min(vcpus, len(host.usable)), 0)
    if len(set(plan.vcpu_nodes)) > 1:
        free = host.usable - (plan.housekeeping - plan.vcpu_cpus)
        rooms = [sum(host.cpu(n).node == node for n in free) for node in range(4)]
        assert max(rooms) < len(plan.vcpus)


@given(topologies())
def test_the_default_number_of_vcpus_always_has_a_plan(host: Topology) -> None:
    vcpus = default_vcpus(host)
    assert 1 <= vcpus <= 4
    assert len(pin_plan(host, vcpus, 1).vcpus) == vcpus
