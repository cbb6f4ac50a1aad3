"""A run's trials are held against its plan, and its samples against their digests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.store import index
from labctl.store.run_folder import RunFolder
from labctl.store.samples import Reading, Unavailable
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus
from tests.unit.records import write_plan, write_run_json

READINGS: list[Reading] = [Unavailable(metric="ipc", reason="the host has no PMU")]
TUNINGS = {"baseline": {"kind": "guest"}, "native": {"kind": "native"}}


def planned(number: int, block: int, tuning: str = "baseline") -> dict[str, Any]:
    cell = {"tuning": tuning, "workload": "cpu", "condition": "quiet"}
    return {"number": number, "block": block, "boot": block, "position": 1, "cell": cell}


def ran(folder: RunFolder, trial: dict[str, Any], **changes: Any) -> TrialFolder:
    record = TrialRecord(
        **{**trial, "attempt": 1, "status": TrialStatus.DONE, "restored": True, **changes}
    )
    place = folder.new_trial(record.number, record.attempt)
    place.write_raw("stdout.txt", "as the tool printed it\n")
    place.write_readings(READINGS)
    place.write_record(replace(record, digests=place.digests()))
    return place


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Four trials that ran, and a spare that did not."""
    folder = RunFolder.create(tmp_path, "run")
    write_run_json(folder, {"status": "done"})
    trials = [planned(1, 1), planned(2, 1, "native"), planned(3, 2), planned(4, 2, "native")]
    write_plan(
        folder, {"schema": 1, "tunings": TUNINGS, "trials": trials, "spares": [planned(5, 3)]}
    )
    for trial in trials:
        ran(folder, trial)
    return folder


def change(place: TrialFolder, **changes: Any) -> None:
    path = place.path / "trial.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def numbers(run: RunFolder) -> list[int]:
    return [trial.record.number for trial in run.load().trials]


def test_trials_of_the_plan_and_of_its_spares_are_all_there(run: RunFolder) -> None:
    ran(run, planned(5, 3))
    assert run.load().problems == ()
    assert numbers(run) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"number": 4}, "it is recorded as 0004"),
        ({"attempt": 2}, "it is recorded as 0003.2"),
        ({"block": 1}, "its block is 1, but the plan's is 2"),
        ({"position": 7}, "its position is 7, but the plan's is 1"),
        (
            {"cell": planned(1, 1, "native")["cell"]},
            "its cell is native · cpu · quiet, but the plan's",
        ),
        ({"boot": 1}, "its boot, 1, is that of trials of the plan's boot 1, and the plan has it"),
    ],
)
def test_a_trial_that_is_not_the_plan_s_is_named_and_left_out(
    run: RunFolder, changes: dict[str, Any], why: str
) -> None:
    change(run.trial(3), **changes)
    (problem,) = run.load().problems
    assert problem.startswith("trial 0003 of ")
    assert f"is left out: {why}" in problem
    assert numbers(run) == [1, 2, 4]


def test_a_native_trial_has_the_boot_of_its_plan(run: RunFolder) -> None:
    change(run.trial(2), boot=9)
    assert "its boot is 9, but the plan's is 1" in run.load().problems[0]


def test_a_guest_s_boot_may_be_one_that_a_resumed_run_made_anew(run: RunFolder) -> None:
    change(run.trial(3), boot=17)
    assert run.load().problems == ()


def test_a_copied_trial_is_one_too_many(run: RunFolder) -> None:
    for name, changes in (("0009", {"number": 9}), ("0001.2", {"attempt": 2})):
        shutil.copytree(run.trial(1).path, run.path / "trials" / name)
        change(TrialFolder(run.path / "trials" / name), **changes)
    again, unplanned = run.load().problems
    assert "0001.2" in again
    assert "an earlier attempt at it was already done" in again
    assert "0009" in unplanned
    assert "the plan has no trial of that number" in unplanned
    assert numbers(run) == [1, 2, 3, 4]


def test_trials_of_an_extension_are_the_plan_s(run: RunFolder) -> None:
    added = planned(6, 4)
    run.write_extension({"schema": 1, "first_block": 4, "last_block": 4, "trials": [added]})
    ran(run, added)
    assert run.load().problems == ()
    assert 6 in numbers(run)


def test_an_extension_takes_the_numbers_of_spares_where_the_rule_ended_the_run(
    run: RunFolder,
) -> None:
    write_run_json(run, {"status": "done", "stopped": {"blocks": 2, "why": "narrow enough"}})
    added = planned(5, 3, "native")
    run.write_extension({"schema": 1, "first_block": 3, "last_block": 3, "trials": [added]})
    ran(run, added)
    assert run.load().problems == ()


def test_an_imported_trial_is_held_against_its_cell_and_block_alone(run: RunFolder) -> None:
    write_run_json(run, {"status": "done", "imported": {"file": "trials.csv"}})
    for place in list(run.trial_folders()):
        change(place, position=0)
    assert run.load().problems == ()
    change(run.trial(3), block=8)
    assert "the plan has no such cell in that block" in run.load().problems[0]


def edited(path: Path) -> None:
    path.write_text(path.read_text().replace("no PMU", "one PMU"))


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [edited, gone])
def test_a_trial_whose_samples_were_changed_is_named_and_left_out(
    run: RunFolder, damage: Callable[[Path], None]
) -> None:
    damage(run.trial(3).path / "samples.json")
    (problem,) = run.load().problems
    assert "trial 0003 is left out" in problem
    assert "samples.json" in problem
    assert numbers(run) == [1, 2, 4]


def test_trials_of_an_older_labctl_have_no_digests_and_are_read(run: RunFolder) -> None:
    for place in list(run.trial_folders()):
        data = place.read_json("trial.json")
        del data["digests"]
        place.write_raw_json("trial.json", data)
    assert run.load().problems == ()
    assert run.trial(1).read_record().digests is None


def test_the_index_is_no_way_around(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_SMALLEST_BYTES", 0)
    monkeypatch.setattr(index, "_SETTLED_NS", 0)
    run.load()
    assert (run.path / index.NAME).is_file()
    assert run.load().trials[2].record.digests is not None
    # A plan may change while the trials' files do not.
    plan = run.read_plan().to_json()
    plan["trials"][2]["block"] = 1
    write_plan(run, plan)
    assert numbers(run) == [1, 2, 4]
    edited(run.trial(1).path / "samples.json")
    assert numbers(run) == [2, 4]


def test_a_run_that_goes_on_counts_on_nothing_that_is_damaged(run: RunFolder) -> None:
    run.trial(1).write_raw("trial.json", '{"schema": 1')
    change(run.trial(3), block=1)
    records, damaged = run.records(run.read_plan())
    assert [record.number for record in records] == [2, 4]
    assert [(lost.number, lost.attempt) for lost in damaged] == [(1, 1), (3, 1)]


def at(minute: int) -> str:
    return f"2026-11-22T20:{minute:02d}:00.000+00:00"


def test_a_trial_whose_digests_were_removed_is_named(run: RunFolder) -> None:
    for number in (1, 2, 3, 4):
        change(run.trial(number), started_at=at(number))
    assert not run.load().problems
    change(run.trial(3), digests=None)
    assert run.load().problems == (
        (
            "it is unknown whether the samples of 1 trial were changed (3): their digests were "
            "removed"
        ),
    )


def test_trials_that_an_older_labctl_began_a_run_with_have_no_digests(run: RunFolder) -> None:
    for number in (1, 2, 3, 4):
        change(run.trial(number), started_at=at(number))
    change(run.trial(1), digests=None)
    assert not run.load().problems


def test_a_run_that_takes_emulation_for_virtualization_is_corrected_by_its_trials(
    run: RunFolder,
) -> None:
    write_run_json(run, {"status": "done", "accelerator": "kvm"})
    for number in (1, 2, 3, 4):
        change(run.trial(number), parsed_with={"accelerator": "tcg"})
    loaded = run.load()
    assert loaded.run.to_json()["accelerator"] == "tcg"
    assert "says that its guests ran under kvm, but their trials say tcg" in str(loaded.problems)
