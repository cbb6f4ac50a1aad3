"""The host's scheduler events of a trial; the recording is of a thread that computes on a CPU from
which a FIFO hog takes it for 20 ms every 100 ms, for a second."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.traces import host_trace, waiting
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.files import HOST_TRACE, note_problem
from labctl.trace.model import Gap, Trace
from labctl.trace.timeline.recordings import Traces
from tests.unit.collect.trials import FIXTURES, reasons, values
from tests.unit.trace.schedules import PREEMPTED, SLEEPS, Switch, trace

RECORDING = FIXTURES / "hog-perf-6.1.data"
HOST = "hog-linux-6.18.json"
VCPU = 29732
MS = 1_000_000
START = 1000 * MS


def recorded(folder: Path, data: bytes | None = None) -> TrialFolder:
    raw = TrialFolder(folder)
    raw.write_raw(files.HOST, RECORDING.read_bytes() if data is None else data)
    raw.write_raw("host.json", (FIXTURES / HOST).read_text())
    thread = {"tid": VCPU, "pid": VCPU, "role": "vcpu", "index": 0, "name": "CPU 0/KVM"}
    raw.write_raw_json(files.THREADS, [thread])
    return raw


def read(raw: TrialFolder) -> tuple[dict[str, float], dict[str, str]]:
    found: list[Reading] = list(host_trace.parse(Traces(raw)))
    return values(found), reasons(found)


def test_a_recorded_hog_is_found_with_its_share(tmp_path: Path) -> None:
    found, missing = read(recorded(tmp_path))
    assert found["preempted_time{by=sched-hog,of=vcpu}"] == pytest.approx(0.2, abs=0.001)
    assert found["sched_delay_max{vcpu=0}"] == pytest.approx(0.02, abs=0.001)
    assert found["lost_events"] == 0
    assert found["sched_unknown{of=vcpu}"] == 0
    assert found["migrations{of=vcpu}"] == 0
    assert found["sched_delays{vcpu=0}"] == 35
    assert "there were 35 waits" in missing["sched_delay_p50{vcpu=0}"]


def test_a_recordings_run_delay_and_cpu_time_are_schedstats(tmp_path: Path) -> None:
    found, _ = read(recorded(tmp_path))
    host = json.loads((FIXTURES / HOST).read_text())
    rows = [host[when]["threads"][0]["schedstat"].split() for when in ("before", "after")]
    seconds = (host["after"]["monotonic_ns"] - host["before"]["monotonic_ns"]) / 1e9
    ran, waited = ((int(rows[1][n]) - int(rows[0][n])) / 1e9 / seconds for n in (0, 1))
    assert found["sched_delay{of=vcpu}"] == pytest.approx(waited, rel=0.01)
    assert found["cpu_time{thread=vcpu}"] == pytest.approx(ran, rel=0.01)


def test_a_trial_that_was_not_traced_says_nothing_of_it(tmp_path: Path) -> None:
    raw = TrialFolder(tmp_path)
    raw.write_raw("host.json", (FIXTURES / HOST).read_text())
    assert list(host_trace.parse(Traces(raw))) == []


def test_what_perf_could_not_do_is_the_reason_of_every_metric(tmp_path: Path) -> None:
    raw = recorded(tmp_path)
    note_problem(raw, HOST_TRACE, "perf can't record: no permission.")
    found, missing = read(raw)
    assert found == {}
    assert set(missing.values()) == {"perf can't record: no permission."}
    assert {"sched_delay_p99{vcpu=0}", "preempted_time{of=vcpu}", "lost_events"} < set(missing)


@pytest.mark.parametrize("data", [b"", b"PERFILE2", b"garbage" * 99, RECORDING.read_bytes()[:9000]])
def test_a_file_that_is_not_whole_makes_metrics_unavailable(tmp_path: Path, data: bytes) -> None:
    found, missing = read(recorded(tmp_path, data))
    assert found == {}
    assert "sched_delay{of=vcpu}" in missing
    assert all(files.HOST in reason for reason in missing.values())
    assert not any(str(tmp_path) in reason for reason in missing.values())


@pytest.mark.parametrize("text", ["{", '[{"tid": 1}]', "3", '[{"tid": "x", "role": 1}]'])
def test_threads_that_were_not_written_by_labctl_are_refused(tmp_path: Path, text: str) -> None:
    raw = recorded(tmp_path)
    raw.write_raw(files.THREADS, text)
    with pytest.raises(BrokenError, match=r"threads\.json"):
        list(host_trace.parse(Traces(raw)))


def made_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, made: Trace, kind: str, *threads: tuple[int, str]
) -> TrialFolder:
    """A trial whose trace is that one, its measured window the second from START on."""
    raw = recorded(folder)
    host = json.loads((FIXTURES / HOST).read_text())
    host["kind"] = kind
    host["before"]["monotonic_ns"], host["after"]["monotonic_ns"] = START, START + 1000 * MS
    raw.write_raw_json("host.json", host)
    rows = [
        {"tid": tid, "pid": tid, "role": role, "index": index, "name": ""}
        for index, (tid, role) in enumerate(threads)
    ]
    raw.write_raw_json(files.THREADS, rows)
    monkeypatch.setattr(Traces, "host", made)
    return raw


def turns(*, names: dict[int, str] | None = None, gaps: tuple[Gap, ...] = ()) -> Trace:
    """Thread 10 runs on CPU 0 for 9 ms of 10, then 11 to 17 for 1 ms, each in its turn; 10 began
    11, and 11 began 12."""
    switches: list[Switch] = []
    wakeups = []
    for number in range(101):
        at, other = START + number * 10 * MS, 11 + number % 7
        wakeups.append((at - MS - 1000, other, 0))
        switches.append((at - MS, 0, 10, PREEMPTED, other))
        switches.append((at, 0, other, SLEEPS, 10))
    return trace(
        switches,
        wakeups,
        forks=[(START, 10, 11), (START + 1, 11, 12), (START + 2, 99, 13)],
        end_ns=START + 1000 * MS,
        names=names,
        gaps=gaps,
    )


def test_all_who_took_a_vcpus_cpu_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {11: "kworker/0:2-events", 12: "a b,c=d}", 13: "", 15: "y", 16: "z", 17: "kworker/1:1"}
    threads = ((10, "vcpu"), (14, "iothread"))
    raw = made_up(tmp_path, monkeypatch, turns(names=names), "guest", *threads)
    found, _ = read(raw)
    by = {key: value for key, value in found.items() if key.startswith("preempted_time")}
    assert len(by) == 6
    assert max(by, key=by.__getitem__) == "preempted_time{by=kworker,of=vcpu}"
    assert {"kworker", "unknown", "iothread", "a_b_c_d_", "y", "z"} == {
        key.removeprefix("preempted_time{by=").removesuffix(",of=vcpu}") for key in by
    }
    assert sum(by.values()) == pytest.approx(0.1)
    assert found["sched_delay{of=vcpu}"] == pytest.approx(0.1)
    assert found["preemptions{of=vcpu}"] == 100
    assert found["cpu_time{thread=vcpu}"] == pytest.approx(0.9)
    assert found["cpu_time{thread=iothread}"] == pytest.approx(0.014, abs=0.002)


def test_natively_the_workload_is_all_that_its_process_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = made_up(tmp_path, monkeypatch, turns(), "native", (10, "workload"))
    found, missing = read(raw)
    assert found["cpu_time{thread=workload}"] == pytest.approx(0.9 + 0.029, abs=0.002)
    assert found["sched_delay_p50{of=workload}"] == pytest.approx(0.001)
    assert "needs 2,000" in missing["sched_delay_p99{of=workload}"]
    assert not any("vcpu" in key for key in {**found, **missing})


@pytest.mark.parametrize(("length_ms", "unknown"), [(5, 0.009), (35, 0.039), (65, None)])
def test_with_more_than_a_twentieth_of_the_time_unknown_there_are_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length_ms: int, unknown: float | None
) -> None:
    begin = START + 500 * MS + MS
    gap = Gap(cpu=0, start_ns=begin, end_ns=begin + length_ms * MS, count=1234)
    raw = made_up(tmp_path, monkeypatch, turns(gaps=(gap,)), "guest", (10, "vcpu"))
    found, missing = read(raw)
    assert found["lost_events"] == 1234
    if unknown is not None:
        assert found["sched_unknown{of=vcpu}"] == pytest.approx(unknown, abs=0.001)
        assert found["sched_delay{of=vcpu}"] > 0
    else:
        assert "sched_delay{of=vcpu}" not in found
        assert "perf lost 1,234 events" in missing["preempted_time{of=vcpu}"]
        assert "perf lost 1,234 events" in missing["cpu_time{thread=vcpu}"]


def test_of_waits_of_which_many_were_not_seen_there_is_no_percentile_and_no_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short sleeps that an idle CPU ended: little of the time, and half of the waits."""
    for hidden, is_told in ((100, False), (1, True), (0, True)):
        made = turns()
        more: list[Switch] = []
        for number in range(hidden):
            at = START + number * 10 * MS + 5 * MS
            more += [(at, 0, 10, SLEEPS, 0), (at + MS // 10, 0, 0, 0, 10)]
        raw = made_up(tmp_path, monkeypatch, with_switches(made, more), "guest", (10, "vcpu"))
        found, missing = read(raw)
        assert found["sched_delays{vcpu=0}"] == 100
        assert found["sched_delays_unseen{vcpu=0}"] == hidden
        assert found["sched_delay{of=vcpu}"] == pytest.approx(0.1)
        assert ("sched_delay_p50{vcpu=0}" in found) == is_told
        assert ("sched_delay_max{vcpu=0}" in found) == (hidden == 0)
        if hidden:
            assert f"{hidden} of {100 + hidden} waits" in missing["sched_delay_max{vcpu=0}"]


def with_switches(made: Trace, more: list[Switch]) -> Trace:
    events = made.events["sched:sched_switch"]
    fields = ("prev_pid", "prev_state", "next_pid")
    columns = (events.time_ns, events.cpu, *(events.fields[name] for name in fields))
    rows = [*zip(*(column.tolist() for column in columns), strict=True), *more]
    switched = trace(rows, end_ns=made.end_ns).events["sched:sched_switch"]
    return replace(made, events={**made.events, "sched:sched_switch": switched})


def test_a_vcpu_without_a_switch_is_not_taken_for_one_that_slept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = ((10, "vcpu"), (77, "vcpu"), (78, "vhost"))
    found, missing = read(made_up(tmp_path, monkeypatch, turns(), "guest", *threads))
    assert "no switch of vcpu 1" in missing["sched_delay{of=vcpu}"]
    assert "cpu_time{thread=vhost}" in missing
    assert "no switch of vcpu 1" in missing["cpu_time{thread=vcpu}"]
    assert "sched_delay_max{vcpu=0}" not in found


def test_a_thread_that_is_called_as_we_call_the_rest_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {tid: f"t{tid}" for tid in range(11, 18)} | {11: "others", 12: "vcpu"}
    raw = made_up(tmp_path, monkeypatch, turns(names=names), "guest", (10, "vcpu"))
    by = [one.key for one in host_trace.parse(Traces(raw)) if one.metric == "preempted_time"]
    assert len(by) == len(set(by))
    assert {
        "preempted_time{by=thread:others,of=vcpu}",
        "preempted_time{by=thread:vcpu,of=vcpu}",
    } < {*by}


def test_of_more_names_than_a_trial_tells_the_least_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_MOST_RIVALS", 3)
    names = {tid: f"t{tid}" for tid in range(11, 18)}
    found, _ = read(made_up(tmp_path, monkeypatch, turns(names=names), "guest", (10, "vcpu")))
    by = {key: value for key, value in found.items() if key.startswith("preempted_time")}
    assert len(by) == 4
    assert sum(by.values()) == pytest.approx(0.1)
    assert by["preempted_time{by=others,of=vcpu}"] == max(by.values())
