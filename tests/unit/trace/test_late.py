"""Wake-ups that came late, and whose part of each was whose."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.trace.coverage import Own
from labctl.trace.model import Events
from labctl.trace.threads import Thread, Workload
from labctl.trace.timeline.lanes import Lane, Late, State, Timeline
from labctl.trace.timeline.nested import MOST_LATE, timeline_of
from tests.unit.trace.recorded import (
    MSR_WRITE,
    PREEMPTED,
    RUNNABLE,
    SLEEPING,
)
from tests.unit.trace.two_sides import (
    CYCLICTEST,
    HOG,
    MAIN,
    NEIGHBOUR,
    SHELL,
    TIMER,
    VCPU,
    WORKLOAD,
    clock,
    guest,
    host,
    lanes_of,
    told,
    vcpu,
    wake_up,
)

MS = 1_000_000


def parts_by_hand(timeline: Timeline, late: Late, woken_us: int) -> tuple[int, int, int]:
    """Host, exit and queue, asked of the lanes for each microsecond by itself."""
    (outside,), (inside,) = lanes_of(timeline, "host"), lanes_of(timeline, "guest")

    def at(lane: Lane, us: int) -> str:
        row = int(np.searchsorted(lane.start_ns, us * 1000, "right")) - 1
        return list(State)[lane.state[row]].name

    begin = late.at_ns // 1000
    moments = range(begin, begin + late.latency_ns // 1000)
    states = [(us, at(outside, us), at(inside, us)) for us in moments]
    return (
        1000 * sum(state == "PREEMPTED" for _, state, _ in states),
        1000 * sum(state == "EXIT" for _, state, _ in states),
        1000
        * sum(us >= woken_us and state == "GUEST" and task == "TASK" for us, state, task in states),
    )


def test_a_preemption_of_20_ms_is_the_hosts_part_with_its_culprit() -> None:
    outside, inside = host(), guest()
    outside.entry(10, 1, VCPU)
    outside.exit(50_000, 1, VCPU, 1)
    outside.switch(50_002, 1, VCPU, HOG, PREEMPTED)
    outside.switch(70_002, 1, HOG, VCPU, PREEMPTED)
    outside.entry(70_005, 1, VCPU)
    wake_up(inside, due_us=55_000, woken_us=70_010, ran_us=70_030)
    timeline = told(outside, inside)
    assert timeline.late == (
        Late(
            at_ns=55_000_000,
            vcpu=0,
            task="cyclictest",
            latency_ns=15_030_000,
            host_ns=15_002_000,
            exit_ns=3_000,
            queue_ns=0,
            other_ns=25_000,
            culprit="stress-ng (host)",
            behind_ns={"stress-ng": 15_002_000},
        ),
    )
    assert timeline.figures["late_host_share"] == pytest.approx(15_002 / 15_030)
    assert timeline.figures["vcpu0_preempted_share"] == pytest.approx(20_000 / 200_000)


def test_waiting_behind_another_task_is_the_guests_own_part() -> None:
    outside, inside = host(), guest()
    outside.entry(10, 1, VCPU)
    outside.exit(20_100, 1, VCPU, MSR_WRITE)
    outside.entry(20_130, 1, VCPU)
    wake_up(inside, due_us=20_000, woken_us=20_010, ran_us=20_510, over=SHELL)
    (late,) = told(outside, inside).late
    assert (late.latency_ns, late.exit_ns, late.queue_ns) == (510_000, 30_000, 470_000)
    assert (late.host_ns, late.other_ns) == (0, 10_000)
    assert late.culprit == "sh (guest)"


def test_a_part_shorter_than_the_clocks_error_is_said_to_be_unsure() -> None:
    outside, inside = host(), guest()
    outside.entry(10, 1, VCPU)
    outside.exit(20_100, 1, VCPU, MSR_WRITE)
    outside.entry(20_130, 1, VCPU)
    wake_up(inside, due_us=20_000, woken_us=20_010, ran_us=20_510)
    sure = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(0, 20), WORKLOAD)
    unsure = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(0, 40), WORKLOAD)
    assert not any("may belong to a neighbouring one" in problem for problem in sure.problems)
    assert any("1 of 1. Such a part may belong" in problem for problem in unsure.problems)


def test_only_the_latest_five_percent_are_told_of() -> None:
    outside, inside = host(10**7), guest(10**7)
    latencies = np.random.default_rng(1).permutation(np.arange(1, 1001))
    for number, late_us in enumerate(latencies.tolist()):
        due = 2_000 * (number + 1)
        wake_up(inside, due, due + late_us - 0.5, due + late_us)
    timeline = told(outside, inside)
    assert timeline.figures["wakeups"] == 1000
    # The nearest-rank 95th percentile of 1 to 1000 is 950, and it is one of them.
    assert timeline.figures["late_threshold_s"] == pytest.approx(950e-6)
    assert sorted(late.latency_ns for late in timeline.late) == [
        us * 1000 for us in range(950, 1001)
    ]
    assert [late.at_ns for late in timeline.late] == sorted(late.at_ns for late in timeline.late)


def test_the_thread_that_only_waits_for_the_measuring_ones_is_left_out() -> None:
    outside, inside = host(), guest()
    wake_up(inside, due_us=20_000, woken_us=20_010, ran_us=20_020)
    inside.switch(30_000, 0, MAIN, 0, SLEEPING)
    inside.wake(40_000, 0, MAIN)
    inside.switch(49_000, 0, 0, MAIN, RUNNABLE)
    assert told(outside, inside).figures["wakeups"] == 1


def test_without_a_timer_latency_counts_from_the_wake_up() -> None:
    outside, inside = host(), guest()
    inside.switch(30_000, 0, SHELL, 0, SLEEPING)
    inside.wake(40_000, 0, SHELL)
    inside.switch(40_700, 0, 0, SHELL, RUNNABLE)
    timeline = told(outside, inside, Workload(name="sh"))
    assert [late.latency_ns for late in timeline.late] == [700_000]
    assert any("not caused by the task's own timer" in problem for problem in timeline.problems)


def test_a_timer_that_another_task_started_is_not_the_one_that_was_due() -> None:
    outside, inside = host(), guest()
    inside.timer(10_000, 0, SHELL, TIMER, 20_000)
    inside.switch(30_000, 0, CYCLICTEST, 0, SLEEPING)
    inside.expire(39_999, 0, 0, TIMER)
    inside.wake(40_000, 0, CYCLICTEST)
    inside.switch(40_100, 0, 0, CYCLICTEST, RUNNABLE)
    assert [late.latency_ns for late in told(outside, inside).late] == [100_000]


def test_wake_ups_over_a_gap_are_not_told_of() -> None:
    outside, inside = host(), guest()
    wake_up(inside, due_us=20_000, woken_us=20_010, ran_us=20_020)
    wake_up(inside, due_us=40_000, woken_us=49_010, ran_us=49_020)
    inside.lose(41_000, 42_000, cpu=0, count=7)
    timeline = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(500), WORKLOAD)
    (gap,) = timeline.guest_gaps
    assert (gap.start_ns, gap.end_ns, gap.count) == (41_500_000, 42_500_000, 7)
    assert timeline.figures["wakeups"] == 1
    assert any(
        "lost on the guest's side: 7, in 1 place" in problem for problem in timeline.problems
    )
    assert timeline.coverage is not None
    assert (timeline.coverage.seen, timeline.coverage.unseen) == (1, 1)


def test_hidden_wake_ups_make_the_late_ones_unknown() -> None:
    """As where a kernel keeps back what an idle CPU does: what is left waited for other tasks."""
    native = guest(1_100_000)
    for number in range(500):
        due = 2_000 * (number + 1)
        wake_up(native, due, due + 10, due + 30, over=SHELL)
    half = native.trace()
    hidden = {
        name: events if name == "sched:sched_switch" else without(events, range(0, 500, 2))
        for name, events in half.events.items()
        if "timer" not in name
    }
    told = Workload(name="cyclictest", own=Own(program="cyclictest", wakeups=500, worst_ns=7 * MS))
    timeline = timeline_of(replace(half, events=hidden), [], None, "natively", told)
    assert timeline.coverage is not None
    assert (timeline.coverage.seen, timeline.coverage.unseen) == (250, 250)
    assert timeline.coverage.lacks_worst
    assert not any("share" in name or "threshold" in name for name in timeline.figures)
    assert timeline.late_bounds == {}
    # What was seen is still to be looked at.
    assert {late.latency_ns for late in timeline.late} == {20_000}


def test_timers_of_their_own_make_hidden_wake_ups_known() -> None:
    native = guest(1_100_000)
    for number in range(500):
        due = 2_000 * (number + 1)
        wake_up(native, due, due + 10, due + 30 + number % 7, over=SHELL if number % 2 else 0)
    whole = native.trace()
    keeps = ("sched:sched_switch", "timer:hrtimer_start")
    hidden = {
        name: events if name in keeps else without(events, range(0, 500, 2))
        for name, events in whole.events.items()
        if not name.endswith("expire_entry")
    }
    expected = timeline_of(whole, [], None, "natively", WORKLOAD)
    timeline = timeline_of(replace(whole, events=hidden), [], None, "natively", WORKLOAD)
    assert timeline.coverage is not None
    assert (timeline.coverage.seen, timeline.coverage.inferred) == (500, 250)
    assert timeline.figures == expected.figures
    assert timeline.late == expected.late
    assert any("Inferred wake-ups: 250 of 500" in problem for problem in timeline.problems)


def test_who_ran_before_an_inferred_wake_up_may_have_delayed_it() -> None:
    """It may have been woken before that, and waited, or after."""
    native = guest()
    wake_up(native, due_us=20_000, woken_us=20_010, ran_us=20_510, over=SHELL)
    whole = native.trace()
    events = {name: whole.events[name] for name in ("sched:sched_switch", "timer:hrtimer_start")}
    events["sched:sched_waking"] = without(whole.events["sched:sched_waking"], range(1))
    timeline = timeline_of(replace(whole, events=events), [], None, "natively", WORKLOAD)
    (late,) = timeline.late
    assert (late.latency_ns, late.queue_ns, late.other_ns) == (510_000, 0, 510_000)
    assert timeline.late_bounds == {"queue": (0, 1), "other": (0, 1)}
    assert "late_queue_share" not in timeline.figures


def test_cycles_that_no_event_tells_of_are_counted_as_unseen() -> None:
    """Of a thread that the trace doesn't know for the program's, say."""
    outside, inside = host(), guest()
    wake_up(inside, due_us=20_000, woken_us=20_010, ran_us=20_020)
    inside.timer(20_100, 0, CYCLICTEST, TIMER, 20_050)  # over at once: no sleep, no wake-up
    wake_up(inside, due_us=30_000, woken_us=30_010, ran_us=30_020)
    for cycles, missing in ((3, 0), (5, 2)):
        own = Own(program="cyclictest", wakeups=cycles, worst_ns=20_000)
        timeline = told(outside, inside, replace(WORKLOAD, own=own))
        assert timeline.coverage is not None
        assert timeline.coverage.unseen == missing
        assert timeline.coverage.unseen_ns == missing * 20_000


def without(events: Events, rows: range) -> Events:
    gone = list(rows)
    return Events(
        time_ns=np.delete(events.time_ns, gone),
        cpu=np.delete(events.cpu, gone),
        tid=np.delete(events.tid, gone),
        fields={name: np.delete(column, gone) for name, column in events.fields.items()},
    )


def test_under_emulation_a_main_loop_that_waits_is_the_hosts_part() -> None:
    outside, inside = host(), guest()
    emulator = Thread(tid=90, pid=90, role="emulator", index=0, name="qemu-system-x86")
    vcpu_thread = Thread(tid=VCPU, pid=90, role="vcpu", index=0, name="CPU 0/TCG")
    outside.switch(10_000, 1, VCPU, 0, SLEEPING)
    outside.switch(19_990, 0, HOG, 0, SLEEPING)
    outside.switch(20_000, 0, 0, NEIGHBOUR, RUNNABLE)
    outside.wake(20_005, 0, 90)  # the timer is due, and QEMU's main loop doesn't come to it
    outside.switch(29_000, 0, NEIGHBOUR, 90, PREEMPTED)
    outside.wake(29_100, 1, VCPU, by=90, to=1)
    outside.switch(29_110, 1, 0, VCPU, RUNNABLE)
    outside.switch(29_200, 0, 90, 0, SLEEPING)
    wake_up(inside, due_us=20_000, woken_us=29_150, ran_us=29_200)
    for name, main_loop_ns in (("CPU 0/TCG", 8_995_000), ("CPU 0/KVM", 0)):
        threads = [emulator, replace(vcpu_thread, name=name)]
        timeline = timeline_of(outside.trace(), threads, inside.trace(), clock(), WORKLOAD)
        (late,) = timeline.late
        assert late.host_ns == main_loop_ns + 10_000
        assert late.host_ns + late.other_ns == late.latency_ns == 9_200_000
        assert (late.culprit == "other-vm (host)") == (main_loop_ns > 0)


def test_late_time_in_which_the_host_is_unknown_is_said() -> None:
    outside, inside = host(), guest()
    outside.entry(10, 1, VCPU)
    outside.exit(60_000, 1, VCPU, MSR_WRITE)
    outside.lose(21_000, 22_000, cpu=1)
    wake_up(inside, due_us=20_000, woken_us=29_990, ran_us=30_000)
    timeline = told(outside, inside)
    assert any("10.0% of the late wake-ups' time" in text for text in timeline.problems)


def test_a_vcpu_whose_wake_up_was_not_seen_leaves_the_hosts_share_unknown() -> None:
    """It slept, and then waited for a CPU or not: its wake-up alone would tell."""
    outside, inside = host(), guest()
    outside.switch(10_000, 1, VCPU, 0, SLEEPING)
    outside.switch(29_000, 1, 0, VCPU, RUNNABLE)
    outside.switch(50_000, 1, VCPU, 0, SLEEPING)
    outside.wake(59_000, 1, VCPU)  # others' wake-ups are told of
    outside.switch(59_001, 1, 0, VCPU, RUNNABLE)
    wake_up(inside, due_us=20_000, woken_us=29_010, ran_us=29_020)
    timeline = told(outside, inside)
    least, most = timeline.late_bounds["host"]
    assert least == 0
    assert most == pytest.approx(9_000 / 9_020)
    assert not {"late_host_share", "late_other_share"} & timeline.figures.keys()


def test_more_late_ones_than_a_page_needs_are_cut_and_said_to_be() -> None:
    outside, inside = host(10**8), guest(10**8)
    for number in range(2 * MOST_LATE):
        due = 2_000 * (number + 1)
        wake_up(inside, due, due + 9.5, due + 10)
    timeline = told(outside, inside)
    assert len(timeline.late) == MOST_LATE
    assert timeline.figures["late_wakeups"] == 2 * MOST_LATE
    assert any("longest of" in problem and "are listed" in problem for problem in timeline.problems)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(1, 4_000), min_size=2, max_size=30),
    st.lists(
        st.tuples(st.integers(900, 6_000), st.integers(1, 900), st.integers(1, 600)),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
    st.integers(-500, 500),
)
def test_parts_are_those_of_each_microsecond_and_add_up(
    changes: list[int], sleeps: list[tuple[int, int, int]], kvm: bool, offset_us: int
) -> None:
    outside, inside = host(), guest()
    doing = itertools.cycle(("out", "in", "exit", "entry") if kvm else ("out", "in"))
    if kvm:
        outside.entry(1, 1, VCPU)
    now = 1
    for step, what in zip(changes, doing, strict=False):
        now += step
        if what == "out":
            outside.switch(now, 1, VCPU, HOG, PREEMPTED)
        elif what == "in":
            outside.switch(now, 1, HOG, VCPU, PREEMPTED)
        elif what == "exit":
            outside.exit(now, 1, VCPU, MSR_WRITE)
        else:
            outside.entry(now, 1, VCPU)
    now = 1000
    woken_us = {}
    for pause, late_us, queued in sleeps:
        due = now + pause
        woken_us[(due + offset_us) * 1000] = due + late_us + offset_us
        ran = due + late_us + queued
        wake_up(inside, due, due + late_us, ran, over=SHELL if queued % 2 else 0)
        now = ran
    known = clock(offset_us)
    timeline = timeline_of(outside.trace(), [vcpu()], inside.trace(), known, WORKLOAD)
    assert timeline.late
    for late in timeline.late:
        parts = (late.host_ns, late.exit_ns, late.queue_ns)
        assert parts == parts_by_hand(timeline, late, woken_us[late.at_ns])
        assert min(*parts, late.other_ns) >= 0
        assert sum(parts) + late.other_ns == late.latency_ns
        assert late.behind_ns == ({"stress-ng": late.host_ns} if late.host_ns else {})
