"""A kernel whose idle task of a CPU tells of no wake-up that it carries out for another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.trace import records
from labctl.trace.model import SWITCH, WAKEUP, WAKEUP_NEW, WAKING, Gap, Trace
from labctl.trace.perf.perfdata import read_trace
from labctl.trace.sched import ThreadSchedule, schedule
from labctl.trace.timeline import recordings
from labctl.trace.timeline.recordings import with_inferred_wakeups
from tests.unit.trace.schedules import PREEMPTED, RUNNABLE, SLEEPS, Switch, Wakeup, trace
from tests.unit.trace.simulated import Machine

VCPU, HOG = 100, 200


@pytest.fixture(autouse=True, params=["each sleep's requests", "each thread's requests"])
def looked_through(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    share = 0 if request.param == "each sleep's requests" else 1 << 40
    monkeypatch.setattr(recordings, "_FEW_OF", share)


def wakeups(made: Trace) -> list[tuple[int, int, int]]:
    """(when, who, where)"""
    events = with_inferred_wakeups(made).events[WAKEUP]
    columns = (events.time_ns, events.fields["pid"], events.fields["target_cpu"])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def of(made: Trace, tid: int = VCPU) -> ThreadSchedule:
    return schedule(with_inferred_wakeups(made)).threads[tid]


def asleep_from_10_to_42(
    *, told: list[Wakeup] | None = None, asked: list[Wakeup] | None = None, state: int = SLEEPS
) -> Trace:
    switches: list[Switch] = [(10, 1, VCPU, state, 0), (42, 1, 0, RUNNABLE, VCPU)]
    return trace(switches, told or [], wakings=asked or [], end_ns=100)


def test_who_was_asked_to_wake_up_waited_from_then_on() -> None:
    made = asleep_from_10_to_42(asked=[(39, VCPU, 0)])
    assert wakeups(made) == [(39, VCPU, 1)]
    assert of(made).delays.length_ns.tolist() == [3]
    assert of(made).unknown == 0


def test_a_wake_up_that_is_told_is_not_put_twice() -> None:
    made = asleep_from_10_to_42(told=[(40, VCPU, 1)], asked=[(39, VCPU, 0)])
    assert wakeups(made) == [(40, VCPU, 1)]


def test_one_asked_for_on_the_way_to_sleep_takes_effect_with_the_sleep() -> None:
    assert wakeups(asleep_from_10_to_42(asked=[(8, VCPU, 1)])) == [(10, VCPU, 1)]


def test_the_first_request_counts() -> None:
    assert wakeups(asleep_from_10_to_42(asked=[(20, VCPU, 1), (39, VCPU, 1)])) == [(20, VCPU, 1)]


def test_one_that_nobody_asked_for_is_unknown() -> None:
    made = asleep_from_10_to_42(asked=[(39, HOG, 1), (60, VCPU, 1)])
    assert wakeups(made) == []
    assert of(made).unknown_ns == 32


def test_who_left_runnable_was_not_woken() -> None:
    assert wakeups(asleep_from_10_to_42(asked=[(20, VCPU, 1)], state=PREEMPTED)) == []


def test_a_request_that_a_run_or_a_wake_up_has_answered_wakes_no_later_sleep() -> None:
    switches: list[Switch] = [
        (10, 1, VCPU, SLEEPS, 0),
        (20, 1, 0, RUNNABLE, VCPU),
        (30, 1, VCPU, SLEEPS, 0),
        (40, 1, 0, RUNNABLE, VCPU),
        (50, 1, VCPU, SLEEPS, 0),
        (60, 1, 0, RUNNABLE, VCPU),
    ]
    told: list[Wakeup] = [(27, VCPU, 1), (56, VCPU, 1)]
    made = trace(switches, told, wakings=[(15, VCPU, 1), (26, VCPU, 1), (55, VCPU, 1)], end_ns=99)
    # The first sleep's is put; the second's was told of before it began; the third's is told.
    assert wakeups(made) == [(15, VCPU, 1), (27, VCPU, 1), (56, VCPU, 1)]


def test_over_lost_events_and_missing_switches_nothing_is_put() -> None:
    made = asleep_from_10_to_42(asked=[(39, VCPU, 0)])
    gap = Gap(cpu=0, start_ns=15, end_ns=20, count=1)
    assert wakeups(trace_with(made, gaps=(gap,))) == []
    left_again: list[Switch] = [(10, 1, VCPU, SLEEPS, 0), (30, 1, VCPU, SLEEPS, 0)]
    made = trace([*left_again, (42, 1, 0, 0, VCPU)], wakings=[(25, VCPU, 1)], end_ns=100)
    assert wakeups(made) == []


def trace_with(made: Trace, *, gaps: tuple[Gap, ...]) -> Trace:
    return Trace(
        where=made.where, start_ns=made.start_ns, end_ns=made.end_ns, events=made.events, gaps=gaps
    )


def test_traces_that_lack_what_it_takes_stay_as_they_are() -> None:
    empty = trace([], end_ns=100)
    assert with_inferred_wakeups(empty) is empty
    whole = asleep_from_10_to_42(told=[(40, VCPU, 1)])
    assert with_inferred_wakeups(whole) is whole


@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize("seed", range(5))
def test_where_batches_end_makes_no_difference(
    batch: int, seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine.started(seed)
    machine.play(300)
    path = tmp_path / "perf.data"
    path.write_bytes(machine.file(silent=(0,)))
    made = read_trace(
        path,
        {
            SWITCH: ("prev_pid", "prev_state", "next_pid"),
            **dict.fromkeys((WAKEUP, WAKEUP_NEW, WAKING), ("pid", "target_cpu")),
        },
    )
    whole = wakeups(made)
    assert len(whole) > len(made.events[WAKEUP])
    monkeypatch.setattr(records, "BATCH", batch)
    assert wakeups(made) == whole
