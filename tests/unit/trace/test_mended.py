"""Switches away from idle CPUs that a trace lacks."""

from __future__ import annotations

from labctl.trace.mended import mended
from labctl.trace.model import Trace
from labctl.trace.tracepoints import SWITCH
from tests.unit.trace.recorded import RUNNABLE, SLEEPING, Recorded

THREAD, OTHER = 100, 200


def switches(trace: Trace) -> list[tuple[float, int, int, int]]:
    """(when, in microseconds, CPU, who left, who came)"""
    events = trace.events[SWITCH]
    columns = (events.cpu, events.fields["prev_pid"], events.fields["next_pid"])
    times = (events.time_ns / 1000).tolist()
    return list(zip(times, *(column.tolist() for column in columns), strict=True))


def idle_then(woken_us: float | None, *, state: int = SLEEPING) -> Recorded:
    """THREAD leaves CPU 1 at 10 and again at 50, and was never seen to come between the two."""
    trace = Recorded(100)
    trace.switch(10, 1, THREAD, 0, state)
    if woken_us is not None:
        trace.wake(woken_us, 0, THREAD, to=1)
    trace.switch(50, 1, THREAD, 0, SLEEPING)
    return trace


def test_who_left_a_cpu_that_had_gone_idle_came_when_it_was_woken() -> None:
    trace, count = mended(idle_then(30).trace())
    assert count == 1
    assert switches(trace) == [(10, 1, THREAD, 0), (30, 1, 0, THREAD), (50, 1, THREAD, 0)]


def test_or_when_the_cpu_went_idle_if_that_was_later() -> None:
    recorded = Recorded(100)
    recorded.switch(10, 0, THREAD, 0)
    recorded.wake(20, 0, THREAD, to=1)
    recorded.switch(25, 1, OTHER, 0)
    recorded.switch(50, 1, THREAD, 0)
    trace, _ = mended(recorded.trace())
    assert (25, 1, 0, THREAD) in switches(trace)


def test_a_wake_up_that_was_only_asked_for_is_one() -> None:
    recorded = idle_then(None)
    recorded.add("sched:sched_waking", 30, 0, OTHER, pid=THREAD, target_cpu=1)
    trace, count = mended(recorded.trace())
    assert count == 1
    assert (30, 1, 0, THREAD) in switches(trace)


def test_where_nobody_woke_it_nothing_is_put() -> None:
    trace, count = mended(idle_then(None, state=RUNNABLE).trace())
    assert (len(switches(trace)), count) == (2, 0)


def test_where_events_were_lost_nothing_is_put() -> None:
    recorded = idle_then(30)
    recorded.lose(35, 40, cpu=1)
    assert mended(recorded.trace())[1] == 0


def test_whole_traces_and_empty_ones_stay_as_they_are() -> None:
    recorded = idle_then(30)
    recorded.switch(33, 1, 0, THREAD)
    assert mended(recorded.trace())[1] == 0
    assert mended(Recorded(100).trace())[1] == 0


def test_who_came_from_another_thread_is_not_guessed() -> None:
    recorded = Recorded(100)
    recorded.switch(10, 1, THREAD, OTHER)
    recorded.wake(30, 0, THREAD, to=1)
    recorded.switch(50, 1, THREAD, 0)
    assert mended(recorded.trace())[1] == 0
