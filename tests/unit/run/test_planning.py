"""Planning a sweep: what a host and a request make of a study. Nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import HostError, UsageError
from labctl.run.planning import plan as planner
from labctl.run.planning.plan import plan_sweep
from labctl.store.jsonfile import canonical
from labctl.study.load_study import Overrides
from tests.unit.domain import hosts
from tests.unit.run.asked import plan_on, request


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with two CPUs."""
    plan_on(monkeypatch, hosts.TWO_CPUS)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (plan_sweep(request(tmp_path)).plan.to_json() for _ in range(2))
    assert canonical(first) == canonical(second)
    other = plan_sweep(request(tmp_path, seed=8)).plan.to_json()
    assert [t["cell"] for t in other["trials"]] != [t["cell"] for t in first["trials"]]


def test_a_seed_is_drawn_where_none_is_given(tmp_path: Path) -> None:
    seeds = {plan_sweep(request(tmp_path, seed=None)).plan.seed for _ in range(3)}
    assert len(seeds) > 1


def test_planning_leaves_nothing_on_disk(tmp_path: Path) -> None:
    plan_sweep(request(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_plan_says_how_many_vcpus_the_guest_gets(tmp_path: Path) -> None:
    assert plan_sweep(request(tmp_path)).plan.guest.vcpus == 1


def test_the_roles_stay_in_whatever_is_asked_for(tmp_path: Path) -> None:
    only = Overrides(tunings=("pinned",), workloads=("sysbench-cpu",))
    plan = plan_sweep(request(tmp_path, overrides=only)).plan
    assert {"native", "baseline", "control", "handicap", "pinned"} <= set(plan.tunings)
    assert "pinned+fifo" not in plan.tunings
    assert set(plan.workloads) == {"sysbench-cpu"}


@pytest.mark.parametrize(
    ("overrides", "message", "hint"),
    [
        (Overrides(tunings=("pined",)), "no tuning 'pined'", "Did you mean 'pinned'"),
        (Overrides(workloads=("sysbench",)), "no workload 'sysbench'", "sysbench-cpu"),
        (Overrides(conditions=("loud",)), "no condition 'loud'", "neighbour, noisy-guests, quiet"),
    ],
)
def test_an_unknown_name_is_told_with_the_ones_that_exist(
    tmp_path: Path, overrides: Overrides, message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        plan_sweep(request(tmp_path, overrides=overrides))
    assert hint in str(caught.value.hint)


def test_an_unknown_study_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no study 'pining'") as caught:
        plan_sweep(request(tmp_path, study="pining"))
    assert "pinning" in str(caught.value.hint)


def test_more_vcpus_than_cpus_are_refused_with_what_fits(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot place 3 vCPUs: the host has CPUs 0-1") as caught:
        plan_sweep(request(tmp_path, overrides=Overrides(vcpus=3)))
    assert "--vcpus 2" in str(caught.value.hint)


def test_a_refused_tuning_is_skipped_with_its_reason_or_an_error_when_asked_for_by_name(
    tmp_path: Path,
) -> None:
    # With both CPUs given to vCPUs, FIFO vCPUs would leave none for housekeeping.
    both = Overrides(vcpus=2)
    plan = plan_sweep(request(tmp_path, overrides=both)).plan
    assert plan.skipped["pinned+fifo"]
    assert "pinned+fifo" not in plan.tunings
    assert not any(trial.cell["tuning"] == "pinned+fifo" for trial in plan.trials)
    named = Overrides(vcpus=2, tunings=("pinned+fifo",))
    with pytest.raises((HostError, UsageError), match="pinned\\+fifo"):
        plan_sweep(request(tmp_path, overrides=named))


KNOWS_CORES = {"booted", "cpu-topology", "vcpupin-siblings", "native+vcpupin-siblings"}
"""Arms of the pinning study that are some only where a vCPU may share its core with another."""


def test_guests_that_know_their_cores_are_arms_where_the_host_has_smt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_sweep(request(tmp_path, quick=False)).plan
    assert plan.skipped.keys() == KNOWS_CORES
    assert all("two usable hardware threads" in reason for reason in plan.skipped.values())
    assert not KNOWS_CORES & plan.tunings.keys()
    plan_on(monkeypatch, hosts.FOUR_CORES_SMT)
    plan = plan_sweep(request(tmp_path, quick=False)).plan
    assert plan.tunings.keys() >= {"booted", "cpu-topology", "vcpupin-siblings"}
    # Its pairs of threads are those of native+pinned here.
    assert plan.skipped.keys() == {"native+vcpupin-siblings"}


def test_a_tuning_that_only_its_study_leaves_out_is_there_when_asked_for_by_name(
    tmp_path: Path,
) -> None:
    named = Overrides(tunings=("cpu-topology",))
    assert (
        "cpu-topology" in plan_sweep(request(tmp_path, quick=False, overrides=named)).plan.tunings
    )
    named = Overrides(tunings=("vcpupin-siblings",))
    with pytest.raises(HostError, match="two usable hardware threads"):
        plan_sweep(request(tmp_path, quick=False, overrides=named))


def test_a_quick_run_has_the_same_arms_with_and_without_smt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = plan_sweep(request(tmp_path)).plan.tunings.keys()
    plan_on(monkeypatch, hosts.FOUR_CORES_SMT)
    assert plan_sweep(request(tmp_path)).plan.tunings.keys() == without
    assert without == {
        *("native", "native+pinned", "native+fifo"),
        *("baseline", "control", "handicap", "pinned", "pinned+fifo"),
    }


def test_the_virtio_arm_has_a_reference_of_its_own_durability(tmp_path: Path) -> None:
    plan = plan_sweep(request(tmp_path, study="nested-overhead", quick=False)).plan
    arm, alone = plan.tunings["cache-none+iothreads-3"], plan.tunings["cache-none"]
    assert arm.durability == alone.durability != plan.tunings["baseline"].durability
    assert plan.guest.data_disks == 2
    (source,) = [s for s in plan.published if "fio" in s.source]
    repeated = {
        (r.tuning, r.against)
        for r in source.results
        if r.workload in ("fio-randread", "fio-randwrite")
    }
    assert repeated == {("cache-none+iothreads-3", "cache-none")}


def test_a_study_that_sends_packets_is_not_for_a_domain_of_ones_own(tmp_path: Path) -> None:
    study = planner.load_study("network", programs=planner.checkers())
    assert planner.has_peers(study)
    with pytest.raises(UsageError, match="with a peer") as caught:
        planner.check_no_peers(study)
    assert caught.value.hint is not None
    assert "--workload" in caught.value.hint


def test_a_study_that_sends_nothing_needs_no_link() -> None:
    study = planner.load_study("pinning", programs=planner.checkers())
    assert not planner.has_peers(study)
    planner.check_no_peers(study)
