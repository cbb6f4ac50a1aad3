"""What a sweep's run folder says while it goes on and when it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.paths import naming_lab
from labctl.base.stopping import Looks, UntilWidth
from labctl.domain.session import Session
from labctl.run.commands import sweep as module
from labctl.run.commands.host_record import check_same_host, put_qemu_user
from labctl.run.commands.sweep import command, sweep
from labctl.run.planning import plan as run_plan
from labctl.run.planning.plan import plan_sweep
from labctl.run.planning.planned import Planned, SweepRequest
from labctl.store.records.plan_record import AbLabels
from labctl.store.records.run_record import AdviceVerified, ImageUsed, RunRecord
from labctl.store.run_folder import RunFolder, RunLog
from labctl.store.run_places import all_runs
from labctl.store.trial import TrialRecord, TrialStatus
from labctl.study.load_study import Overrides
from labctl.study.plan import Plan
from labctl.study.question import ab_images, question
from tests.unit.domain import hosts
from tests.unit.records import run_of, write_plan, write_run_json
from tests.unit.run.asked import plan_on, request


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host with two CPUs; nothing on the real one is started or changed."""
    plan_on(monkeypatch, hosts.TWO_CPUS)
    monkeypatch.setattr(module, "host_lock", lambda: tmp_path / "lock")
    monkeypatch.setattr(module, "clean_up", lambda places, listener: None)
    monkeypatch.setattr(module, "check_host", lambda request, planned, path: None)


def carried_out(monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    """Instead of guests and trials."""

    def carry_out(
        request: SweepRequest,
        planned: Planned,
        log: RunLog,
        listener: Any,
        why_end: Any,
    ) -> None:
        what(log.folder, log)

    monkeypatch.setattr(module, "measure", carry_out)


def test_the_plan_and_the_record_are_on_disk_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def look(folder: RunFolder, record: Any) -> None:
        assert Plan.of(folder.read_plan()).seed == 7
        seen.append(folder.read_run().to_json()["status"])

    carried_out(monkeypatch, look)
    folder = sweep(request(tmp_path), lambda event: None)
    assert seen == ["running"]
    run = folder.read_run().to_json()
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
    with pytest.raises(type(raised)) as caught:
        sweep(request(tmp_path), lambda event: None)
    (folder,) = all_runs(tmp_path / "results")
    run = folder.read_run().to_json()
    assert run["status"] == status
    if status == "interrupted":
        assert caught.value.__notes__ == [f"Continue with: labctl sweep --resume {folder.path}"]
    assert run["ended_at"]
    assert run.get("failure") == ("it broke" if status == "failed" else None)
    carried_out(monkeypatch, lambda folder, record: None)
    again = sweep(request(tmp_path, resume=folder.name), lambda event: None)
    assert again == folder
    resumed = folder.read_run().to_json()
    assert resumed["status"] == "done"
    assert "failure" not in resumed
    assert resumed["started_at"] == run["started_at"]


def test_a_resumed_verification_is_still_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = AdviceVerified(run="r1", tuning="pinned")

    def end(folder: RunFolder, record: Any) -> None:
        raise KeyboardInterrupt("SIGINT")

    carried_out(monkeypatch, end)
    with pytest.raises(KeyboardInterrupt):
        sweep(request(tmp_path, verifies=mark), lambda event: None)
    (folder,) = all_runs(tmp_path / "results")
    carried_out(monkeypatch, lambda folder, record: None)
    sweep(request(tmp_path, resume=folder.name), lambda event: None)
    assert folder.read_run().to_json()["verifies"] == mark.to_json()


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
    assert len(all_runs(tmp_path / "results")) == 1


def test_a_results_folder_that_cannot_be_made_is_the_hosts_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(HostError, match="cannot make the run's folder") as caught:
        sweep(request(tmp_path), lambda event: None)
    assert "--results" in str(caught.value.hint)


def test_the_recorded_command_repeats_the_plan(tmp_path: Path) -> None:
    overrides = Overrides(
        tunings=("pinned",),
        blocks=12,
        blocks_per_boot=3,
        memory_mib=2048,
        duration_s=3.0,
        other_cpu=0.5,
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
    assert given["other_cpu"] == 0.5
    assert (given["connect"], given["accel"]) == ("qemu:///system", "tcg")
    assert given["fresh_boots"]


def test_the_recorded_command_names_a_study_as_the_user_did(tmp_path: Path) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text((Path(__file__).parents[2] / "guest" / "small.yaml").read_text())
    asked = request(tmp_path, study=str(study), quick=False)
    assert command(asked, plan_sweep(asked).plan) == ["labctl", "sweep", str(study), "--seed", "7"]
    resumed = request(tmp_path, study="pinning", resume="a-run")
    assert command(resumed, plan_sweep(asked).plan) == ["labctl", "sweep", "--resume", "a-run"]


def test_the_recorded_command_of_a_question_asks_it_again(tmp_path: Path) -> None:
    asked = request(
        tmp_path,
        study="",
        quick=False,
        question=question(["pinned"], {"redis-get": {}}),
        overrides=Overrides(tunings=("pinned",), workloads=("redis-get",)),
    )
    words = command(asked, plan_sweep(asked).plan)
    assert words[1:4] == ["sweep", "--seed", "7"]
    assert words[4:] == ["--tuning", "pinned", "--workload", "redis-get"]


def resumable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    carried_out(monkeypatch, lambda folder, record: None)
    return sweep(request(tmp_path), lambda event: None)


def test_a_run_goes_on_over_its_own_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    @contextmanager
    def connected(uri: str) -> Iterator[Any]:
        opened.append(uri)
        yield SimpleNamespace(check_here=lambda: None)

    monkeypatch.setattr(Session, "connected", connected)
    carried_out(monkeypatch, lambda folder, record: None)
    for connect in ("qemu:///system", None):
        folder = sweep(request(tmp_path / str(connect), connect=connect), lambda event: None)
        resumed = request(tmp_path / str(connect), resume=folder.name)
        sweep(resumed, lambda event: None)
    assert opened == ["qemu:///system"] * 2


@pytest.mark.parametrize(
    ("then", "now", "is_same"),
    [
        ("qemu:///embed?root=/var/lib/labctl/lv", "qemu:///embed?root=/moved/lv", True),
        ("qemu:///embed?root=/var/lib/labctl/lv", "qemu:///system", False),
        ("qemu:///system", "qemu:///system", True),
    ],
)
def test_a_run_does_not_go_on_over_another_libvirt(
    then: str, now: str, is_same: bool, tmp_path: Path
) -> None:
    facts = RunRecord(host={})
    with nullcontext() if is_same else pytest.raises(UsageError, match="libvirt .*qemu:///system"):
        check_same_host("r1", facts.but(connection=then), facts.but(connection=now))


@pytest.mark.parametrize(
    ("record", "note"),
    [
        ({}, None),
        ({"host": {}, "qemu_user": {"name": "libvirt-qemu", "why_root": []}}, None),
        ({"host": {}}, "had QEMU run as root, those after it as libvirt-qemu."),
        (
            {"host": {}, "qemu_user": {"name": "root", "why_root": ["x"]}},
            "had QEMU run as root, those after it as libvirt-qemu.",
        ),
    ],
    ids=["a new run", "the same user", "a run of an older labctl", "another user"],
)
def test_a_run_that_goes_on_with_another_qemu_user_says_so(
    record: dict[str, Any], note: str | None
) -> None:
    now = {"name": "libvirt-qemu", "why_root": []}
    log = RunLog(RunFolder(Path("r1")), run_of(record))
    put_qemu_user(log, now)
    assert log.record.to_json()["qemu_user"] == now
    notes = log.record.notes
    assert len(notes) == (0 if note is None else 1)
    assert all(note is not None and text.endswith(note) for text in notes)


def test_a_daemons_qemu_user_is_the_daemons_matter() -> None:
    log = RunLog(RunFolder(Path("r1")), RunRecord(host={}))
    put_qemu_user(log, None)
    assert log.record == RunRecord(host={})


def test_a_resume_on_other_cpus_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resumable(tmp_path, monkeypatch)
    other = replace(hosts.TWO_CPUS, allowed=frozenset({0}))
    plan_on(monkeypatch, other)
    with pytest.raises(UsageError, match="planned for other CPUs"):
        sweep(request(tmp_path, resume=folder.name), lambda event: None)


def test_a_resume_with_changed_tunings_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resumable(tmp_path, monkeypatch)
    load = run_plan.load_tunings

    def changed(names: Any, defined: Any) -> Any:
        tunings = dict(load(names, defined))
        return {**tunings, "pinned": replace(tunings["pinned"], restore=False)}

    monkeypatch.setattr(run_plan, "load_tunings", changed)
    with pytest.raises(UsageError, match="pinned: changed since run"):
        sweep(request(tmp_path, resume=folder.name), lambda event: None)


def test_a_run_that_goes_on_is_planned_by_what_was_read_of_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resumable(tmp_path, monkeypatch)
    begun = run_plan.Begun.read(folder)
    for name in ("run.json", "plan.json"):
        (folder.path / name).unlink()
    assert run_plan.resumed_plan(begun).plan.seed == begun.record.seed


def test_a_resumed_comparison_of_images_has_the_same_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried_out(monkeypatch, lambda folder, record: None)
    labels = AbLabels(a="debian-12", b="debian-13", arm="B", are_images=True)
    asked = ab_images("debian-12", "debian-13", {"redis-get": {}}, labels, words=())
    asking = request(tmp_path, study="", question=asked)
    before = plan_sweep(asking)
    begun = run_plan.Begun.read(sweep(asking, lambda event: None))
    again = run_plan.resumed_plan(begun)
    assert before.recipe.layer
    assert (again.recipe, again.recipes) == (before.recipe, before.recipes)
    assert {name: one.name for name, one in again.recipes.items()} == {
        "native+B": "debian-13",
        "B": "debian-13",
    }
    now = RunRecord(host={}, images={"B": ImageUsed(name="debian-13", digest="2" * 64)})
    then = now.but(images={"B": ImageUsed(name="debian-13", digest="1" * 64)}, accelerator="tcg")
    with pytest.raises(UsageError, match="the image of 'B' "):
        check_same_host("r", then, now)


def test_an_edited_plan_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resumable(tmp_path, monkeypatch)
    plan = folder.read_plan().to_json()
    plan["trials"].pop()
    write_plan(folder, plan)
    with pytest.raises(BrokenError, match="the plan was changed"):
        sweep(request(tmp_path, resume=folder.name), lambda event: None)


def test_a_run_that_is_not_there_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run named 'nosuch'"):
        sweep(request(tmp_path, resume="nosuch"), lambda event: None)


def tried(folder: RunFolder, blocks: int) -> None:
    """A valid attempt at each trial up to that block."""
    for trial in run_plan.plan_of(run_plan.Begun.read(folder)).trials:
        if trial.block <= blocks and not folder.trial(trial.number).path.exists():
            folder.new_trial(trial.number, 1).write_record(
                TrialRecord(
                    number=trial.number,
                    attempt=1,
                    block=trial.block,
                    boot=trial.boot,
                    position=trial.position,
                    cell=trial.cell,
                    status=TrialStatus.DONE,
                    reasons=(),
                )
            )


def a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> RunFolder:
    overrides = Overrides(
        blocks=2, blocks_per_boot=2, tunings=("pinned",), workloads=("sysbench-cpu",)
    )
    carried_out(monkeypatch, lambda folder, record: tried(folder, 99))
    return sweep(request(tmp_path, **{"overrides": overrides, **fields}), lambda event: None)


def more(tmp_path: Path, folder: RunFolder, blocks: int) -> SweepRequest:
    return request(tmp_path, extend=folder.name, overrides=Overrides(blocks=blocks))


def extending(monkeypatch: pytest.MonkeyPatch, seen: list[Plan], what: Any = None) -> None:
    """As `_carry_out` does it: the extension is on disk before its first trial."""

    def carry_out(request: Any, planned: Planned, log: RunLog, *others: Any) -> None:
        folder = log.folder
        if planned.added is not None:
            folder.write_extension(planned.added.to_json())
        seen.append(planned.plan)
        if what is not None:
            what(folder)
        tried(folder, 99)

    monkeypatch.setattr(module, "measure", carry_out)


def test_a_finished_run_is_extended_beside_its_plan_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_finished_run(tmp_path, monkeypatch)
    plan, run = (folder.path / "plan.json").read_bytes(), folder.read_run().to_json()
    seen: list[Plan] = []
    extending(monkeypatch, seen)
    again = sweep(more(tmp_path, folder, 3), lambda event: None)
    assert again == folder
    assert (folder.path / "plan.json").read_bytes() == plan
    first = Plan.of(folder.read_plan())
    assert seen[0].trials[: len(first.trials)] == first.trials
    assert {(t.block, t.boot) for t in seen[0].trials} == {(1, 1), (2, 1), (3, 2), (4, 3), (5, 4)}
    now = folder.read_run().to_json()
    assert (now["status"], now["command"]) == ("done", run["command"])
    assert [item["command"] for item in now["extended"]] == [
        f"labctl sweep --extend {folder.name} --blocks 3"
    ]
    loaded = folder.load()
    assert loaded.plan.to_json()["extensions"] == [{"first_block": 3, "last_block": 5}]
    assert len(loaded.plan.to_json()["trials"]) == len(loaded.trials) == len(seen[0].trials)
    assert loaded.problems == ()
    sweep(more(tmp_path, folder, 1), lambda event: None)
    assert seen[1].blocks == 6


def test_an_interrupted_extension_is_resumed_and_not_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_finished_run(tmp_path, monkeypatch)
    seen: list[Plan] = []

    def interrupted(folder: RunFolder) -> None:
        raise KeyboardInterrupt

    extending(monkeypatch, seen, interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(more(tmp_path, folder, 2), lambda event: None)
    assert folder.read_run().to_json()["status"] == "interrupted"
    with pytest.raises(UsageError, match=r"is not finished \(status: interrupted\)") as caught:
        sweep(more(tmp_path, folder, 2), lambda event: None)
    assert caught.value.hint == f"First run: labctl sweep --resume {folder.name}"
    extending(monkeypatch, seen)
    sweep(request(tmp_path, resume=folder.name), lambda event: None)
    assert [plan.blocks for plan in seen] == [4, 4]
    assert seen[0] == seen[1]
    assert folder.read_run().to_json()["status"] == "done"


def test_a_run_that_could_not_be_extended_is_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has another kernel now: found out before anything is written."""
    folder = a_finished_run(tmp_path, monkeypatch)
    before = folder.read_run()

    def refused(*others: Any) -> None:
        raise UsageError("begun on another host than this one is now")

    monkeypatch.setattr(module, "measure", refused)
    with pytest.raises(UsageError, match="another host"):
        sweep(more(tmp_path, folder, 2), lambda event: None)
    assert folder.read_run() == before
    assert folder.read_extensions() == []


def test_an_edited_extension_is_neither_resumed_nor_extended_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_finished_run(tmp_path, monkeypatch)
    extending(monkeypatch, [])
    sweep(more(tmp_path, folder, 2), lambda event: None)
    path = folder.path / "plan.2.json"
    data = json.loads(path.read_text())
    data["trials"].pop()
    path.write_text(json.dumps(data))
    for asked in (more(tmp_path, folder, 2), request(tmp_path, resume=folder.name)):
        with pytest.raises(BrokenError, match=r"plan\.2\.json was changed after it was made"):
            sweep(asked, lambda event: None)
    problem, left_out = folder.load().problems
    assert "plan.2.json was changed after it was made" in problem
    assert "is left out: the plan has no trial of that number" in left_out


def test_a_run_that_a_rule_ended_is_over_and_its_extension_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = UntilWidth(width=0.02, most_blocks=20)

    def ended(folder: RunFolder, log: RunLog) -> None:
        tried(folder, 12)
        log.put(stopped={"blocks": 12, "why": "every one was narrow"})

    carried_out(monkeypatch, ended)
    asked = request(
        tmp_path,
        overrides=Overrides(stopping=rule, tunings=("pinned",), workloads=("sysbench-cpu",)),
    )
    folder = sweep(asked, lambda event: None)
    loaded = folder.load()
    assert len(loaded.plan.to_json()["trials"]) == len(loaded.trials)
    assert folder.read_plan().blocks == 20
    told: list[Any] = []
    sweep(request(tmp_path, resume=folder.name), told.append)
    assert "nothing to do" in told[-1].text
    seen: list[Plan] = []
    extending(monkeypatch, seen)
    sweep(more(tmp_path, folder, 2), lambda event: None)
    assert (seen[0].blocks, seen[0].stopping) == (14, None)
    assert folder.load().plan.to_json()["extensions"] == [{"first_block": 13, "last_block": 14}]


def test_a_run_that_was_killed_after_its_last_trial_is_done_once_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_finished_run(tmp_path, monkeypatch)
    write_run_json(folder, {**folder.read_run().to_json(), "status": "running"})
    sweep(request(tmp_path, resume=folder.name), lambda event: None)
    assert folder.read_run().to_json()["status"] == "done"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (UntilWidth(width=0.015, most_blocks=30), ["--until-width", "1.5%", "--max-blocks", "30"]),
        (Looks(at=(10, 15)), ["--looks", "10,15"]),
    ],
)
def test_the_recorded_command_repeats_the_rule(
    tmp_path: Path, rule: UntilWidth | Looks, words: list[str]
) -> None:
    asked = request(tmp_path, overrides=Overrides(stopping=rule))
    recorded = command(asked, plan_sweep(asked).plan)
    assert " ".join(words) in " ".join(recorded)
    from labctl.cli.sweep import command as cli
    from labctl.cli.sweep import rule_asked_for

    given = cli.make_context("sweep", recorded[2:]).params
    assert rule_asked_for(given["until_width"], given["max_blocks"], given["looks"], None) == rule


def test_the_recorded_command_names_the_lab_folder_that_it_was_given(tmp_path: Path) -> None:
    asked = request(tmp_path)
    plan = plan_sweep(asked).plan
    assert command(asked, plan)[:2] == ["labctl", "sweep"]
    (tmp_path / "lab").mkdir(mode=0o755)
    with naming_lab(tmp_path / "lab"):
        assert command(asked, plan)[:4] == ["labctl", "--lab", str(tmp_path / "lab"), "sweep"]
