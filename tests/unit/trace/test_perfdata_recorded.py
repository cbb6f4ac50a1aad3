"""Files that perf 6.1 and 6.12 recorded, against what `perf script` prints of them.

Each `NAME.data` was scrubbed (`scrub.py`); its `NAME.script` is what the same perf, without
plugins, prints of it with `perf script --ns -F pid,tid,cpu,time,event,trace`. `svm` is of a guest
under kvm_amd, on an emulated host.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labctl.base.errors import BrokenError
from labctl.collect.exits.perf import disagreement, read_reports
from labctl.trace.exit_names import SVM, exit_name
from labctl.trace.model import ENTRY, EXIT, Trace
from labctl.trace.perf import chain
from labctl.trace.perf.perfdata import read_trace, tracepoints
from labctl.trace.sched import schedule
from labctl.trace.vm_exits import seen_by_perf, vm_exits

FIXTURES = Path(__file__).parent / "fixtures"
COLLECTED = Path(__file__).parents[1] / "collect" / "fixtures"
SWITCH, WAKEUP = "sched:sched_switch", "sched:sched_wakeup"
SVM_EVENTS = {
    ENTRY: ("vcpu_id",),
    EXIT: ("exit_reason", "isa"),
    "kvm:kvm_userspace_exit": ("reason", "errno"),
    "kvm:kvm_halt_poll_ns": ("vcpu_id",),
}
WANTED = {
    "sched-perf-6.1": {
        SWITCH: ("prev_pid", "prev_prio", "next_pid", "next_prio"),
        WAKEUP: ("pid", "prio", "target_cpu"),
        "sched:sched_wakeup_new": ("pid", "prio", "target_cpu"),
        "sched:sched_migrate_task": ("pid", "prio", "orig_cpu", "dest_cpu"),
    },
    "sched-perf-6.12": {
        SWITCH: ("prev_pid", "prev_prio", "next_pid", "next_prio"),
        WAKEUP: ("pid", "prio", "target_cpu"),
        "sched:sched_wakeup_new": ("pid", "prio", "target_cpu"),
        "sched:sched_migrate_task": ("pid", "prio", "orig_cpu", "dest_cpu"),
    },
    "lost-perf-6.1": {
        SWITCH: ("prev_pid", "prev_prio", "next_pid", "next_prio"),
        WAKEUP: ("pid", "prio", "target_cpu"),
    },
    "one-event-perf-6.1": {SWITCH: ("prev_pid", "prev_prio", "next_pid", "next_prio")},
    "kvm-perf-6.1": {"kvm:kvm_userspace_exit": ("reason", "errno")},
    "svm-perf-6.1": SVM_EVENTS,
    "svm-perf-6.12": SVM_EVENTS,
}
LINE = re.compile(r"\s*(-?\d+)/(-?\d+)\s+\[(\d+)\]\s+(\d+)\.(\d{9}):\s+(\S+): (.*)")


def path(name: str) -> Path:
    return FIXTURES / f"{name}.data"


def read(name: str) -> Trace:
    return read_trace(path(name), WANTED[name])


def said_by_perf(name: str) -> dict[str, list[dict[str, int | str]]]:
    """Of each event: time, CPU, thread, process, and the fields that are printed as NAME=VALUE."""
    events = defaultdict(list)
    for line in (FIXTURES / f"{name}.script").read_text().splitlines():
        found = LINE.fullmatch(line)
        assert found, line
        pid, tid, cpu, seconds, fraction, event, text = found.groups()
        events[event].append(
            {
                **dict(re.findall(r"(\w+)=(\S+)", text)),
                "time_ns": int(seconds) * 10**9 + int(fraction),
                "cpu": int(cpu),
                "tid": int(tid),
                "process": int(pid),
                "text": text,
            }
        )
    return events


@pytest.mark.parametrize("numbers", ["near each other", "far apart"])
@pytest.mark.parametrize("name", WANTED)
def test_every_event_is_as_perf_prints_it(
    name: str, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if numbers == "far apart":  # for a table of them
        monkeypatch.setattr(chain, "_MOST_PLACES", 0)
    trace, said = read(name), said_by_perf(name)
    assert sum(map(len, said.values())) > 200
    assert set(said) == {event for event, found in trace.events.items() if len(found)}
    for event, rows in said.items():
        events = trace.events[event]
        assert len(events) == len(rows)
        assert events.time_ns.tolist() == [row["time_ns"] for row in rows]
        assert events.cpu.tolist() == [row["cpu"] for row in rows]
        # perf has no number for a thread that dies, but its last switch tells it.
        tids = [row["prev_pid"] if row["tid"] == -1 else row["tid"] for row in rows]
        assert events.tid.tolist() == list(map(int, tids))
        for field, column in events.fields.items():
            if not event.startswith("kvm:"):  # perf prints those as sentences
                assert column.tolist() == [int(row[field]) for row in rows], field


def test_exits_to_qemu_have_the_reasons_that_perf_prints() -> None:
    trace, said = read("kvm-perf-6.1"), said_by_perf("kvm-perf-6.1")
    reasons = trace.events["kvm:kvm_userspace_exit"].fields["reason"].tolist()
    printed = [row["text"] for row in said["kvm:kvm_userspace_exit"]]
    assert [f"({reason})" for reason in reasons] == [str(text).split()[-1] for text in printed]


@pytest.mark.parametrize(("version", "samples"), [("6.1", 850), ("6.12", 885)])
def test_exits_of_a_guest_have_the_reasons_and_the_times_that_perf_tells(
    version: str, samples: int
) -> None:
    trace, said = read(f"svm-perf-{version}"), said_by_perf(f"svm-perf-{version}")
    exits = trace.events[EXIT]
    names = [exit_name(SVM, code) for code in exits.fields["exit_reason"].tolist()]
    assert names == [str(row["text"]).split()[3] for row in said[EXIT]]
    assert set(exits.fields["isa"].tolist()) == {SVM}
    table = COLLECTED / f"perf-kvm-stat-{version}-svm-{samples}-samples.txt"
    (report,) = read_reports(table.read_text(), "")
    assert sum(reason.samples for reason in report.reasons) == samples
    seen = seen_by_perf(trace)
    assert {reason.name: reason.samples for reason in report.reasons} == {
        exit_name(*key): took.ended for key, took in seen.items()
    }
    assert disagreement(report, [(took.ended, took.ns) for took in seen.values()]) is None
    (own,) = vm_exits(trace).values()
    for reason in report.reasons:
        took_ns = (own.entry_ns - own.time_ns)[[name == reason.name for name in names]].tolist()
        took_ns = took_ns[: reason.samples]  # the last exit of all has no end
        assert (reason.min_ns, reason.max_ns, reason.average_ns) == pytest.approx(
            (min(took_ns), max(took_ns), np.mean(took_ns)), abs=6
        )


def test_a_field_of_eight_bytes_is_read_at_its_odd_place() -> None:
    trace = read_trace(path("sched-perf-6.1"), {SWITCH: ("prev_state",)})
    letters = {0: "R", 1: "S", 2: "D", 16: "X", 32: "Z", 128: "I", 256: "R+"}
    printed = [row["prev_state"] for row in said_by_perf("sched-perf-6.1")[SWITCH]]
    states = trace.events[SWITCH].fields["prev_state"].tolist()
    assert [letters[state] for state in states] == printed
    assert len(set(states)) > 2


@pytest.mark.parametrize("name", ["sched-perf-6.1", "lost-perf-6.1", "one-event-perf-6.1"])
def test_threads_have_the_names_that_they_had_last(name: str) -> None:
    names = {0: "swapper"}
    for row in said_by_perf(name)[SWITCH]:
        text = str(row["text"])
        for whose in ("next", "prev"):  # who leaves has its newest name
            comm = re.search(rf"{whose}_comm=(.*?) {whose}_pid", text)
            assert comm
            names[int(row[f"{whose}_pid"])] = comm[1]
    names[0] = "swapper"
    found = read(name).names
    assert {tid: found[tid] for tid in names} == names


def test_threads_are_of_the_processes_that_perf_prints() -> None:
    processes = read("kvm-perf-6.1").processes
    rows = said_by_perf("kvm-perf-6.1")["kvm:kvm_userspace_exit"]
    threads = {int(row["tid"]): int(row["process"]) for row in rows}
    assert any(tid != pid for tid, pid in threads.items())
    assert {tid: processes[tid] for tid in threads} == threads


def test_lost_events_are_counted_as_perf_counts_them() -> None:
    # perf report --stats: LOST_SAMPLES of sched_switch, sched_wakeup and perf's own dummy
    assert read("lost-perf-6.1").lost == 53 + 31 + 118


def test_a_gap_lies_between_neighbouring_events_of_its_cpu() -> None:
    trace = read("lost-perf-6.1")
    rows = [row for found in said_by_perf("lost-perf-6.1").values() for row in found]
    assert {gap.cpu for gap in trace.gaps} == {0, 1}
    for gap in trace.gaps:
        times = sorted(int(row["time_ns"]) for row in rows if row["cpu"] == gap.cpu)
        assert trace.start_ns <= gap.start_ns < gap.end_ns <= trace.end_ns
        assert not [time for time in times if gap.start_ns < time < gap.end_ns]
        assert gap.start_ns in times or gap.start_ns == trace.start_ns
        assert gap.end_ns in times or gap.end_ns == trace.end_ns


def test_a_trace_that_lost_nothing_has_no_gaps() -> None:
    trace = read("sched-perf-6.1")
    assert trace.gaps == ()
    assert trace.problems == ()


def test_a_tracepoint_that_never_fired_has_no_events() -> None:
    trace = read_trace(path("kvm-perf-6.1"), {"kvm:kvm_halt_poll_ns": ("vcpu_id",)})
    events = trace.events["kvm:kvm_halt_poll_ns"]
    assert len(events) == 0
    assert events.fields["vcpu_id"].tolist() == []


def test_a_file_tells_its_tracepoints() -> None:
    assert tracepoints(path("sched-perf-6.1")) == tuple(WANTED["sched-perf-6.1"])
    assert tracepoints(path("one-event-perf-6.1")) == (SWITCH,)


def test_a_tracepoint_that_was_not_to_be_recorded_is_refused() -> None:
    with pytest.raises(BrokenError, match="was recorded without sched:sched_waking") as error:
        read_trace(path("lost-perf-6.1"), {"sched:sched_waking": ("pid",)})
    assert "sched:sched_switch, sched:sched_wakeup" in str(error.value.hint)


@pytest.mark.parametrize(
    ("field", "why"), [("pre_pid", "is no field of"), ("prev_comm", "is no integer of")]
)
def test_a_field_that_cannot_be_read_is_refused_with_those_that_can(field: str, why: str) -> None:
    with pytest.raises(BrokenError, match=f"'{field}' {why} {SWITCH}") as error:
        read_trace(path("lost-perf-6.1"), {SWITCH: (field,)})
    assert "prev_pid, prev_prio, prev_state, next_pid, next_prio" in str(error.value.hint)


def test_a_recording_without_tracepoints_is_refused() -> None:
    with pytest.raises(BrokenError, match="holds no tracepoints") as error:
        tracepoints(path("cpu-clock-perf-6.1"))
    assert "perf record" in str(error.value.hint)


def test_wherever_a_recording_is_cut_it_is_said(tmp_path: Path) -> None:
    whole = path("one-event-perf-6.1").read_bytes()
    cut = tmp_path / "cut"
    for size in (*range(0, 600, 7), *range(600, len(whole), 997), len(whole) - 1):
        cut.write_bytes(whole[:size])
        with pytest.raises(BrokenError, match="empty|cut|PERFILE2") as error:
            read_trace(cut, WANTED["one-event-perf-6.1"])
        assert str(cut) in error.value.message
        assert error.value.hint


def test_a_trace_that_was_not_to_record_switches_tells_of_no_rival() -> None:
    # One changed byte in the name of an event is enough.
    trace = read("sched-perf-6.1")
    busiest = int(trace.events[SWITCH].tid[0])
    events = {name: found for name, found in trace.events.items() if name != SWITCH}
    found = schedule(replace(trace, events=events), [busiest])
    assert all(not thread.preempted_by_ns for thread in found.threads.values())
