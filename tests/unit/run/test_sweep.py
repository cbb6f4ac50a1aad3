"""Planning a sweep, and what its run folder says while it goes on and when it ends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.places import StatePlaces
from labctl.run import sweep as module
from labctl.run.sweep import Planned, SweepRequest, plan_sweep, sweep
from labctl.store.jsonfile import canonical
from labctl.store.run_folder import RunFolder
from labctl.study.plan import Plan
from labctl.study.study import Overrides
from tests.unit.domain import hosts


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host with two CPUs; nothing on the real one is started or changed."""
    monkeypatch.setattr(module, "read_topology", lambda: hosts.TWO_CPUS)
    monkeypatch.setattr(module, "read_rt_runtime_us", lambda: 950_000)
    monkeypatch.setattr(module, "host_lock", lambda: tmp_path / "lock")
    monkeypatch.setattr(module, "clean_up", lambda places, listener: None)
    monkeypatch.setattr(module, "_preflight", lambda request, plan, vcpus: None)


def request(tmp_path: Path, **fields: Any) -> SweepRequest:
    given = {
        "study": "pinning",
        "places": StatePlaces(tmp_path / "state"),
        "results": tmp_path / "results",
        "quick": True,
        "seed": 7,
    }
    return SweepRequest(**{**given, **fields})


def carried_out(monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    """Instead of guests and trials."""

    def carry_out(
        request: SweepRequest, planned: Planned, folder: RunFolder, record: Any, listener: Any
    ) -> None:
        what(folder, record)

    monkeypatch.setattr(module, "_carry_out", carry_out)


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
        (Overrides(conditions=("loud",)), "no condition 'loud'", "neighbour, quiet"),
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


def test_the_plan_and_the_record_are_on_disk_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def look(folder: RunFolder, record: Any) -> None:
        assert Plan.from_json(folder.read_plan()).seed == 7
        seen.append(folder.read_run()["status"])

    carried_out(monkeypatch, look)
    folder = sweep(request(tmp_path), lambda event: None)
    assert seen == ["running"]
    run = folder.read_run()
    assert (run["status"], run["quick"], run["vcpus"]) == ("done", True, 1)
    assert run["ended_at"] >= run["started_at"]
    assert "CPU" in run["pin_plan"]["picture"]


@pytest.mark.parametrize(
    ("raised", "status"),
    [(KeyboardInterrupt("SIGTERM"), "interrupted"), (BrokenError("it broke"), "failed")],
)
def test_a_run_that_ends_early_says_how_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, status: str
) -> None:
    def end(folder: RunFolder, record: Any) -> None:
        raise raised

    carried_out(monkeypatch, end)
    with pytest.raises(type(raised)):
        sweep(request(tmp_path), lambda event: None)
    (folder,) = RunFolder.all(tmp_path / "results")
    run = folder.read_run()
    assert run["status"] == status
    assert run["ended_at"]
    assert run.get("failure") == ("it broke" if status == "failed" else None)
    carried_out(monkeypatch, lambda folder, record: None)
    again = sweep(request(tmp_path, resume=folder.name), lambda event: None)
    assert again == folder
    resumed = folder.read_run()
    assert resumed["status"] == "done"
    assert "failure" not in resumed
    assert resumed["started_at"] == run["started_at"]


def test_the_lock_names_the_run_folder_while_it_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(folder: RunFolder, record: Any) -> None:
        holder = json.loads((tmp_path / "lock").read_text())
        assert holder["run_folder"] == str(folder.path)
        with pytest.raises(HostError, match="labctl sweep pinning --seed 7 --quick"):
            sweep(request(tmp_path), lambda event: None)

    carried_out(monkeypatch, look)
    sweep(request(tmp_path), lambda event: None)
    assert len(RunFolder.all(tmp_path / "results")) == 1


def test_a_results_folder_that_cannot_be_made_is_the_hosts_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(HostError, match="cannot make the run's folder") as caught:
        sweep(request(tmp_path), lambda event: None)
    assert "--results" in str(caught.value.hint)


def test_the_recorded_command_repeats_the_plan(tmp_path: Path) -> None:
    overrides = Overrides(
        tunings=("pinned",), blocks=12, blocks_per_boot=3, memory_mib=2048, duration_s=3.0
    )
    asked = request(
        tmp_path, overrides=overrides, connect="qemu:///system", accel="tcg", fresh_boots=True
    )
    words = module._command(asked, plan_sweep(asked).plan)
    from labctl.cli.sweep import command

    context = command.make_context("sweep", words[2:])
    given = context.params
    assert (given["study"], given["seed"], given["quick"]) == ("pinning", 7, True)
    assert (given["blocks"], given["blocks_per_boot"], given["memory"]) == (12, 3, 2048)
    assert (given["duration"], given["tunings"]) == (3.0, ("pinned",))
    assert (given["connect"], given["accel"]) == ("qemu:///system", "tcg")
    assert given["fresh_boots"]


def resumable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    carried_out(monkeypatch, lambda folder, record: None)
    return sweep(request(tmp_path), lambda event: None)


def test_a_resume_on_other_cpus_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resumable(tmp_path, monkeypatch)
    other = replace(hosts.TWO_CPUS, allowed=frozenset({0}))
    monkeypatch.setattr(module, "read_topology", lambda: other)
    with pytest.raises(UsageError, match="planned for other CPUs"):
        sweep(request(tmp_path, resume=folder.name), lambda event: None)


def test_a_resume_with_changed_tunings_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resumable(tmp_path, monkeypatch)
    load = module.load_tunings

    def changed(names: Any) -> Any:
        tunings = dict(load(names))
        return {**tunings, "pinned": replace(tunings["pinned"], restore=False)}

    monkeypatch.setattr(module, "load_tunings", changed)
    with pytest.raises(UsageError, match="pinned: changed since run"):
        sweep(request(tmp_path, resume=folder.name), lambda event: None)


def test_an_edited_plan_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resumable(tmp_path, monkeypatch)
    plan = folder.read_plan()
    plan["trials"].pop()
    folder.write_plan(plan)
    with pytest.raises(BrokenError, match="not the one that was made"):
        sweep(request(tmp_path, resume=folder.name), lambda event: None)


def test_a_run_that_is_not_there_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run 'nosuch'"):
        sweep(request(tmp_path, resume="nosuch"), lambda event: None)
