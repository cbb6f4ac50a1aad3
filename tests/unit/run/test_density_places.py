"""Where each of many guests runs: on CPUs of its own while there are any, then from the first."""

from __future__ import annotations

from collections import Counter

import pytest

from labctl.base.tuning import Strategy
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.host.topology import Topology
from labctl.run.planning.density import Places, places
from tests.unit.domain import hosts


def of(topology: Topology, vcpus: int, *strategies: Strategy) -> Places:
    named = strategies or (Strategy.COMPACT,)
    return places(topology, {name: pin_plan(topology, vcpus, 1, name) for name in named})


def vcpus_of(found: Places, number: int) -> tuple[int, ...]:
    return found.of(number)[Strategy.COMPACT].vcpus


@pytest.mark.parametrize(
    ("topology", "vcpus", "guests"),
    [
        (hosts.ONE_CPU, 1, 1),
        (hosts.TWO_CPUS, 1, 2),
        (hosts.FOUR_CPUS, 1, 4),
        (hosts.FOUR_CORES_SMT, 2, 4),
        (hosts.FOUR_CPUS, 3, 1),
        (hosts.TWO_SOCKETS_SMT, 4, 4),
    ],
)
def test_guests_have_cpus_of_their_own_and_then_wrap_around(
    topology: Topology, vcpus: int, guests: int
) -> None:
    found = of(topology, vcpus)
    first = [cpu for number in range(guests) for cpu in vcpus_of(found, number)]
    assert len(set(first)) == guests * vcpus
    assert [vcpus_of(found, n) for n in range(guests)] == [
        vcpus_of(found, guests + n) for n in range(guests)
    ]
    shared = Counter(cpu for number in range(3 * guests) for cpu in vcpus_of(found, number))
    assert set(shared.values()) == {3}


def test_the_first_guest_of_a_small_host_runs_where_it_would_alone() -> None:
    assert vcpus_of(of(hosts.TWO_CPUS, 1), 0) == pin_plan(hosts.TWO_CPUS, 1, 1).vcpus


def test_all_are_shown_the_topology_that_the_saved_guest_saw() -> None:
    alone = pin_plan(hosts.FOUR_CORES_SMT, 2, 1)
    found = of(hosts.FOUR_CORES_SMT, 2)
    shown = {found.of(number)[Strategy.COMPACT].guest_topology for number in range(8)}
    assert shown == {alone.guest_topology}


def test_each_strategy_has_places_of_its_own() -> None:
    found = of(hosts.FOUR_CORES_SMT, 2, Strategy.COMPACT, Strategy.SPREAD)
    assert found.of(0).keys() == {Strategy.COMPACT, Strategy.SPREAD}
