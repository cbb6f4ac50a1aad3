"""A kernel whose idle task of a CPU is never told of as the one that a switch is away from."""

from __future__ import annotations

from labctl.trace.model import Trace
from labctl.trace.sched import ThreadSchedule, schedule
from tests.unit.trace.schedules import PREEMPTED, RUNNABLE, SLEEPS, Switch, Wakeup, trace

VCPU, HOG, DAEMON = 100, 200, 300


def of(made: Trace, tid: int = VCPU) -> ThreadSchedule:
    return schedule(made).threads[tid]


def sleeping_and_running(*, wakeups: list[Wakeup], wakings: list[Wakeup]) -> Trace:
    """It sleeps from 10, and its CPU goes idle; it runs until 90; the switch to it is missing."""
    switches: list[Switch] = [
        (10, 1, VCPU, SLEEPS, 0),
        (90, 1, VCPU, PREEMPTED, HOG),
        (120, 1, HOG, SLEEPS, VCPU),
    ]
    return trace(switches, wakeups, wakings=wakings, end_ns=200)


def test_who_is_woken_on_an_idle_cpu_runs_from_then_on() -> None:
    found = of(sleeping_and_running(wakeups=[(40, VCPU, 1)], wakings=[(39, VCPU, 1)]))
    assert found.on_cpu_ns == 10 + 50 + 80
    assert found.delays.length_ns.tolist() == [30]
    assert (found.taken_up, found.unknown) == (1, 0)


def test_a_wake_up_that_the_idle_cpu_did_itself_is_found_by_who_asked_for_it() -> None:
    found = of(sleeping_and_running(wakeups=[], wakings=[(39, VCPU, 1)]))
    assert found.on_cpu_ns == 10 + 51 + 80
    assert (found.taken_up, found.unknown) == (1, 0)


def test_a_wake_up_asked_for_on_the_way_to_sleep_takes_effect_with_the_sleep() -> None:
    found = of(sleeping_and_running(wakeups=[], wakings=[(8, VCPU, 1), (88, VCPU, 1)]))
    assert found.on_cpu_ns == 10 + 80 + 80
    assert (found.taken_up, found.unknown) == (1, 0)


def test_one_that_nothing_tells_of_is_unknown() -> None:
    found = of(sleeping_and_running(wakeups=[], wakings=[]))
    assert (found.taken_up, found.unknown, found.unknown_ns) == (0, 1, 80)
    assert found.on_cpu_ns == 10 + 80


def test_each_request_wakes_once_however_short_the_runs_are() -> None:
    made = trace(
        [
            (10, 1, VCPU, SLEEPS, 0),
            (60, 1, VCPU, SLEEPS, 0),
            (110, 1, VCPU, SLEEPS, 0),
            (160, 1, VCPU, SLEEPS, 0),
        ],
        # The second was told of: the switch alone is missing there.
        [(107, VCPU, 1)],
        wakings=[(55, VCPU, 1), (105, VCPU, 1), (157, VCPU, 1)],
        end_ns=200,
    )
    found = of(made)
    assert found.on_cpu_ns == 10 + 5 + 3 + 3
    assert (found.taken_up, found.unknown) == (3, 0)


def test_a_request_that_a_seen_run_has_answered_wakes_no_later_one() -> None:
    made = trace(
        [
            (10, 0, HOG, SLEEPS, VCPU),
            (12, 0, VCPU, SLEEPS, HOG),
            (90, 1, VCPU, SLEEPS, 0),
            (3, 1, HOG, SLEEPS, 0),
        ],
        wakings=[(5, VCPU, 0), (70, VCPU, 1)],
        end_ns=100,
    )
    found = of(made)
    assert found.on_cpu_ns == 2 + 20
    assert found.taken_up == 1


def test_who_waits_for_such_a_cpu_waits_for_the_one_that_took_it_up() -> None:
    made = trace(
        [(5, 1, DAEMON, SLEEPS, 0), (60, 1, VCPU, PREEMPTED, HOG), (70, 1, HOG, SLEEPS, VCPU)],
        [(20, VCPU, 1), (30, HOG, 1)],
        end_ns=100,
    )
    assert of(made, HOG).rivals_ns == {VCPU: 30}


def test_a_thread_that_is_never_seen_to_leave_makes_those_after_it_unknown() -> None:
    made = trace(
        [
            (10, 1, VCPU, PREEMPTED, DAEMON),
            (50, 1, VCPU, PREEMPTED, HOG),
            (80, 1, HOG, SLEEPS, VCPU),
        ],
        [(20, HOG, 1)],
        end_ns=100,
    )
    vcpu, daemon, hog = (of(made, tid) for tid in (VCPU, DAEMON, HOG))
    assert (vcpu.unknown, vcpu.unknown_ns) == (1, 40)
    assert vcpu.delays.length_ns.tolist() == [30]
    # It is the last that its CPU is seen to go to no longer.
    assert daemon.on_cpu_ns == 0
    assert hog.rivals_ns == {-1: 30}


def test_who_follows_such_a_thread_runs_from_the_first_event_that_shows_it() -> None:
    made = trace(
        [(10, 1, VCPU, PREEMPTED, DAEMON), (90, 1, VCPU, SLEEPS, 0)],
        # Of the first two one is on another CPU, and one is of another thread.
        by=[(12, VCPU, 0), (14, HOG, 1), (15, VCPU, 1), (70, VCPU, 1)],
        end_ns=100,
    )
    found = of(made)
    assert found.on_cpu_ns == 10 + 75
    assert (found.unknown, found.unknown_ns) == (1, 5)


def test_a_thread_that_runs_to_the_end_has_its_time() -> None:
    made = trace([(10, 1, VCPU, RUNNABLE, HOG)], end_ns=100)
    assert of(made, HOG).on_cpu_ns == 90
