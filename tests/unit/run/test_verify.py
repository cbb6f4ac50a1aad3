"""`labctl run verify`, and what reparsing does to digests."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.run.commands.verify import verify
from labctl.run.trials import parse as module
from labctl.run.trials.parse import reparse
from labctl.store.run_folder import RunFolder
from labctl.store.samples import Reading, Unavailable
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus
from labctl.trace import files
from tests.unit.records import write_plan, write_run_json
from tests.unit.store.test_fitting_plan import change, planned, ran

SAMPLE = Unavailable(metric="ipc", reason="as parsed today")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(module, "parse_trial", lambda folder, record: [SAMPLE])
    folder = RunFolder.create(tmp_path, "run")
    write_run_json(folder, {"status": "done"})
    trials = [planned(1, 1), planned(2, 2)]
    write_plan(folder, {"schema": 1, "tunings": {"baseline": {"kind": "guest"}}, "trials": trials})
    for trial in trials:
        place = ran(folder, trial)
        place.write_raw(files.HOST, b"PERFILE2")
        place.write_record(replace(place.read_record(), digests=place.digests()))
    return folder


def differences(run: RunFolder) -> list[tuple[str, str, str]]:
    return [(one.trial, one.file, one.what) for one in verify(run).differences]


def test_a_run_as_its_trials_left_it_differs_in_nothing(run: RunFolder) -> None:
    found = verify(run)
    assert (found.trials, found.without_digests, found.differences) == (2, 0, ())


def test_every_raw_file_that_was_changed_is_named(run: RunFolder) -> None:
    run.trial(1).write_raw("stdout.txt", "better than the tool printed it\n")
    run.trial(1).write_raw("files/more.json", "{}")
    (run.trial(2).path / "stdout.txt").unlink()
    assert differences(run) == [
        ("0001", "files/more.json", "did not exist at the end of the trial"),
        ("0001", "stdout.txt", "was changed"),
        ("0002", "stdout.txt", "is gone"),
    ]


def test_samples_and_what_does_not_fit_the_plan_are_named_as_well(run: RunFolder) -> None:
    run.trial(1).write_readings([SAMPLE])
    change(run.trial(2), block=1)
    named = {(trial, file) for trial, file, _ in differences(run)}
    assert ("0001", "samples.json") in named
    assert any("its block is 1" in what for _, _, what in differences(run))


def test_nothing_of_a_trial_is_read_through_a_link_or_waited_for(run: RunFolder) -> None:
    os.mkfifo(run.trial(1).path / "pipe")
    (run.trial(2).path / "stdout.txt").unlink()
    (run.trial(2).path / "stdout.txt").symlink_to("/etc/passwd")
    assert "pipe cannot be read: it is not a regular file" in differences(run)[0][2]
    assert "stdout.txt cannot be read" in differences(run)[1][2]


def test_traces_may_be_removed_as_a_whole(run: RunFolder) -> None:
    shutil.rmtree(run.trial(1).path / files.FOLDER)
    found = verify(run)
    assert found.differences == ()
    assert found.notes == ("Trial 0001 no longer has trace/.",)


def test_trials_of_an_older_labctl_are_counted(run: RunFolder) -> None:
    run.trial(1).write_record(replace(run.trial(1).read_record(), digests=None))
    assert verify(run).without_digests == 1
    assert verify(run).differences == ()


def test_reparsing_renews_the_digests_and_says_so(run: RunFolder) -> None:
    run.trial(1).write_raw("samples.json", '{"samples": [], "unavailable": []}')
    assert len(run.load().trials) == 1
    assert reparse(run) == (2, [])
    assert [list(trial.readings) for trial in run.load().trials] == [[SAMPLE], [SAMPLE]]
    assert differences(run) == []
    told = run.trial(1).read_record().reparsed
    assert told is not None
    assert told.changed == ()


def test_raw_files_that_were_changed_before_a_reparse_stay_named(run: RunFolder) -> None:
    run.trial(1).write_raw("stdout.txt", "better than the tool printed it\n")
    for _ in range(2):
        reparse(run)
        (problem,) = run.load().problems
        assert "trial 0001 was parsed again from raw files that changed" in problem
        assert problem.endswith("stdout.txt")


def test_a_trial_whose_raw_files_cannot_be_parsed_any_more_is_invalid_until_they_can(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(folder: TrialFolder, record: TrialRecord) -> list[Reading]:
        if not folder.read_text("stdout.txt"):
            raise BrokenError(f"{folder.path / 'stdout.txt'}: it is empty")
        return [SAMPLE]

    monkeypatch.setattr(module, "parse_trial", parsed)
    whole = run.trial(1).read_text("stdout.txt")
    run.trial(1).write_raw("stdout.txt", "")
    for _ in range(2):
        written, (problem,) = reparse(run)
        assert (written, "stdout.txt" in problem) == (1, True)
        first, second = (trial.record for trial in run.load().trials)
        assert (first.status, first.reasons) == (TrialStatus.INVALID, (problem,))
        assert second.status is TrialStatus.DONE
    run.trial(1).write_raw("stdout.txt", whole)
    assert reparse(run) == (2, [])
    assert {trial.record.status for trial in run.load().trials} == {TrialStatus.DONE}


def test_a_trial_that_was_invalid_when_it_ended_stays_so(run: RunFolder) -> None:
    record = replace(run.trial(1).read_record(), status=TrialStatus.INVALID, reasons=("late",))
    run.trial(1).write_record(record)
    assert reparse(run) == (1, [])
    assert run.trial(1).read_record() == record


def test_each_thing_that_differs_is_named_once(run: RunFolder) -> None:
    run.trial(1).write_readings([SAMPLE])
    run.trial(2).write_raw("trial.json", "{")
    found = differences(run)
    assert [(trial, file) for trial, file, _ in found] == [("0001", "samples.json"), ("0002", "")]


def test_samples_that_are_gone_are_named_once(run: RunFolder) -> None:
    (run.trial(1).path / "samples.json").unlink()
    assert differences(run) == [("0001", "samples.json", "is gone")]
