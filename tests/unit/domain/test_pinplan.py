"""Pin plans as set arithmetic, host by host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.base.errors import UsageError
from labctl.base.tuning import Kind, Pin, Tuning
from labctl.domain.pinning.pin_picture import layout_json, picture
from labctl.domain.pinning.pin_plan import default_vcpus, pin_plan, placement, vhost_cpus
from labctl.host.topology import Topology

from . import hosts

# host, vCPUs, iothreads: CPUs of vCPUs, emulator, iothreads, housekeeping
TABLE = [
    ("one CPU", hosts.ONE_CPU, 1, 1, [0], {0}, [{0}], {0}),
    ("two CPUs", hosts.TWO_CPUS, 1, 1, [1], {0}, [{0}], {0}),
    ("two CPUs, all taken", hosts.TWO_CPUS, 2, 1, [0, 1], {0}, [{0}], {0}),
    ("one core, SMT", hosts.ONE_CORE_SMT, 1, 1, [1], {0}, [{0}], {0}),
    ("four CPUs", hosts.FOUR_CPUS, 2, 1, [1, 2], {3}, [{3}], {0}),
    ("four CPUs, none spare", hosts.FOUR_CPUS, 3, 2, [1, 2, 3], {0}, [{0}, {0}], {0}),
    ("SMT", hosts.FOUR_CORES_SMT, 4, 1, [1, 5, 2, 6], {3}, [{7}], {0, 4}),
    ("SMT, one vCPU", hosts.FOUR_CORES_SMT, 1, 2, [1], {2}, [{3}, {6}], {0, 4}),
    ("SMT, siblings left", hosts.FOUR_CORES_SMT, 5, 0, [1, 5, 2, 6, 3], {7}, [], {0, 4}),
    ("SMT, one for us", hosts.FOUR_CORES_SMT, 7, 1, [1, 5, 2, 6, 3, 7, 4], {0}, [{0}], {0}),
    ("SMT, all taken", hosts.FOUR_CORES_SMT, 8, 1, [0, 4, 1, 5, 2, 6, 3, 7], {0}, [{0}], {0}),
    ("two sockets", hosts.TWO_SOCKETS_SMT, 4, 1, [1, 9, 2, 10], {3}, [{11}], {0, 8}),
    (
        "two sockets, only the second has room",
        hosts.TWO_SOCKETS_SMT, 8, 1, [4, 12, 5, 13, 6, 14, 7, 15], {1}, [{2}], {0, 8},
    ),
    ("several L3", hosts.AMD_FOUR_L3, 6, 1, [1, 17, 2, 18, 3, 19], {4}, [{5}], {0, 16}),
    (
        "several L3, the first too small",
        hosts.AMD_FOUR_L3, 8, 1, [4, 20, 5, 21, 6, 22, 7, 23], {1}, [{2}], {0, 16},
    ),
    ("hybrid", hosts.HYBRID, 2, 1, [2, 3], {4}, [{5}], {0, 1}),
    ("hybrid, small cores have room", hosts.HYBRID, 4, 1, [4, 5, 6, 7], {2}, [{3}], {0, 1}),
    (
        "offline CPUs",
        hosts.topology([[0, 4], [1, 5], [2, 6], [3, 7]], offline=[4, 5]),
        2, 0, [1, 2], {3}, [], {0},
    ),
    (
        "limited by a cpuset",
        hosts.topology([[n] for n in range(8)], allowed=[5, 6]),
        1, 1, [6], {5}, [{5}], {5},
    ),
    (
        "a node without memory",
        hosts.topology([[n] for n in range(6)], packages=2, memory_nodes=[1]),
        2, 0, [3, 4], {5}, [], {0},
    ),
    (
        "isolated CPUs",
        hosts.topology([[n] for n in range(8)], allowed=[0, 1, 2, 3], isolated=[4, 5, 6, 7]),
        3, 1, [4, 5, 6], {1}, [{2}], {0},
    ),
    (
        "isolated CPUs, too few",
        hosts.topology([[n] for n in range(8)], allowed=range(6), isolated=[6, 7]),
        3, 1, [1, 2, 3], {4}, [{5}], {0},
    ),
    (
        "isolated CPUs, too few and first",
        hosts.topology([[n] for n in range(8)], allowed=[0, *range(3, 8)], isolated=[1, 2]),
        3, 1, [3, 4, 5], {6}, [{7}], {0},
    ),
    (
        "SMT, adjacent threads, one of them for us",
        hosts.topology([[0, 1], [2, 3], [4, 5]]), 5, 0, [2, 3, 4, 5, 1], {0}, [], {0},
    ),
    (
        "isolated CPUs left over",
        hosts.topology([[n] for n in range(7)], allowed=[0, 5, 6], isolated=[1, 2, 3, 4]),
        2, 2, [1, 2], {5}, [{6}, {3}], {0},
    ),
    (
        "isolated CPU 0",
        hosts.topology([[n] for n in range(4)], isolated=[0, 1]),
        2, 0, [0, 1], {3}, [], {2},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("host", "vcpus", "iothreads", "on", "emulator", "io", "housekeeping"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_each_thread_has_its_place(
    host: Topology,
    vcpus: int,
    iothreads: int,
    on: list[int],
    emulator: set[int],
    io: list[set[int]],
    housekeeping: set[int],
) -> None:
    plan = pin_plan(host, vcpus, iothreads)
    assert list(plan.vcpus) == on
    assert plan.emulator == emulator
    assert list(plan.iothreads) == io
    assert plan.housekeeping == housekeeping


@pytest.mark.parametrize(
    ("host", "vcpus"),
    [
        (hosts.ONE_CPU, 1),
        (hosts.TWO_CPUS, 1),
        (hosts.ONE_CORE_SMT, 1),
        (hosts.topology([[0], [1], [2]]), 2),
        (hosts.FOUR_CPUS, 2),
        (hosts.topology([[0, 2], [1, 3]]), 2),
        (hosts.FOUR_CORES_SMT, 4),
        (hosts.TWO_SOCKETS_SMT, 4),
        (hosts.topology([[0, 1, 2, 3]]), 3),
        (hosts.topology([[0, 2], [1, 3]], offline=[3]), 1),
        (hosts.topology([[n] for n in range(8)], isolated=[6, 7]), 2),
    ],
)
def test_the_default_guest_leaves_the_host_a_core(host: Topology, vcpus: int) -> None:
    assert default_vcpus(host) == vcpus


def test_on_two_cpus_the_plan_says_that_helpers_run_with_housekeeping() -> None:
    plan = pin_plan(hosts.TWO_CPUS, 1, 1)
    assert any("No CPU is left for the emulator threads" in reason for reason in plan.reasons)
    assert plan.shares == ("CPU 0 is shared by emulator, iothread 1 and housekeeping.",)


def test_on_one_cpu_the_plan_says_that_everything_shares_it() -> None:
    plan = pin_plan(hosts.ONE_CPU, 1, 0)
    assert "There is one CPU, 0: everything shares it." in plan.reasons
    assert plan.shares == ("CPU 0 is shared by vCPU 0, emulator and housekeeping.",)


def test_a_vcpu_that_shares_a_core_with_housekeeping_is_named() -> None:
    plan = pin_plan(hosts.ONE_CORE_SMT, 1, 0)
    assert any(
        "vCPU 0 (CPU 1) shares a core with emulator and housekeeping (CPU 0)" in line
        for line in plan.shares
    )


def test_vcpus_that_find_no_common_cache_are_called_unequal() -> None:
    plan = pin_plan(hosts.HYBRID, 5, 0)
    assert any("they differ in speed" in reason for reason in plan.reasons)


def test_what_keeps_cpus_from_us_is_among_the_reasons() -> None:
    host = hosts.topology([[n] for n in range(6)], offline=[5], allowed=[0, 1, 2, 3])
    reasons = pin_plan(host, 1, 0).reasons
    assert "CPU 5 is offline." in reasons
    assert "CPU 4 is out of reach: labctl's affinity or cpuset leaves 0-3." in reasons


def test_more_vcpus_than_cpus_are_refused_with_the_number_that_fits() -> None:
    with pytest.raises(UsageError, match=r"cannot place 3 vCPUs: the host has CPUs 0-1") as caught:
        pin_plan(hosts.TWO_CPUS, 3, 0)
    assert "--vcpus 2" in (caught.value.hint or "")


def test_the_refusal_tells_what_is_offline_and_what_is_forbidden() -> None:
    host = hosts.topology([[n] for n in range(4)], offline=[3], allowed=[0, 1])
    with pytest.raises(UsageError, match=r"CPUs 0-3 \(0-2 online, 0-1 allowed to labctl\)"):
        pin_plan(host, 3, 0)


@pytest.mark.parametrize(("vcpus", "iothreads"), [(0, 0), (-1, 0), (1, -1)])
def test_a_guest_without_vcpus_is_refused(vcpus: int, iothreads: int) -> None:
    with pytest.raises(UsageError):
        pin_plan(hosts.TWO_CPUS, vcpus, iothreads)


def test_the_picture_shows_every_thread_and_folds_free_cores() -> None:
    assert picture([pin_plan(hosts.FOUR_CORES_SMT, 2, 1)], hosts.FOUR_CORES_SMT) == (
        "package 0, node 0, L3 of CPUs 0-7\n"
        "  core 0   [0: housekeeping]  [4: housekeeping]\n"
        "  core 1   [1: vCPU 0]  [5: vCPU 1]\n"
        "  core 2   [2: emulator]  [6: free]\n"
        "  core 3   [3: iothread 1]  [7: free]"
    )


def test_the_picture_of_a_large_host_stays_small() -> None:
    host = hosts.topology([[n] for n in range(128)], offline=[127], allowed=list(range(100)))
    lines = picture([pin_plan(host, 2, 0)], host).splitlines()
    assert lines[-3:] == [
        "  free     CPUs 4-99",
        "offline    CPUs 127",
        "forbidden  CPUs 100-126",
    ]
    assert len(lines) == 8


def test_a_run_keeps_the_picture_as_data_for_a_report_to_draw() -> None:
    (group,) = layout_json(pin_plan(hosts.FOUR_CORES_SMT, 2, 1), hosts.FOUR_CORES_SMT)
    assert group["title"] == "package 0, node 0, L3 of CPUs 0-7"
    assert group["cores"][1] == {"core": 1, "cpus": {"1": ["vCPU 0"], "5": ["vCPU 1"]}}
    assert group["cores"][2] == {"core": 2, "cpus": {"2": ["emulator"], "6": []}}
    assert group["free"] == ""
    large = hosts.topology([[n] for n in range(128)])
    assert layout_json(pin_plan(large, 2, 0), large)[0]["free"] == "4-127"


def test_a_plan_survives_as_json() -> None:
    data = pin_plan(hosts.FOUR_CORES_SMT, 2, 1).to_json()
    assert data["vcpus"] == {"0": 1, "1": 5}
    assert data["iothreads"] == {"1": "3"}
    assert (data["emulator"], data["housekeeping"]) == ("2", "0,4")


def guest(**pins: object) -> Tuning:
    return Tuning(
        name="t",
        description="",
        kind=Kind.GUEST,
        iothreads=1,
        pin=Pin(**pins),  # type: ignore[arg-type]
    )


def test_a_placement_takes_the_plan_where_asked_and_numbers_where_given() -> None:
    plan = pin_plan(hosts.FOUR_CORES_SMT, 2, 2)
    planned = placement(guest(vcpus="plan", emulator="plan", iothreads="plan"), plan)
    assert planned.vcpus == {0: {1}, 1: {5}}
    assert planned.emulator == {2}
    assert planned.iothreads == {1: {3}}, "the tuning has one iothread, the plan two"
    own = placement(guest(vcpus={1: frozenset({7})}, emulator=frozenset({6})), plan)
    assert (own.vcpus, own.emulator, own.iothreads) == ({1: {7}}, {6}, {})
    both = placement(replace(guest(iothreads="plan"), iothreads=2), plan)
    assert (both.vcpus, both.emulator, both.iothreads) == ({}, None, {1: {3}, 2: {6}})


@pytest.mark.parametrize(
    ("pin", "cpus"), [("plan", {2}), (frozenset({6}), {6}), (None, None)], ids=str
)
def test_vhost_workers_are_pinned_beside_the_emulator_or_where_it_is_said(
    pin: object, cpus: set[int] | None
) -> None:
    assert vhost_cpus(guest(vhost=pin), pin_plan(hosts.FOUR_CORES_SMT, 2, 1)) == cpus


def test_a_plan_with_too_few_iothreads_is_refused() -> None:
    tuning = replace(guest(), iothreads=3)
    with pytest.raises(UsageError, match="has 3 iothreads and the pin plan places 2"):
        placement(tuning, pin_plan(hosts.FOUR_CPUS, 1, 2))


def test_a_plan_says_where_a_guest_cannot_be_told_which_vcpus_share_a_core() -> None:
    """As virhostcpudata/linux-test6 of libvirt's tests, where CPUs 5 and 7 are offline."""
    uneven = hosts.topology([[0, 4], [1, 5], [2, 6], [3, 7]], offline=[5, 7])
    plan = pin_plan(uneven, 3, 1)
    assert plan.vcpus == (1, 2, 6)
    assert plan.guest_topology == (1, 3, 1)
    assert any(
        "can't be told which of its vCPUs share a core (vCPUs 1-2)" in r for r in plan.reasons
    )
    for vcpus in (2, 4):
        even = pin_plan(hosts.topology([[0, 4], [1, 5], [2, 6], [3, 7]]), vcpus, 1)
        assert not any("can't be told" in reason for reason in even.reasons)
