"""Pin plans for several guests on one host."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.base.errors import UsageError
from labctl.base.tuning import Strategy
from labctl.domain.pinning.pin_plan import (
    PinPlan,
    default_sizes,
    default_vcpus,
    pin_plan,
    pin_plans,
    shares,
)
from labctl.host.topology import Topology

from . import hosts
from .test_pinplan_any_host import topologies


def nodes_of(plan: PinPlan, topology: Topology) -> set[int]:
    cpus = {*plan.vcpus, *plan.emulator, *(cpu for cpus in plan.iothreads for cpu in cpus)}
    return {topology.cpu(cpu).node for cpu in cpus}


@given(
    topologies(),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.integers(0, 2),
    st.sampled_from(Strategy),
)
def test_no_two_vcpus_share_a_cpu_on_any_host(
    host: Topology, sizes: list[int], iothreads: int, strategy: Strategy
) -> None:
    try:
        plans = pin_plans(host, sizes, iothreads, strategy)
    except UsageError:
        return
    taken = Counter(cpu for plan in plans for cpu in plan.vcpus)
    assert set(taken.values()) == {1}
    assert set(taken) <= host.pinnable
    assert [len(plan.vcpus) for plan in plans] == sizes
    assert len({plan.housekeeping for plan in plans}) == 1
    for plan in plans:
        helpers = [plan.emulator, *plan.iothreads]
        assert all(cpus <= host.pinnable for cpus in helpers)
        if not plan.housekeeping & set(taken):
            assert not any(cpus & set(taken) for cpus in helpers)


@given(topologies(), st.integers(1, 4), st.integers(0, 2), st.sampled_from(Strategy))
def test_one_guest_is_planned_as_if_there_were_no_others(
    host: Topology, vcpus: int, iothreads: int, strategy: Strategy
) -> None:
    try:
        alone = pin_plan(host, vcpus, iothreads, strategy)
    except UsageError:
        return
    assert pin_plans(host, [vcpus], iothreads, strategy) == (alone,)


def test_each_guest_stays_on_a_node_that_has_room_for_its_helper_threads_too(
    tmp_path: Path,
) -> None:
    host = hosts.machine("xeon-e5-2680v2-2s", tmp_path)
    plans = pin_plans(host, [4, 4, 4, 4], 1)
    assert [nodes_of(plan, host) for plan in plans] == [{0}, {0}, {0}, {1}]
    emulators = [cpu for plan in plans for cpu in plan.emulator]
    assert len(set(emulators)) == 4, "each has an emulator CPU of its own"
    assert shares(plans, host) == ()


@pytest.mark.parametrize(
    ("sizes", "strategy", "vcpus", "emulators", "iothreads"),
    [
        # CPUs of the other node stay for guests there, even if an iothread gets a vCPU's sibling.
        ([1, 1], Strategy.COMPACT, [(1,), (2,)], [3, 11], [9, 10]),
        # The first node has room for the second guest's vCPUs, but not for its helper threads.
        ([3, 2], Strategy.COMPACT, [(1, 9, 2), (4, 12)], [3, 5], [11, 6]),
        ([1, 2], Strategy.SPREAD, [(2,), (1, 4)], [3, 11], [9, 5]),
    ],
)
def test_two_guests_on_two_nodes(
    sizes: list[int],
    strategy: Strategy,
    vcpus: list[tuple[int, ...]],
    emulators: list[int],
    iothreads: list[int],
) -> None:
    plans = pin_plans(hosts.TWO_SOCKETS_SMT, sizes, 1, strategy)
    assert [plan.vcpus for plan in plans] == vcpus
    assert [plan.emulator for plan in plans] == [{cpu} for cpu in emulators]
    assert [plan.iothreads for plan in plans] == [({cpu},) for cpu in iothreads]


def test_a_large_guest_chooses_before_small_ones(tmp_path: Path) -> None:
    host = hosts.machine("xeon-e5-2680v2-2s", tmp_path)
    plans = pin_plans(host, [1, 6, 12, 16], 1)
    assert [nodes_of(plan, host) for plan in plans] == [{0}, {1}, {1}, {0}]


def test_guests_share_an_emulator_cpu_of_their_node_where_there_is_no_other() -> None:
    host = hosts.topology([[n] for n in range(6)])
    plans = pin_plans(host, [2, 2], 1)
    assert plans[0].emulator == plans[1].emulator == frozenset({5})
    assert (
        "CPU 5 is shared by guest 1 emulator, guest 1 iothread 1, guest 2 emulator and guest 2 "
        "iothread 1."
    ) in shares(plans, host)
    assert "they share CPU 5 with another guest's" in plans[1].reasons[-1]


def test_two_guests_on_one_core_are_named() -> None:
    host = hosts.topology([[0, 4], [1, 5], [2, 6], [3, 7]])
    plans = pin_plans(host, [3, 3], 0)
    assert any(
        "shares a core with guest" in sentence and sentence.startswith("Guest")
        for sentence in shares(plans, host)
    )


def test_more_vcpus_than_cpus_are_refused_for_all_guests_together() -> None:
    with pytest.raises(UsageError, match="3 guests with 6 vCPUs in all") as refused:
        pin_plans(hosts.FOUR_CPUS, [2, 2, 2], 0)
    assert "4 vCPUs at most" in str(refused.value.hint)


@pytest.mark.parametrize("guests", [1, 2, 3, 8, 40])
def test_default_sizes_leave_each_guest_a_cpu_for_its_helper_threads(
    guests: int, tmp_path: Path
) -> None:
    host = hosts.machine("xeon-e5-2680v2-2s", tmp_path)
    sizes = default_sizes(host, guests)
    assert len(sizes) == guests
    if guests == 1:
        assert sizes == [default_vcpus(host)]
    elif guests < 40:
        assert all(not plan.emulator & plan.housekeeping for plan in pin_plans(host, sizes, 0))
    else:
        assert sizes == [1] * 40


@pytest.mark.parametrize(
    ("host", "sizes"),
    [
        # Beside the first core, each guest has a CPU for its helper threads.
        (hosts.TWO_SOCKETS_SMT, [3, 3, 3]),
        (hosts.topology([[0, 1, 2, 3], [4, 5, 6, 7]]), [1, 1]),
        (hosts.topology([[0], [1, 2, 3, 4, 5, 6, 7, 8]]), [3, 3]),
    ],
)
def test_guests_of_the_default_size_share_what_housekeeping_leaves(
    host: Topology, sizes: list[int]
) -> None:
    assert default_sizes(host, len(sizes)) == sizes


def test_guests_without_vcpus_are_refused() -> None:
    for sizes in ([], [0], [2, 0]):
        with pytest.raises(UsageError, match="cannot have"):
            pin_plans(hosts.FOUR_CPUS, sizes, 1)
