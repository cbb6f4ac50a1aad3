"""A host that can't have a condition says so before the first trial."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.cpus import CpuSet
from labctl.base.errors import HostError
from labctl.base.tuning import Strategy
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.host.cgroups import Hierarchy, Layout
from labctl.host.topology import Topology
from labctl.run.planning.conditions import (
    GuestsHere,
    condition_of,
    cpus_of,
    on_the_host,
    unfit_conditions,
    why_not,
)
from labctl.study.conditions import Condition, Kind, Neighbour
from tests.unit.domain.hosts import FOUR_CORES_SMT, TWO_CPUS

V2 = Layout({"cpu": Hierarchy(2, Path("/none"))}, Path("/none"), rt_group_sched=False)
NO_CPU = Layout({}, None, rt_group_sched=False)
SMALL = GuestsHere(memory_mib=512, total_bytes=4 << 30)
QUOTA = Neighbour(program="cpu-hog", kind=Kind.CGROUP, quota_percent=50)


def where(cpus: str, topology: Topology = FOUR_CORES_SMT) -> CpuSet:
    return cpus_of(Neighbour(program="cpu-hog", cpus=cpus), topology, pin_plan(topology, 1, 1))


def test_the_places_are_those_of_the_pin_plan() -> None:
    plan = pin_plan(FOUR_CORES_SMT, 1, 1)
    (vcpu,) = plan.vcpus
    assert where("everywhere") == FOUR_CORES_SMT.usable
    assert where("vcpus") == {vcpu}
    assert where("siblings") == FOUR_CORES_SMT.siblings(frozenset({vcpu}))
    assert where("emulator") == plan.emulator
    assert where("2-3,6") == {2, 3, 6}


def test_a_sibling_that_is_a_vcpu_s_own_cpu_is_no_place_for_a_neighbour() -> None:
    plan = pin_plan(FOUR_CORES_SMT, 6, 1)
    both = plan.vcpu_cpus & FOUR_CORES_SMT.siblings(plan.vcpu_cpus)
    assert both
    found = cpus_of(Neighbour(program="cpu-hog", cpus="siblings"), FOUR_CORES_SMT, plan)
    assert not found & plan.vcpu_cpus


@pytest.mark.parametrize(
    ("neighbour", "layout", "said"),
    [
        ({"cpus": "siblings"}, V2, "no core that has a vCPU has another hardware thread"),
        ({"cpus": "0-3"}, V2, "its neighbours want CPUs 2-3, and this host's are 0-1"),
        ({"kind": Kind.CGROUP, "weight": 5}, NO_CPU, "the host has no cpu cgroups"),
        ({"kind": Kind.CGROUP, "quota_percent": 5}, NO_CPU, "the host has no cpu cgroups"),
    ],
)
def test_what_the_host_lacks_is_said(neighbour: dict[str, Any], layout: Layout, said: str) -> None:
    one = Neighbour(program="cpu-hog", **neighbour)
    why = why_not(one, TWO_CPUS, pin_plan(TWO_CPUS, 1, 1), layout)
    assert why is not None
    assert said in why


def test_a_v1_kernel_without_quotas_has_weights_all_the_same(tmp_path: Path) -> None:
    layout = Layout({"cpu": Hierarchy(1, tmp_path)}, None, rt_group_sched=True)
    plan = pin_plan(TWO_CPUS, 1, 1)
    assert "CONFIG_CFS_BANDWIDTH" in str(why_not(QUOTA, TWO_CPUS, plan, layout))
    weight = Neighbour(program="cpu-hog", kind=Kind.CGROUP, weight=50)
    assert why_not(weight, TWO_CPUS, plan, layout) is None
    (tmp_path / "cpu.cfs_quota_us").write_text("-1")
    assert why_not(QUOTA, TWO_CPUS, plan, layout) is None


def test_one_that_is_asked_for_by_name_ends_the_plan_and_another_is_left_out() -> None:
    conditions = {"half": Condition(name="half", description="", neighbours=(QUOTA,))}
    plans = {Strategy.COMPACT: pin_plan(TWO_CPUS, 1, 1)}
    assert unfit_conditions(conditions, TWO_CPUS, plans, (), SMALL, V2) == {}
    assert "half" in unfit_conditions(conditions, TWO_CPUS, plans, (), SMALL, NO_CPU)
    with pytest.raises(HostError, match="can't have the condition 'half': the host has no cpu"):
        unfit_conditions(conditions, TWO_CPUS, plans, ("half",), SMALL, NO_CPU)


def test_a_run_that_an_older_labctl_began_goes_on_beside_the_hogs_that_it_knew() -> None:
    plan: Any = SimpleNamespace(neighbours={}, conditions=("quiet", "neighbour"))
    assert condition_of(plan, "quiet") is None
    found = condition_of(plan, "neighbour")
    assert found is not None
    assert [one.program for one in found.neighbours] == ["cpu-hog"]
    assert on_the_host(plan) == ["neighbour"]


def with_guests(*counts: int) -> Condition:
    kinds = (Neighbour(program="cpu-hog", kind=Kind.GUESTS, guests=count) for count in counts)
    return Condition(name="vms", description="", neighbours=(QUOTA, *kinds))


def test_more_guests_than_the_host_has_memory_for_are_left_out_with_the_numbers() -> None:
    plans = {Strategy.COMPACT: pin_plan(TWO_CPUS, 1, 1)}
    # With the measured one: 6 of 576 MiB, and the host's own share.
    assert unfit_conditions({"vms": with_guests(3, 2)}, TWO_CPUS, plans, (), SMALL, V2) == {}
    found = unfit_conditions({"vms": with_guests(4, 2)}, TWO_CPUS, plans, (), SMALL, V2)
    assert found["vms"] == (
        "7 guests of 512 MiB need 4032 MiB and 256 MiB besides, and the host has 4096 MiB"
    )


def test_clones_of_a_guest_on_somebodys_network_are_none_of_its_neighbours() -> None:
    there = replace(SMALL, keeps_network=True)
    assert "have the addresses of the measured one" in str(there.why_not(with_guests(1)))
    quiet = Condition(name="half", description="", neighbours=(QUOTA,))
    assert there.why_not(quiet) is None


def test_guests_do_not_run_in_the_image_s_tree() -> None:
    vms = Neighbour(program="cpu-hog", kind=Kind.GUESTS, guests=2)
    condition = Condition(name="vms", description="", neighbours=(vms,))
    plan: Any = SimpleNamespace(neighbours={"vms": condition}, conditions=("vms",))
    assert on_the_host(plan) == []
