"""Switches that a kernel kept from its tracepoint, put back from perf's own records of them.

The recording is of a 6.18 host that keeps back what one CPU's idle task and a few threads do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labctl.base.errors import BrokenError
from labctl.trace.model import Events, Trace
from labctl.trace.perf.chain import Chunk
from labctl.trace.perf.perfdata import read_trace
from labctl.trace.perf.switches import Switches
from labctl.trace.tracepoints import UNTOLD
from tests.unit.trace.perfdata_writer import FIXED, FLAGS, fixed, perfdata, switched

RECORDED = Path(__file__).parent / "fixtures" / "switches-perf-6.1.data"
SWITCH = "sched:sched_switch"
TRAILER = {1 << 16: 1, 128: 2, 4: 3, 2: 4}
"""IDENTIFIER, CPU, TIME, TID: each word's place from the end."""

A, B, C, D, IDLE = 10, 20, 30, 40, 0
Told = tuple[int, int, int, int, int]
"""Time, CPU, prev_pid, prev_state, next_pid."""


def contradictions(events: Events) -> int:
    """How often a CPU is left by another thread than the one that it went to."""
    found = 0
    for cpu in np.unique(events.cpu):
        own = events.cpu == cpu
        left, came = events.fields["prev_pid"][own], events.fields["next_pid"][own]
        found += int(np.count_nonzero(left[1:] != came[:-1]))
    return found


def made(told: list[Told]) -> Events:
    time_ns, cpu, left, state, came = np.array(told, np.int64).reshape(-1, 5).T
    fields = {"prev_pid": left, "prev_state": state, "next_pid": came}
    return Events(
        time_ns=time_ns,
        cpu=cpu.astype(np.int32),
        tid=left.astype(np.int32),
        fields={name: column.astype(np.int32) for name, column in fields.items()},
    )


def completed(told: list[Told], *records: bytes, end_ns: int = 1000) -> list[Told]:
    words = np.frombuffer(b"".join(records), "<u8")
    starts = np.arange(len(records)) * (len(words) // max(1, len(records)))
    none = np.zeros(0, np.int64)
    chunk = Chunk(
        offset=0,
        words=words,
        samples=none,
        ends=none,
        events=none.astype(np.int16),
        switches=starts,
        others=(),
    )
    switches = Switches("made up", TRAILER)
    if records:
        switches.take(chunk)
    found = switches.completed(made(told), 0, end_ns)
    fields = (found.fields[name] for name in ("prev_pid", "prev_state", "next_pid"))
    columns = (found.time_ns, found.cpu, *fields)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def out(time: int, left: int, came: int, *, runnable: bool = False, cpu: int = 0) -> bytes:
    return switched(own=left, other=came, time=time, cpu=cpu, is_out=True, runnable=runnable)


def come(time: int, left: int, came: int, *, cpu: int = 0) -> bytes:
    return switched(own=came, other=left, time=time, cpu=cpu)


def recorded(*fields: str) -> Trace:
    return read_trace(RECORDED, {SWITCH: fields})


def test_a_recording_in_which_switches_are_missing_is_whole() -> None:
    whole = recorded("prev_pid", "prev_state", "next_pid").events[SWITCH]
    told = len(recorded("prev_pid").events[SWITCH])
    assert contradictions(whole) == 0
    assert len(whole) > told
    assert (np.diff(whole.time_ns) >= 0).all()


def test_a_switch_that_both_tell_of_is_there_once() -> None:
    told: list[Told] = [(10, 0, A, 1, IDLE)]
    assert completed(told, out(11, A, IDLE), come(12, A, IDLE)) == told


def test_one_that_the_thread_itself_is_silent_of_is_told_by_the_next() -> None:
    told: list[Told] = [(10, 0, A, 1, IDLE), (50, 0, B, 1, IDLE)]
    records = (out(11, A, IDLE), come(30, IDLE, B), out(51, B, IDLE))
    assert completed(told, *records) == [told[0], (30, 0, IDLE, -1, B), told[1]]


def test_where_only_the_tracepoint_is_silent_its_state_is_known_and_it_is_put_once() -> None:
    told: list[Told] = [(10, 0, A, 1, IDLE)]
    records = (out(30, B, A, runnable=True), come(31, B, A), out(40, A, B), come(41, A, B))
    assert completed(told, *records)[1:] == [(30, 0, B, 0, A), (40, 0, A, 1, B)]


def test_the_same_switch_of_another_cpu_is_another_one() -> None:
    told: list[Told] = [(10, 0, A, 1, IDLE), (15, 1, B, 1, IDLE)]
    assert completed(told, come(20, A, IDLE, cpu=1)) == [*told, (20, 1, A, -1, IDLE)]


def test_an_event_tells_of_one_switch_and_not_of_the_same_later_one() -> None:
    told: list[Told] = [(10, 0, A, 1, B)]
    records = (out(11, A, B), come(20, B, A), come(30, A, B))
    assert completed(told, *records) == [told[0], (20, 0, B, UNTOLD, A), (30, 0, A, UNTOLD, B)]


def test_by_a_clock_so_coarse_that_all_happens_at_once_nothing_is_told_twice() -> None:
    told: list[Told] = [(10, 0, A, 1, B), (10, 0, B, 1, IDLE)]
    records = (out(10, A, B), come(10, A, B), out(10, B, IDLE), come(10, B, IDLE))
    assert completed(told, *records) == told


def test_one_that_an_event_of_its_time_presupposes_comes_before_that() -> None:
    told: list[Told] = [(10, 0, C, 1, A), (50, 0, B, 1, IDLE), (50, 1, A, 1, B)]
    put = (50, 0, A, UNTOLD, B)
    assert completed(told, come(50, A, B)) == [told[0], put, *told[1:]]
    # Several in a row stay in theirs.
    told[1] = (50, 0, D, 1, IDLE)
    records = (come(50, A, B), come(50, B, C), come(50, C, D))
    more = [(50, 0, B, UNTOLD, C), (50, 0, C, UNTOLD, D)]
    assert completed(told, *records) == [told[0], put, *more, *told[1:]]


def test_one_that_presupposes_an_event_of_its_time_comes_after_that() -> None:
    told: list[Told] = [(10, 0, C, 1, A), (50, 0, A, 1, B), (60, 0, C, 1, A)]
    put = (50, 0, B, UNTOLD, C)
    assert completed(told, come(50, B, C)) == [*told[:2], put, told[2]]


def test_what_one_cpu_told_is_nothing_of_the_next_ones() -> None:
    told: list[Told] = [(10, 0, A, 1, B), (40, 1, B, 1, A)]
    records = (out(30, A, B, cpu=1), out(50, A, B, cpu=1))
    assert completed(told, *records) == [told[0], (30, 1, A, 1, B), told[1], (50, 1, A, 1, B)]


def test_of_a_cpu_that_was_not_to_be_recorded_nothing_is_put() -> None:
    told: list[Told] = [(10, 0, A, 1, IDLE)]
    assert completed(told, come(20, A, B, cpu=3)) == told


def test_what_lies_outside_of_the_trace_or_is_of_the_dead_is_left_out() -> None:
    told: list[Told] = [(10, 0, A, 1, IDLE)]
    dead = 0xFFFFFFFF
    assert completed(told, come(20, dead, B), come(2000, IDLE, B)) == told


def test_without_records_of_its_own_a_trace_stays_as_it_is() -> None:
    told: list[Told] = [(10, 0, A, 1, IDLE), (50, 0, B, 1, IDLE)]
    assert completed(told) == told


@pytest.mark.parametrize(
    "wrong", [{"own": 1 << 23}, {"other": 1 << 23}, {"cpu": 1 << 17}, {"time": 1 << 63}]
)
def test_a_record_that_none_can_be_is_named_with_its_place(wrong: dict[str, int]) -> None:
    record = switched(**{"own": A, "other": B, "time": 1, "cpu": 0} | wrong)
    with pytest.raises(BrokenError, match="at byte 0: no switch is between"):
        completed([(10, 0, A, 1, IDLE)], record)


def test_samples_among_such_records_are_all_read(tmp_path: Path) -> None:
    records = []
    for time in range(1, 2000):
        records.append(fixed(tid=A, time=3 * time, cpu=0, pid=time))
        if time % 3:
            records.append(switched(own=A, other=B, time=3 * time + 1, cpu=0))
    path = tmp_path / "perf.data"
    path.write_bytes(perfdata(records, flags=FLAGS | 1 << 26))
    found = read_trace(path, {FIXED: ("pid",)})
    assert found.events[FIXED].fields["pid"].tolist() == list(range(1, 2000))
    assert found.problems == ()
