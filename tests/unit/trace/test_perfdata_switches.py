"""Switches that a kernel kept from its tracepoint, put back from perf's own records of them.

The recording is of a 6.18 host that keeps back what one CPU's idle task and a few threads do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labctl.base.errors import BrokenError
from labctl.trace.model import FORK, SWITCH, UNTOLD, Events, Trace
from labctl.trace.perf import chain
from labctl.trace.perf.perfdata import read_trace
from labctl.trace.perf.switches import Switches
from tests.unit.trace.perfdata_writer import FIXED, FLAGS, fixed, perfdata, switched
from tests.unit.trace.simulated import Machine, event_sample, sched_perfdata

RECORDED = Path(__file__).parent / "fixtures" / "switches-perf-6.1.data"
FIELDS = ("prev_pid", "prev_state", "next_pid")

A, B, C, D, IDLE = 10, 20, 30, 40, 0
Switched = tuple[int, int, int, int, int]
"""Time, CPU, prev_pid, prev_state, next_pid."""


def contradictions(events: Events) -> int:
    """How often a CPU is left by another thread than the one that it went to."""
    found = 0
    for cpu in np.unique(events.cpu):
        own = events.cpu == cpu
        left, came = events.fields["prev_pid"][own], events.fields["next_pid"][own]
        found += int(np.count_nonzero(left[1:] != came[:-1]))
    return found


@pytest.fixture
def completed(tmp_path: Path) -> Callable[..., list[Switched]]:
    """Read what CPUs wrote in this order, in a trace from 0 to 1000 ns."""

    def read(*stream: Switched | bytes, chunk_bytes: int = chain.CHUNK_BYTES) -> list[Switched]:
        path = tmp_path / "perf.data"
        path.write_bytes(
            sched_perfdata(
                [
                    event_sample(FORK, 0, 9, 1, (1, 2)),
                    *(one if isinstance(one, bytes) else event(one) for one in stream),
                    event_sample(FORK, 1000, 9, 1, (1, 2)),
                ]
            )
        )
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(chain, "CHUNK_BYTES", chunk_bytes)
            found = read_trace(path, {SWITCH: FIELDS}).events[SWITCH]
        columns = (found.time_ns, found.cpu, *(found.fields[name] for name in FIELDS))
        return list(zip(*(column.tolist() for column in columns), strict=True))

    return read


def event(told: Switched) -> bytes:
    time_ns, cpu, left, state, came = told
    return event_sample(SWITCH, time_ns, cpu, left, (left, state, came))


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


Completed = Callable[..., list[Switched]]


def test_a_switch_that_both_tell_of_is_there_once(completed: Completed) -> None:
    told = (10, 0, A, 1, IDLE)
    assert completed(told, out(11, A, IDLE), come(12, A, IDLE)) == [told]


def test_one_that_the_thread_itself_is_silent_of_is_told_by_the_next(completed: Completed) -> None:
    first, last = (10, 0, A, 1, IDLE), (50, 0, B, 1, IDLE)
    stream = (first, out(11, A, IDLE), come(30, IDLE, B), last, out(51, B, IDLE))
    assert completed(*stream) == [first, (30, 0, IDLE, UNTOLD, B), last]


def test_where_only_the_tracepoint_is_silent_its_state_is_known_and_it_is_put_once(
    completed: Completed,
) -> None:
    told = (10, 0, A, 1, IDLE)
    records = (out(30, B, A, runnable=True), come(31, B, A), out(40, A, B), come(41, A, B))
    assert completed(told, *records)[1:] == [(30, 0, B, 0, A), (40, 0, A, 1, B)]


def test_the_same_switch_of_another_cpu_is_another_one(completed: Completed) -> None:
    told = ((10, 0, A, 1, IDLE), (15, 1, B, 1, IDLE))
    assert completed(*told, come(20, A, IDLE, cpu=1)) == [*told, (20, 1, A, UNTOLD, IDLE)]


def test_an_event_tells_of_one_switch_and_not_of_the_same_later_one(completed: Completed) -> None:
    told = (10, 0, A, 1, B)
    stream = (told, out(11, A, B), come(20, B, A), come(30, A, B))
    assert completed(*stream) == [told, (20, 0, B, UNTOLD, A), (30, 0, A, UNTOLD, B)]


def test_by_a_clock_so_coarse_that_all_happens_at_once_nothing_is_told_twice(
    completed: Completed,
) -> None:
    first, last = (10, 0, A, 1, B), (10, 0, B, 1, IDLE)
    stream = (first, out(10, A, B), come(10, A, B), last, out(10, B, IDLE), come(10, B, IDLE))
    assert completed(*stream) == [first, last]


def test_several_at_once_are_in_the_order_of_their_cpu(completed: Completed) -> None:
    first, last = (10, 0, C, 1, A), (50, 0, D, 1, IDLE)
    stream = (first, come(50, A, B), come(50, B, C), come(50, C, D), last)
    put = [(50, 0, A, UNTOLD, B), (50, 0, B, UNTOLD, C), (50, 0, C, UNTOLD, D)]
    assert completed(*stream) == [first, *put, last]


def test_one_that_presupposes_an_event_of_its_time_comes_after_that(completed: Completed) -> None:
    told = ((10, 0, C, 1, A), (50, 0, A, 1, B), (60, 0, C, 1, A))
    put = (50, 0, B, UNTOLD, C)
    assert completed(*told[:2], come(50, B, C), told[2]) == [*told[:2], put, told[2]]


def test_what_one_cpu_told_is_nothing_of_the_next_ones(completed: Completed) -> None:
    first, last = (10, 0, A, 1, B), (40, 1, B, 1, A)
    put = [(30, 1, A, 1, B), (50, 1, A, 1, B)]
    stream = (first, out(30, A, B, cpu=1), last, out(50, A, B, cpu=1))
    assert completed(*stream) == [first, put[0], last, put[1]]


def test_of_a_cpu_that_was_not_to_be_recorded_nothing_is_put(completed: Completed) -> None:
    told = (10, 0, A, 1, IDLE)
    assert completed(told, come(20, A, B, cpu=3)) == [told]


def test_what_lies_outside_of_the_trace_or_is_of_the_dead_is_left_out(
    completed: Completed,
) -> None:
    told = (10, 0, A, 1, IDLE)
    assert completed(told, come(20, 0xFFFFFFFF, B), come(2000, IDLE, B)) == [told]


def test_without_records_of_its_own_a_trace_stays_as_it_is(completed: Completed) -> None:
    told = ((10, 0, A, 1, IDLE), (50, 0, B, 1, IDLE))
    assert completed(*told) == [*told]


@pytest.mark.parametrize(
    "wrong", [{"own": 1 << 23}, {"other": 1 << 23}, {"cpu": 1 << 17}, {"time": 1 << 63}]
)
def test_a_record_that_none_can_be_is_named_with_its_place(
    completed: Completed, wrong: dict[str, int]
) -> None:
    record = switched(**{"own": A, "other": B, "time": 1, "cpu": 0} | wrong)
    with pytest.raises(BrokenError, match=r"at byte [\d,]+: no switch is between"):
        completed((10, 0, A, 1, IDLE), record)


@pytest.mark.parametrize("silent", [(), (0,), (0, 102)])
def test_where_chunks_end_makes_no_difference(
    completed: Completed, silent: tuple[int, ...]
) -> None:
    machine = Machine.started(7, cpus=3)
    machine.play(300)
    stream = [one.data for one in machine.told if one.by not in silent]
    whole = completed(*stream)
    for chunk_bytes in (512, 520, 1000, 4096):
        assert completed(*stream, chunk_bytes=chunk_bytes) == whole


@pytest.mark.parametrize("cpus", [1, 2])
def test_where_each_event_has_its_records_a_chunk_tells_the_same_unsearched(
    completed: Completed, monkeypatch: pytest.MonkeyPatch, cpus: int
) -> None:
    machine = Machine.started(5, cpus=cpus)
    machine.play(400)
    # One CPU's buffer after the other, as perf writes them; of a few events there are no others.
    told = sorted(enumerate(machine.told), key=lambda one: (one[1].cpu, one[0]))
    stream = [one.data for at, one in told if not 500 < at < 530 or at % 5]
    seen: list[bool] = []
    are_all_told = Switches._are_all_told

    def noted(self: Switches, *arguments: Any) -> bool:
        seen.append(are_all_told(self, *arguments))
        return seen[-1]

    monkeypatch.setattr(Switches, "_are_all_told", noted)
    sizes = (520, 1000, 2056, 1 << 20)
    found = [completed(*stream, chunk_bytes=size) for size in sizes]
    assert {True, False} <= {*seen}
    monkeypatch.setattr(Switches, "_are_all_told", lambda *_: False)
    assert found == [completed(*stream, chunk_bytes=size) for size in sizes]


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
