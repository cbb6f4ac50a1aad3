"""`labctl timeline` as a command: what it writes and prints, and what it says where it can't."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.base.errors import HostError
from labctl.base.units import Better, Unit
from labctl.store.run_folder import RunFolder
from labctl.store.samples import Sample
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.timeline.lanes import Timeline
from tests.unit.records import plan_of
from tests.unit.report.test_timeline import small
from tests.unit.synthetic import WORKLOADS, synthetic_run, write_run
from tests.unit.trace.test_perfdata_recorded import FIXTURES

from .conftest import Labctl

WORKLOAD = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run `r1` whose trial 2 has a trace."""
    run = write_run(tmp_path / "results" / "r1", synthetic_run(blocks=2, workloads=WORKLOAD))
    run.trial(2).write_raw(files.HOST, b"PERFILE2")
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[TrialFolder]:
    """Traces are read as the small time line; the folders that were asked for."""
    asked: list[TrialFolder] = []

    def read_timeline(folder: TrialFolder) -> Timeline:
        asked.append(folder)
        return small()

    monkeypatch.setattr("labctl.trace.timeline.nested.read_timeline", read_timeline)
    return asked


def test_the_page_goes_into_the_runs_folder(
    labctl: Labctl, results: Path, read: list[TrialFolder]
) -> None:
    said = labctl("timeline", "r1", "2")
    page = results / "r1" / "timeline-0002.html"
    assert said.code == 0, said.err
    assert said.out.splitlines()[-1] == f"Wrote {page}"
    assert "67 % was waiting for a host CPU" in said.out
    assert "Timeline of trial 2" in page.read_text()
    assert read == [RunFolder(results / "r1").trial(2)]


@pytest.mark.usefixtures("read")
def test_output_and_perfetto_go_where_they_are_asked_to(
    labctl: Labctl, results: Path, tmp_path: Path
) -> None:
    page, perfetto = tmp_path / "t.html", tmp_path / "t.pftrace"
    said = labctl("timeline", "r1", "2", "-o", str(page), "--perfetto", str(perfetto))
    assert said.code == 0, said.err
    assert page.stat().st_size > 10_000
    assert b"waiting for a CPU: stress-ng" in perfetto.read_bytes()
    assert not (results / "r1" / "timeline-0002.html").exists()


@pytest.mark.usefixtures("read")
def test_traces_for_trace_cmd_go_into_the_folder_that_is_asked_for(
    labctl: Labctl, results: Path, tmp_path: Path
) -> None:
    trial = RunFolder(results / "r1").trial(2)
    shutil.copy(FIXTURES / "sched-perf-6.1.data", trial.path / files.HOST)
    trial.write_raw_json(files.THREADS, [])
    for arguments in ((), ("--json",)):
        said = labctl("timeline", "r1", "2", "--trace-dat", str(tmp_path / "t"), *arguments)
        assert said.code == 0, said.err
        told = said.err if arguments else said.out
        assert told.splitlines()[-1] == f"Wrote {tmp_path / 't' / 'host.dat'}"
    assert json.loads(said.out)["trial"] == 2
    assert not (results / "r1" / "timeline-0002.html").exists()


@pytest.mark.usefixtures("read")
def test_json_is_all_that_is_printed_and_nothing_is_written(labctl: Labctl, results: Path) -> None:
    said = labctl("timeline", "r1", "2", "--json")
    found = json.loads(said.out)
    assert found["trial"] == 2
    assert [one["latency_s"] for one in found["late"]] == [0.005, 0.001]
    assert not list((results / "r1").glob("timeline*"))


def test_without_a_trial_those_with_a_trace_are_listed_and_one_is_proposed(
    labctl: Labctl, results: Path
) -> None:
    RunFolder(results / "r1").trial(5).write_raw(files.GUEST, b"PERFILE2")
    said = labctl("timeline", "r1")
    heading, _, *lines = said.out.splitlines()
    assert heading.startswith("trial")
    assert {line[:1] for line in lines[: lines.index("")]} - {" "} == {"2", "5"}
    assert "For example: labctl timeline r1 5" in said.out, "the one with a guest's side"
    elsewhere = labctl("timeline", str(results / "r1")).out
    assert f"For example: labctl timeline {results / 'r1'} " in elsewhere
    listed = json.loads(labctl("timeline", "r1", "--json").out)
    assert {one["trial"] for one in listed["trials"]} == {2, 5}
    worst = [one["latency_max_s"] or 0 for one in listed["trials"]]
    assert worst == sorted(worst, reverse=True)


@pytest.mark.usefixtures("results")
def test_the_list_of_traced_trials_folds_into_80_columns(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    piped = labctl("timeline", "r1").out
    assert "sysbench-cpu with a noisy neighbour" in piped, "a listing has the width that it takes"
    monkeypatch.setenv("COLUMNS", "80")
    folded, _, _ = labctl("timeline", "r1").out.partition("For example")
    assert "worst latency" in folded
    assert max(map(len, folded.splitlines())) <= 80 < max(map(len, piped.splitlines()))


def test_a_run_without_any_trace_says_how_to_record_some(labctl: Labctl, results: Path) -> None:
    (results / "r1" / "trials" / "0002" / files.HOST).unlink()
    said = labctl("timeline", "r1")
    assert said.code == 0
    assert "--collect trace" in said.out


def _traced(results: Path, name: str = "r1", level: str = "trace") -> RunFolder:
    """A run that was traced at that level, and whose traces are gone."""
    run = synthetic_run(blocks=2, workloads=WORKLOAD)
    plan = {**run.plan.to_json(), "collect": level}
    plan.pop("digest", None)
    return write_run(results / name, replace(run, name=name, plan=plan_of(plan)))


def _told_by_its_trace(folder: TrialFolder) -> None:
    lost = Sample(
        metric="lost_events",
        value=0,
        unit=Unit.COUNT,
        better=Better.NEITHER,
        source=files.HOST,
    )
    folder.write_readings([*folder.read_readings(), lost])


def test_a_run_whose_traces_were_removed_says_so_and_which_runs_have_some(
    labctl: Labctl, results: Path
) -> None:
    run = _traced(results, "r2")
    _told_by_its_trace(run.trial(3))
    said = labctl("timeline", "r2")
    assert "The traces of r2 were removed; only" in said.out
    assert "Other runs with traces: r1." in said.out
    assert "--collect trace" not in said.out
    said = labctl("timeline", "r2", "3")
    assert said.code == 2
    assert "the trace of trial 3 of r2 was removed" in said.err


def test_a_run_that_could_not_be_traced_says_why(labctl: Labctl, results: Path) -> None:
    run = _traced(results, "r2")
    run.trial(3).write_raw_json(files.PROBLEMS, {"host_trace": "perf is not installed."})
    said = labctl("timeline", "r2")
    assert "could be traced. the host's side: perf is not installed." in said.out


def test_a_page_that_can_not_be_written_can_go_elsewhere(
    labctl: Labctl, results: Path, read: list[TrialFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes, *, below: Path) -> None:
        raise HostError(f"cannot write {path}: Permission denied")

    monkeypatch.setattr("labctl.store.jsonfile.write_bytes", refuse)
    said = labctl("timeline", "r1", "2")
    assert said.code == 3
    assert "-o FILE" in said.err


def test_a_trial_without_a_trace_says_how_to_record_one(labctl: Labctl, results: Path) -> None:
    said = labctl("timeline", "r1", "3")
    assert said.code == 2
    assert "trial 3 of r1 has no trace" in said.err
    assert "--collect trace" in said.err


def test_a_trial_whose_recorder_failed_says_why(labctl: Labctl, results: Path) -> None:
    trial = RunFolder(results / "r1").trial(3)
    trial.write_raw_json(files.PROBLEMS, {"host_trace": "perf is too old"})
    said = labctl("timeline", "r1", "3")
    assert said.code == 2
    assert "the host's side: perf is too old" in said.err


def test_that_exits_were_not_counted_is_no_reason_for_a_missing_trace(
    labctl: Labctl, results: Path
) -> None:
    trial = RunFolder(results / "r1").trial(3)
    trial.write_raw_json(files.PROBLEMS, {"exits": "emulated: no VM exits."})
    said = labctl("timeline", "r1", "3")
    assert "emulated" not in said.err
    assert "--collect trace" in said.err


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("99", "r1 has no trial 99"),
        ("2.2", "has 1 attempt, but no attempt 2"),
        ("two", "'two' is not a trial"),
        ("2.0", "'2.0' is not a trial"),
    ],
)
def test_a_trial_that_is_not_there_is_refused(
    labctl: Labctl, results: Path, name: str, told: str
) -> None:
    said = labctl("timeline", "r1", name)
    assert said.code == 2
    assert told in said.err


def test_a_trial_that_was_cut_off_says_how_to_make_it_again(labctl: Labctl, results: Path) -> None:
    (RunFolder(results / "r1").trial(2).path / "trial.json").unlink()
    said = labctl("timeline", "r1", "2")
    assert said.code == 2
    assert "trial 2 of r1 was not finished" in said.err
    assert "labctl sweep --resume r1" in said.err


def test_the_range_of_trials_is_named(labctl: Labctl, results: Path) -> None:
    last = max(int(path.name) for path in (results / "r1" / "trials").iterdir())
    assert f"Its trials: 1 to {last}." in labctl("timeline", "r1", "99").err


def test_the_last_attempt_is_meant_unless_one_is_named(
    labctl: Labctl, results: Path, read: list[TrialFolder]
) -> None:
    run = RunFolder(results / "r1")
    again = run.trial(2, 2)
    record = run.trial(2).read_record()
    again.path.mkdir()
    again.write_record(record)
    again.write_raw(files.HOST, b"PERFILE2")
    for name, folder in (("2", again), ("0002", again), ("2.2", again), ("2.1", run.trial(2))):
        assert labctl("timeline", "r1", name).code == 0
        assert read.pop() == folder
    assert (results / "r1" / "timeline-0002.2.html").is_file()


def test_a_folder_that_is_not_there_is_refused_before_anything_is_read(
    labctl: Labctl, results: Path, read: list[TrialFolder], tmp_path: Path
) -> None:
    for option in ("-o", "--trace-dat"):
        said = labctl("timeline", "r1", "2", option, str(tmp_path / "none" / "t"))
        assert said.code == 2
        assert "there is no folder" in said.err
    assert read == []


def test_files_without_a_trial_are_refused(labctl: Labctl, results: Path, tmp_path: Path) -> None:
    for option in ("--perfetto", "--trace-dat"):
        said = labctl("timeline", "r1", option, str(tmp_path / "t"))
        assert said.code == 2
        assert "missing argument TRIAL. Run without other options to list" in said.err


def test_a_trace_that_no_reader_can_read_is_refused_with_its_name(
    labctl: Labctl, results: Path
) -> None:
    said = labctl("timeline", "r1", "2")
    assert said.code == 2
    assert "trial 0002 has no trace to show" in said.err
    assert "host.perf.data" in said.err
    assert not list((results / "r1").glob("timeline*"))
