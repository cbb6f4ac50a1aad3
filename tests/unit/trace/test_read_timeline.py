"""A time line made of the files of a trial."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus
from labctl.trace import files
from labctl.trace.model import Trace
from labctl.trace.perf.perfdata import read_trace
from labctl.trace.timeline import recordings
from labctl.trace.timeline.lanes import State
from labctl.trace.timeline.nested import read_timeline, timeline_of_files
from labctl.trace.timeline.recordings import Traces
from tests.unit.trace.recorded import spans

RECORDED = Path(__file__).parent / "fixtures" / "sched-perf-6.1.data"
SWITCH = "sched:sched_switch"


COLLECTED = Path(__file__).parents[1] / "collect" / "fixtures"
HOG = COLLECTED / "hog-perf-6.1.data"
"""A FIFO thread takes 20 ms of every 100 ms from a thread that takes all it gets."""
HOG_THREADS = COLLECTED / "hog-linux-6.18.json"


@pytest.fixture
def trial(tmp_path: Path) -> TrialFolder:
    """Of a guest whose vCPU is the busiest thread of a recorded trace."""
    trace = read_trace(RECORDED, {SWITCH: ("prev_pid",)})
    pids = trace.events[SWITCH].fields["prev_pid"].tolist()
    busiest = max({pid for pid in pids if pid}, key=pids.count)
    folder = TrialFolder(tmp_path / "0001")
    (folder.path / files.HOST).parent.mkdir(parents=True)
    shutil.copy(RECORDED, folder.path / files.HOST)
    thread = {"tid": busiest, "pid": busiest, "role": "vcpu", "index": 0, "name": "CPU 0/TCG"}
    folder.write_raw_json(files.THREADS, [thread])
    write_counts(folder, end_ns=10**9)
    folder.write_record(
        TrialRecord(
            number=1,
            attempt=1,
            block=1,
            boot=1,
            position=1,
            cell={},
            status=TrialStatus.DONE,
            parsed_with={"program": "cyclictest", "kind": "guest", "accelerator": "tcg"},
        )
    )
    return folder


def write_counts(folder: TrialFolder, **changes: Any) -> None:
    counts = {"pid": 7, "duration_s": 0.5, "after": {"monotonic_ns": changes.pop("end_ns")}}
    folder.write_raw_json("runner.json", {**counts, **changes})


def test_a_recorded_trace_fills_its_vcpus_lane(trial: TrialFolder) -> None:
    timeline = read_timeline(trial)
    (lane,) = timeline.lanes
    states = set(lane.state.tolist())
    assert {list(State).index(State.GUEST), list(State).index(State.HALTED)} <= states
    assert int((lane.end_ns - lane.start_ns).sum()) == timeline.end_ns - timeline.start_ns
    assert any("its clock was not read" in text or "not read" in text for text in timeline.problems)


def test_a_recorded_hog_is_found_with_its_times(trial: TrialFolder) -> None:
    shutil.copy(HOG, trial.path / files.HOST)
    (thread,) = json.loads(HOG_THREADS.read_text())["before"]["threads"]
    trial.write_raw_json(files.THREADS, [{**thread, "name": thread["comm"]}])
    (lane,) = read_timeline(trial).lanes
    found = [
        (start, end)
        for start, end, state, detail in spans(lane)
        if (state, detail) == ("PREEMPTED", "sched-hog")
    ]
    assert len(found) >= 9
    assert all(end - start == pytest.approx(20_000, rel=0.01) for start, end in found)
    pauses = [then[0] - one[0] for one, then in itertools.pairwise(found)]
    assert pauses == [pytest.approx(100_000, rel=0.01)] * len(pauses)


def test_what_recorders_said_is_among_the_problems(trial: TrialFolder) -> None:
    trial.write_raw_json(files.PROBLEMS, {"guest_trace": "the guest has no perf"})
    assert read_timeline(trial).problems[0] == "the guest has no perf."


@pytest.mark.parametrize("content", [b"", b"PERFILE2", b"\0" * 4096])
def test_a_guests_file_that_is_no_trace_is_a_problem(trial: TrialFolder, content: bytes) -> None:
    (trial.path / files.GUEST).write_bytes(content)
    timeline = read_timeline(trial)
    assert any(files.GUEST in problem for problem in timeline.problems)
    assert timeline.lanes


def test_a_trial_without_a_trace_is_refused_with_what_was_said(trial: TrialFolder) -> None:
    (trial.path / files.HOST).unlink()
    trial.write_raw_json(files.PROBLEMS, {"host_trace": "perf is not installed"})
    with pytest.raises(UsageError, match="perf is not installed") as raised:
        read_timeline(trial)
    assert "labctl timeline RUN" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (files.THREADS, [{"tid": 1}]),
        (files.THREADS, {"tid": 1}),
        ("runner.json", {"pid": 7}),
        ("runner.json", {"pid": 7, "duration_s": 1, "after": {"monotonic_ns": 10**30}}),
        ("runner.json", {"pid": 7, "duration_s": float("inf"), "after": {"monotonic_ns": 1}}),
        ("runner.json", {"pid": 7, "duration_s": -1, "after": {"monotonic_ns": 1}}),
    ],
)
def test_files_of_labctls_own_that_are_not_whole_are_named(
    trial: TrialFolder, name: str, content: object
) -> None:
    (trial.path / name).write_text(json.dumps(content))
    with pytest.raises(BrokenError, match=name):
        read_timeline(trial)


def test_whoever_asks_for_a_trials_trace_it_is_read_once(
    trial: TrialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(path: Path, wanted: Mapping[str, Sequence[str]]) -> Trace:
        read.append(path)
        return read_trace(path, wanted)

    monkeypatch.setattr(recordings, "read_trace", counted)
    traces = Traces(trial)
    assert isinstance(traces.host, Trace)
    assert timeline_of_files(traces, "cyclictest").lanes
    assert traces.guest is None
    assert read == [trial.path / files.HOST]
