"""What a sweep's run folder says while it goes on and when it ends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.run import planning
from labctl.run import sweep as module
from labctl.run.planning import Planned, SweepRequest, plan_sweep
from labctl.run.record import command
from labctl.run.sweep import sweep
from labctl.store.run_folder import RunFolder
from labctl.study.plan import Plan
from labctl.study.study import Overrides
from tests.unit.domain import hosts
from tests.unit.run.asked import request


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host with two CPUs; nothing on the real one is started or changed."""
    monkeypatch.setattr(planning, "read_topology", lambda: hosts.TWO_CPUS)
    monkeypatch.setattr(planning, "read_rt_runtime_us", lambda: 950_000)
    monkeypatch.setattr(module, "host_lock", lambda: tmp_path / "lock")
    monkeypatch.setattr(module, "clean_up", lambda places, listener: None)
    monkeypatch.setattr(module, "_preflight", lambda request, planned: None)


def carried_out(monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    """Instead of guests and trials."""

    def carry_out(
        request: SweepRequest, planned: Planned, folder: RunFolder, record: Any, listener: Any
    ) -> None:
        what(folder, record)

    monkeypatch.setattr(module, "_carry_out", carry_out)


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


def test_a_resumed_verification_is_still_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = {"run": "r1", "tuning": "pinned"}

    def end(folder: RunFolder, record: Any) -> None:
        raise KeyboardInterrupt("SIGINT")

    carried_out(monkeypatch, end)
    with pytest.raises(KeyboardInterrupt):
        sweep(request(tmp_path, verifies=mark), lambda event: None)
    (folder,) = RunFolder.all(tmp_path / "results")
    carried_out(monkeypatch, lambda folder, record: None)
    sweep(request(tmp_path, resume=folder.name), lambda event: None)
    assert folder.read_run()["verifies"] == mark


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
    words = command(asked, plan_sweep(asked).plan)
    from labctl.cli.sweep import command as cli

    context = cli.make_context("sweep", words[2:])
    given = context.params
    assert (given["study"], given["seed"], given["quick"]) == ("pinning", 7, True)
    assert (given["blocks"], given["blocks_per_boot"], given["memory"]) == (12, 3, 2048)
    assert (given["duration"], given["tunings"]) == (3.0, ("pinned",))
    assert (given["connect"], given["accel"]) == ("qemu:///system", "tcg")
    assert given["fresh_boots"]


def test_the_recorded_command_names_a_study_as_the_user_did(tmp_path: Path) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text((Path(__file__).parents[2] / "guest" / "small.yaml").read_text())
    asked = request(tmp_path, study=str(study), quick=False)
    assert command(asked, plan_sweep(asked).plan) == ["labctl", "sweep", str(study), "--seed", "7"]
    resumed = request(tmp_path, study="pinning", resume="a-run")
    assert command(resumed, plan_sweep(asked).plan) == ["labctl", "sweep", "--resume", "a-run"]


def resumable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    carried_out(monkeypatch, lambda folder, record: None)
    return sweep(request(tmp_path), lambda event: None)


def test_a_resume_on_other_cpus_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resumable(tmp_path, monkeypatch)
    other = replace(hosts.TWO_CPUS, allowed=frozenset({0}))
    monkeypatch.setattr(planning, "read_topology", lambda: other)
    with pytest.raises(UsageError, match="planned for other CPUs"):
        sweep(request(tmp_path, resume=folder.name), lambda event: None)


def test_a_resume_with_changed_tunings_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resumable(tmp_path, monkeypatch)
    load = planning.load_tunings

    def changed(names: Any) -> Any:
        tunings = dict(load(names))
        return {**tunings, "pinned": replace(tunings["pinned"], restore=False)}

    monkeypatch.setattr(planning, "load_tunings", changed)
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
