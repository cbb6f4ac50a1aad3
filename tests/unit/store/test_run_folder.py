from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.units import Better, Unit
from labctl.store.jsonfile import canonical
from labctl.store.records.as_made import SCHEMA
from labctl.store.run_folder import RunFolder
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus
from tests.unit.records import write_plan, write_run_json

RECORD = TrialRecord(
    number=7,
    attempt=2,
    block=3,
    boot=1,
    position=4,
    cell={"tuning": "pinned", "workload": "cpu", "condition": "quiet"},
    status=TrialStatus.INVALID,
    reasons=("vCPU 0 runs on CPUs 0-1, asked for 1",),
    measured_s=2.0,
    warmup_s=4.5,
    wall_s=7.25,
    started_at="2026-01-02T03:04:05+00:00",
    restored=True,
    parsed_with={"program": "sysbench-cpu", "parameters": {"max_prime": 2000}},
)

EXITS = Sample(
    metric="exits",
    value=12.5,
    unit=Unit.PER_SECOND,
    better=Better.LOWER,
    labels={"vcpu": "0", "reason": "HLT"},
    source="host.json",
)

READINGS: list[Reading] = [EXITS, Unavailable(metric="ipc", reason="the host has no PMU")]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path, "2026-01-02-pinning")
    write_run_json(folder, {"name": folder.name, "status": "running"})
    write_plan(folder, {"schema": 1, "trials": []})
    return folder


def kept(run: RunFolder, number: int, attempt: int = 1) -> TrialFolder:
    folder = run.new_trial(number, attempt)
    folder.write_record(replace(RECORD, number=number, attempt=attempt))
    folder.write_readings(READINGS)
    return folder


def test_a_trial_record_survives_its_file(run: RunFolder) -> None:
    folder = run.new_trial(7, 2)
    folder.write_record(RECORD)
    assert folder.read_record() == RECORD


def test_samples_and_what_is_unavailable_survive_their_file(run: RunFolder) -> None:
    assert list(kept(run, 1).read_readings()) == READINGS


def test_a_sample_is_named_with_its_labels_in_one_order() -> None:
    assert EXITS.key == "exits{reason=HLT,vcpu=0}"
    assert replace(EXITS, labels={}).key == "exits"


def test_a_second_attempt_lies_beside_the_first(run: RunFolder) -> None:
    assert run.trial(7).path.name == "0007"
    assert run.trial(7, 2).path.name == "0007.2"


def test_what_an_interrupted_attempt_left_is_removed(run: RunFolder) -> None:
    run.new_trial(1, 1).write_raw("stdout.txt", "half")
    assert not run.new_trial(1, 1).has("stdout.txt")


def test_raw_files_may_lie_in_folders(run: RunFolder) -> None:
    folder = run.new_trial(1, 1)
    folder.write_raw("files/hist.json", b"{}")
    folder.write_raw_json("runner.json", {"returncode": 0})
    assert folder.read_text("files/hist.json") == "{}"
    assert folder.read_json("runner.json") == {"returncode": 0}


def test_a_raw_file_that_is_missing_or_no_text_is_named(run: RunFolder) -> None:
    folder = run.new_trial(1, 1)
    folder.write_raw("stdout.txt", b"\xff\xfe")
    for name in ("stdout.txt", "stderr.txt"):
        with pytest.raises(BrokenError, match=name):
            folder.read_text(name)


def test_a_run_is_loaded_with_its_trials_in_order(run: RunFolder) -> None:
    for number, attempt in ((10, 1), (2, 1), (2, 2), (1, 1)):
        kept(run, number, attempt)
    loaded = run.load()
    order = [(trial.record.number, trial.record.attempt) for trial in loaded.trials]
    assert order == [(1, 1), (2, 1), (2, 2), (10, 1)]
    assert loaded.problems == ()
    assert list(loaded.trials[0].readings) == READINGS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trial.json", "{"),
        ("trial.json", "[]"),
        ("trial.json", '{"schema": 1}'),
        ("samples.json", '{"samples": [{}], "unavailable": []}'),
        ("samples.json", "[]"),
        ("samples.json", '{"samples": [], "unavailable": null}'),
    ],
)
def test_a_trial_that_cannot_be_read_is_a_problem_and_the_rest_is_loaded(
    run: RunFolder, name: str, text: str
) -> None:
    kept(run, 1)
    kept(run, 2).write_raw(name, text)
    loaded = run.load()
    assert [trial.record.number for trial in loaded.trials] == [1]
    assert len(loaded.problems) == 1
    assert f"0002/{name}" in loaded.problems[0]


def test_a_value_that_is_no_number_is_no_sample(run: RunFolder) -> None:
    folder = kept(run, 1)
    data = folder.read_json("samples.json")
    data["samples"][0]["value"] = "many"
    folder.write_raw_json("samples.json", data)
    with pytest.raises(BrokenError, match="'samples.0..value': expected a number, got 'many'"):
        folder.read_readings()


def test_a_trial_that_was_never_finished_has_no_readings(run: RunFolder) -> None:
    run.new_trial(1, 1).write_record(RECORD)
    assert list(run.load().trials[0].readings) == []


def test_a_run_without_a_plan_is_loaded_with_that_problem(run: RunFolder) -> None:
    (run.path / "plan.json").unlink()
    loaded = run.load()
    assert loaded.plan.is_lost
    assert "plan.json is missing" in loaded.problems[0]


@pytest.mark.parametrize("plan", ["[]", "{}", '{"trials": {}}'])
def test_what_is_no_plan_is_refused(run: RunFolder, plan: str) -> None:
    (run.path / "plan.json").write_text(plan)
    with pytest.raises(BrokenError, match="is no plan"):
        run.read_plan()


def test_a_run_of_a_newer_labctl_is_refused_with_a_remedy(run: RunFolder) -> None:
    (run.path / "run.json").write_text(json.dumps({"schema": SCHEMA + 1}))
    with pytest.raises(UsageError, match="written by a newer labctl") as caught:
        run.read_run()
    assert caught.value.hint == "Update labctl."


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": "1"}'])
def test_what_is_no_run_record_is_refused(run: RunFolder, text: str) -> None:
    (run.path / "run.json").write_text(text)
    with pytest.raises(BrokenError, match="is not a run record"):
        run.read_run()


def test_a_removed_run_is_gone(run: RunFolder) -> None:
    run.remove()
    assert not run.path.exists()


def test_a_run_record_that_was_edited_is_not_gone_on_with(run: RunFolder) -> None:
    write_run_json(run, {"status": "failed", "host": "this one"})
    with pytest.raises(BrokenError, match="'host': expected an object, got 'this one'") as caught:
        run.read_run()
    assert caught.value.hint == "Correct it, or start a new run."


def trials(*blocks: int) -> list[dict[str, object]]:
    cell = {"tuning": "pinned", "workload": "cpu", "condition": "quiet"}
    return [{"number": block, "block": block, "cell": cell} for block in blocks]


def added(extends: str, first: int, last: int) -> dict[str, object]:
    content = {
        "extends": extends,
        "first_block": first,
        "last_block": last,
        "trials": trials(*range(first, last + 1)),
    }
    digest = hashlib.sha256(canonical(content).encode()).hexdigest()
    return {"schema": 1, "digest": digest, **content}


@pytest.fixture
def extended(run: RunFolder) -> RunFolder:
    """Ended by its rule after block 2 of 4; then two blocks were added, and one more."""
    content = {"trials": trials(1, 2, 3, 4)}
    digest = hashlib.sha256(canonical(content).encode()).hexdigest()
    write_run_json(run, {"status": "done", "stopped": {"blocks": 2, "why": "all were narrow"}})
    write_plan(run, {"schema": 1, "digest": digest, **content})
    second = added(digest, 3, 4)
    run.write_extension(second)
    run.write_extension(added(str(second["digest"]), 5, 5))
    return run


def test_a_plan_is_loaded_as_it_was_carried_out(extended: RunFolder) -> None:
    assert sorted(path.name for path in extended.path.glob("plan*")) == [
        "plan.2.json",
        "plan.3.json",
        "plan.json",
    ]
    loaded = extended.load()
    assert [trial["block"] for trial in loaded.plan.to_json()["trials"]] == [1, 2, 3, 4, 5]
    assert loaded.plan.to_json()["extensions"] == [
        {"first_block": 3, "last_block": 4},
        {"first_block": 5, "last_block": 5},
    ]
    assert loaded.problems == ()


def test_a_rule_that_ended_a_run_leaves_the_trials_that_it_had(extended: RunFolder) -> None:
    for number in (2, 3):
        (extended.path / f"plan.{number}.json").unlink()
    assert [trial["block"] for trial in extended.load().plan.to_json()["trials"]] == [1, 2]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "plan.2.json"),
        ("[]", "plan.2.json is not an extension of a plan"),
        ('{"trials": [], "first_block": "three", "last_block": 4}', "'first_block': expected"),
    ],
)
def test_an_extension_that_is_not_whole_is_a_problem_and_the_rest_is_loaded(
    extended: RunFolder, text: str, sentence: str
) -> None:
    (extended.path / "plan.2.json").write_text(text)
    loaded = extended.load()
    assert any(sentence in problem for problem in loaded.problems)
    assert [trial["block"] for trial in loaded.plan.to_json()["trials"]] == [1, 2, 5]


def test_an_extension_of_another_plan_is_a_problem(extended: RunFolder) -> None:
    (extended.path / "plan.2.json").unlink()
    extended.write_extension(added("0" * 64, 3, 4))
    problems = extended.load().problems
    assert [problem[:11] for problem in problems] == ["plan.2.json", "plan.3.json"]
    assert all(
        "does not extend the previous plan: its blocks may differ from the plan" in text
        for text in problems
    )


@pytest.mark.parametrize(("guests", "known"), [(["tcg", "tcg"], "tcg"), (["tcg", "kvm"], None)])
def test_a_lost_record_leaves_what_the_trials_say_of_the_accelerator(
    run: RunFolder, guests: list[str], known: str | None
) -> None:
    """Else emulation would be taken for virtualization."""
    for number, accelerator in enumerate(guests, start=1):
        folder = kept(run, number)
        told = {**RECORD.parsed_with, "accelerator": accelerator}
        folder.write_record(replace(RECORD, number=number, attempt=1, parsed_with=told))
    (run.path / "run.json").write_text('{"schema": 1, "acc')
    assert run.load().run.to_json().get("accelerator") == known


def test_a_trial_that_was_cut_off_is_told_from_one_that_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match="interrupted trial") as caught:
        TrialFolder(tmp_path / "0002").read_record()
    assert "resumed" in str(caught.value.hint)


def test_a_run_is_for_its_owner_alone(run: RunFolder) -> None:
    assert run.path.stat().st_mode & 0o777 == 0o700


def test_a_trial_that_is_a_link_is_left_out_and_never_written_through(
    run: RunFolder, tmp_path: Path
) -> None:
    kept(run, 1)
    elsewhere = tmp_path / "elsewhere"
    (run.path / "trials/0001").rename(elsewhere)
    (run.path / "trials/0001").symlink_to(elsewhere)
    before = (elsewhere / "samples.json").read_bytes()
    loaded = run.load()
    assert loaded.trials == ()
    assert any("trials/0001 is a link; it is left out" in text for text in loaded.problems)
    with pytest.raises(HostError, match="'0001' is a link"):
        run.trial(1).write_readings([])
    assert (elsewhere / "samples.json").read_bytes() == before
    run.new_trial(1, 1).write_readings([])
    assert (elsewhere / "samples.json").read_bytes() == before


def test_trials_that_lie_behind_a_link_are_left_out(run: RunFolder, tmp_path: Path) -> None:
    kept(run, 1)
    (run.path / "trials").rename(tmp_path / "elsewhere")
    (run.path / "trials").symlink_to(tmp_path / "elsewhere")
    loaded = run.load()
    assert loaded.trials == ()
    assert any("trials is a link" in text for text in loaded.problems)


def test_a_raw_file_that_is_a_link_or_a_pipe_is_not_read(run: RunFolder, tmp_path: Path) -> None:
    trial = kept(run, 1)
    (tmp_path / "secret").write_text('{"a": 1}')
    (trial.path / "stdout.txt").symlink_to(tmp_path / "secret")
    os.mkfifo(trial.path / "host.json")
    with pytest.raises(BrokenError, match=r"stdout\.txt cannot be read"):
        trial.read_text("stdout.txt")
    with pytest.raises(BrokenError, match=r"host\.json cannot be read"):
        trial.read_json("host.json")
