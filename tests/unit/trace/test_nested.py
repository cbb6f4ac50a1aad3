"""Both schedulers on one time line: late wake-ups, their parts, and suspects."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.trace.clocks import ClockMap
from labctl.trace.lanes import Lane, Late, State, Timeline
from labctl.trace.model import Trace
from labctl.trace.nested import MOST_LATE, timeline_of
from labctl.trace.threads import Thread, Workload
from tests.unit.trace.recorded import (
    HLT,
    MSR_WRITE,
    PAUSE,
    PREEMPTED,
    RUNNABLE,
    SLEEPING,
    Recorded,
    spans,
)

VCPU, SECOND, HOG, NEIGHBOUR, WAKER = 100, 101, 200, 201, 202
HOST_NAMES = {HOG: "stress-ng", NEIGHBOUR: "other-vm", WAKER: "qemu"}
CYCLICTEST, MAIN, SHELL = 50, 49, 60
GUEST_NAMES = {CYCLICTEST: "cyclictest", MAIN: "cyclictest", SHELL: "sh", 0: "swapper/0"}
TIMER = -0x7000
WORKLOAD = Workload(name="cyclictest")


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


def vcpu(tid: int = VCPU, index: int = 0) -> Thread:
    return Thread(tid=tid, pid=90, role="vcpu", index=index, name=f"CPU {index}/KVM")


def clock(offset_us: int = 0, error_us: float = 0) -> ClockMap:
    return ClockMap(
        at_ns=0,
        until_ns=10**9,
        offset_ns=offset_us * 1000,
        rate=1.0,
        error_ns=round(error_us * 1000),
    )


def lanes_of(timeline: Timeline, side: str) -> list[Lane]:
    return [lane for lane in timeline.lanes if lane.side == side]


def host(end_us: int = 200_000) -> Recorded:
    return Recorded(end_us, HOST_NAMES)


def guest(end_us: int = 200_000) -> Recorded:
    made = Recorded(end_us, GUEST_NAMES)
    made.processes = {CYCLICTEST: MAIN, MAIN: MAIN, SHELL: SHELL}
    return made


def wake_up(
    side: Recorded, due_us: float, woken_us: float, ran_us: float, *, over: int = 0
) -> None:
    """cyclictest sleeps until `due_us`, and is switched in over `over` at `ran_us`."""
    side.timer(due_us - 900, 0, CYCLICTEST, TIMER, due_us)
    side.switch(due_us - 899, 0, CYCLICTEST, 0, SLEEPING)
    if over:
        side.switch(due_us - 800, 0, 0, over, RUNNABLE)
    side.expire(max(due_us, woken_us - 1), 0, over, TIMER)
    side.wake(woken_us, 0, CYCLICTEST, by=over)
    side.switch(ran_us, 0, over, CYCLICTEST, PREEMPTED)


def told(outside: Recorded, inside: Recorded, workload: Workload = WORKLOAD) -> Timeline:
    return timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(), workload)


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


def test_the_guests_times_are_put_on_the_hosts_clock() -> None:
    outside, inside = host(), guest(60_000)
    outside.switch(150_000, 1, VCPU, HOG, PREEMPTED)
    outside.switch(152_000, 1, HOG, VCPU, PREEMPTED)
    wake_up(inside, due_us=50_500, woken_us=52_100, ran_us=52_200)
    timeline = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(100_000, 30), WORKLOAD)
    (late,) = timeline.late
    assert (late.at_ns, late.host_ns) == (150_500_000, 1_500_000)
    assert timeline.clock_error_ns == 30_000
    (lane,) = lanes_of(timeline, "guest")
    assert spans(lane)[-1] == (152_200, 160_000, "TASK", "cyclictest")


def test_a_part_shorter_than_the_clocks_error_is_said_to_be_unsure() -> None:
    outside, inside = host(), guest()
    outside.entry(10, 1, VCPU)
    outside.exit(20_100, 1, VCPU, MSR_WRITE)
    outside.entry(20_130, 1, VCPU)
    wake_up(inside, due_us=20_000, woken_us=20_010, ran_us=20_510)
    sure = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(0, 20), WORKLOAD)
    unsure = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(0, 40), WORKLOAD)
    assert not any("may be another's" in problem for problem in sure.problems)
    assert any("1 of 1. Such a part may be another's" in problem for problem in unsure.problems)


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
    assert any("by no timer of the task's own" in problem for problem in timeline.problems)


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
    timeline = told(outside, inside)
    assert timeline.figures["wakeups"] == 1
    assert any(
        "lost on the guest's side: 7, in 1 place" in problem for problem in timeline.problems
    )
    assert any(
        "nothing is known, since events are missing in between: 1." in problem
        for problem in timeline.problems
    )


def test_a_task_that_the_guest_runs_on_a_vcpu_without_a_cpu_is_double_scheduling() -> None:
    outside, inside = host(), guest()
    outside.switch(50_000, 1, VCPU, HOG, PREEMPTED)
    outside.switch(54_000, 1, HOG, NEIGHBOUR, PREEMPTED)
    outside.switch(55_000, 1, NEIGHBOUR, VCPU, PREEMPTED)
    inside.switch(40_000, 0, 0, SHELL, RUNNABLE)
    inside.switch(58_000, 0, SHELL, 0, SLEEPING)
    timeline = told(outside, inside)
    (suspect,) = [one for one in timeline.suspects if one.kind == "double scheduling"]
    assert (suspect.start_ns, suspect.end_ns) == (50_000_000, 55_000_000)
    assert suspect.text == (
        "to the guest 'sh' runs, but vCPU 0 waits 5.000 ms for a CPU behind 'stress-ng'"
    )
    assert timeline.figures["double_scheduling_count"] == 1
    assert timeline.figures["double_scheduling_s"] == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("length_us", "error_us", "idle", "count"),
    [(1_000, 0, False, 1), (999, 0, False, 0), (1_500, 1_600, False, 0), (9_000, 0, True, 0)],
)
def test_double_scheduling_takes_a_task_a_millisecond_and_sure_clocks(
    length_us: int, error_us: float, idle: bool, count: int
) -> None:
    outside, inside = host(), guest()
    outside.switch(50_000, 1, VCPU, HOG, PREEMPTED)
    outside.switch(50_000 + length_us, 1, HOG, VCPU, PREEMPTED)
    inside.switch(40_000, 0, SHELL if idle else 0, 0 if idle else SHELL, RUNNABLE)
    timeline = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(0, error_us), WORKLOAD)
    assert timeline.figures["double_scheduling_count"] == count


def test_spinning_vcpus_make_a_preempted_one_a_lock_holder_suspect() -> None:
    outside, inside = host(), guest()
    outside.entry(10, 1, VCPU)
    outside.exit(50_000, 1, VCPU, 1)
    outside.switch(50_001, 1, VCPU, HOG, PREEMPTED)
    outside.switch(50_600, 1, HOG, VCPU, PREEMPTED)
    for at in (49_000, 50_100, 50_200, 50_300, 50_900):
        outside.exit(at, 0, SECOND, PAUSE)
        outside.entry(at + 5, 0, SECOND)
    inside.switch(40_000, 0, 0, SHELL, RUNNABLE)
    threads = [vcpu(), vcpu(SECOND, 1)]
    timeline = timeline_of(outside.trace(), threads, inside.trace(), clock(), WORKLOAD)
    (suspect,) = [one for one in timeline.suspects if one.kind == "lock holder preempted"]
    assert suspect.vcpu == 0
    assert suspect.text.endswith("with 'sh' on it, while other vCPUs exit 3 times for spinning")
    alone = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(), WORKLOAD)
    assert alone.figures["lock_holder_count"] == 0


def test_a_wake_up_is_followed_from_the_host_to_the_guests_task() -> None:
    outside, inside = host(), guest()
    outside.entry(10, 1, VCPU)
    outside.exit(30_000, 1, VCPU, HLT)
    outside.switch(30_010, 1, VCPU, HOG, SLEEPING)
    outside.wake(50_000, 0, VCPU, by=WAKER, to=1)
    outside.switch(52_000, 1, HOG, VCPU, PREEMPTED)
    outside.entry(52_010, 1, VCPU)
    inside.switch(29_000, 0, SHELL, 0, SLEEPING)
    inside.wake(52_015, 0, SHELL)
    inside.switch(52_050, 0, 0, SHELL, RUNNABLE)
    (suspect,) = [one for one in told(outside, inside).suspects if one.kind == "wake-up chain"]
    assert (suspect.start_ns, suspect.end_ns) == (50_000_000, 52_050_000)
    assert suspect.text == (
        "vCPU 0, woken by 'qemu', waits 2.000 ms for a CPU behind 'stress-ng'; 0.050 ms later the "
        "guest runs 'sh'"
    )


def test_a_vcpu_that_halts_again_without_a_task_is_no_chain() -> None:
    outside, inside = host(), guest()
    outside.switch(30_000, 1, VCPU, HOG, SLEEPING)
    outside.wake(50_000, 0, VCPU, by=WAKER, to=1)
    outside.switch(52_000, 1, HOG, VCPU, PREEMPTED)
    outside.switch(53_000, 1, VCPU, 0, SLEEPING)
    inside.switch(29_000, 0, SHELL, 0, SLEEPING)
    inside.switch(90_000, 0, 0, SHELL, RUNNABLE)
    assert told(outside, inside).figures["wake_up_chain_count"] == 0


def test_under_emulation_it_is_said_what_cannot_be_told_apart() -> None:
    outside, inside = host(), guest()
    outside.switch(30_000, 1, VCPU, HOG, SLEEPING)
    inside.switch(29_000, 0, SHELL, 0, SLEEPING)
    problems = told(outside, inside).problems
    assert any("the guest's code and QEMU's own" in problem for problem in problems)
    outside.entry(20_000, 1, VCPU)
    assert not any("QEMU's own" in problem for problem in told(outside, inside).problems)


def test_without_the_guests_side_the_hosts_is_shown_and_the_reason_said() -> None:
    outside = host()
    outside.switch(30_000, 1, VCPU, HOG, PREEMPTED)
    for inside, known in ((None, clock()), (guest().trace(), "its clock was not read")):
        timeline = timeline_of(outside.trace(), [vcpu()], inside, known, WORKLOAD)
        assert lanes_of(timeline, "host")
        assert not lanes_of(timeline, "guest")
        assert timeline.clock_error_ns is None
        assert any("Of the guest's own side nothing" in problem for problem in timeline.problems)


def test_natively_there_is_a_lane_per_cpu_and_waiting_is_for_other_tasks() -> None:
    native = guest()
    wake_up(native, due_us=20_000, woken_us=20_010, ran_us=20_510, over=SHELL)
    timeline = timeline_of(native.trace(), [], None, "natively there is no other clock", WORKLOAD)
    assert [lane.title for lane in timeline.lanes] == ["CPU 0"]
    (late,) = timeline.late
    assert (late.host_ns, late.queue_ns, late.other_ns) == (0, 500_000, 10_000)
    assert late.culprit == "sh (task)"
    assert timeline.suspects == ()


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


def test_what_cannot_be_told_has_no_figure() -> None:
    outside, inside = host(), guest()
    outside.switch(10_000, 1, VCPU, HOG, PREEMPTED)
    outside.switch(12_000, 1, HOG, VCPU, PREEMPTED)
    wake_up(inside, due_us=20_000, woken_us=20_010, ran_us=20_510, over=SHELL)
    emulated = told(outside, inside).figures
    assert emulated["late_host_share"] == 0
    assert not {"late_exit_share", "vcpu0_exit_share", "lock_holder_count"} & emulated.keys()
    alone = timeline_of(host().trace(), [], inside.trace(), clock(), WORKLOAD)
    assert set(alone.figures) == {"wakeups", "late_wakeups", "late_threshold_s"}
    assert [late.queue_ns for late in alone.late] == [0]
    assert any("can't be told what late wake-ups waited for" in text for text in alone.problems)
    native = timeline_of(inside.trace(), [], None, "natively", WORKLOAD).figures
    assert {name for name in native if "share" in name} == {"late_queue_share", "late_other_share"}


def test_late_time_in_which_the_host_is_unknown_is_said() -> None:
    outside, inside = host(), guest()
    outside.entry(10, 1, VCPU)
    outside.exit(60_000, 1, VCPU, MSR_WRITE)
    outside.lose(21_000, 22_000, cpu=1)
    wake_up(inside, due_us=20_000, woken_us=29_990, ran_us=30_000)
    timeline = told(outside, inside)
    assert any("10.0% of the late wake-ups' time" in text for text in timeline.problems)


def test_only_the_measured_window_is_shown_and_counted() -> None:
    outside, inside = host(), guest()
    outside.switch(10_000, 1, VCPU, HOG, PREEMPTED)
    outside.switch(90_000, 1, HOG, VCPU, PREEMPTED)
    for due in (20_000, 60_000, 120_000):
        wake_up(inside, due, due + 10, due + 20)
    window = Workload(name="cyclictest", window_ns=(50_000_000, 100_000_000))
    timeline = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(5_000), window)
    assert (timeline.start_ns, timeline.end_ns) == (55_000_000, 105_000_000)
    assert all(
        lane.start_ns[0] == timeline.start_ns and lane.end_ns[-1] == timeline.end_ns
        for lane in timeline.lanes
    )
    assert timeline.figures["wakeups"] == 1
    assert timeline.figures["vcpu0_preempted_share"] == pytest.approx(35 / 50)


def test_a_guests_trace_that_ended_early_is_said_to_have() -> None:
    outside, inside = host(), guest(150_000)
    wake_up(inside, 100_000, 100_010, 100_020)
    window = Workload(name="cyclictest", window_ns=(50_000_000, 190_000_000))
    timeline = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(), window)
    assert any("covers 0.1 s of the workload's 0.1 s" in text for text in timeline.problems)
    (lane,) = lanes_of(timeline, "guest")
    assert lane.end_ns[-1] == 150_000_000


def test_a_window_that_no_host_had_is_not_believed() -> None:
    outside, inside = host(), guest()
    wake_up(inside, 100_000, 100_010, 100_020)
    for window in ((2**60, 2**61), (0, 2**61)):
        told_so = Workload(name="cyclictest", window_ns=window)
        timeline = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(), told_so)
        assert 0 <= timeline.start_ns < timeline.end_ns <= 1_200_000_000


def test_cpus_that_a_guest_does_not_have_are_not_looked_at() -> None:
    outside, inside = host(), guest()
    wake_up(inside, 20_000, 20_010, 20_020)
    for cpu in range(1, 50):
        inside.switch(30_000 + cpu, cpu, 0, SHELL, RUNNABLE)
    timeline = told(outside, inside)
    assert [lane.title for lane in lanes_of(timeline, "guest")] == ["CPU 0"]


def test_threads_of_the_guests_own_qemu_are_told_from_those_of_others() -> None:
    outside, inside = host(), guest()
    own = Thread(tid=HOG, pid=90, role="emulator", index=0, name="qemu-system-x86")
    outside.names[NEIGHBOUR] = "qemu-system-x86"
    outside.switch(10_000, 1, VCPU, HOG, PREEMPTED)
    outside.switch(12_000, 1, HOG, NEIGHBOUR, PREEMPTED)
    outside.switch(14_000, 1, NEIGHBOUR, VCPU, PREEMPTED)
    timeline = timeline_of(outside.trace(), [vcpu(), own], inside.trace(), clock(), WORKLOAD)
    details = [detail for _, _, state, detail in spans(timeline.lanes[0]) if state == "PREEMPTED"]
    assert details == ["this guest's qemu-system-x86", "qemu-system-x86"]


def test_more_late_ones_than_a_page_needs_are_cut_and_said_to_be() -> None:
    outside, inside = host(10**8), guest(10**8)
    for number in range(2 * MOST_LATE):
        due = 2_000 * (number + 1)
        wake_up(inside, due, due + 9.5, due + 10)
    timeline = told(outside, inside)
    assert len(timeline.late) == MOST_LATE
    assert timeline.figures["late_wakeups"] == 2 * MOST_LATE
    assert any("longest are listed" in problem for problem in timeline.problems)


def test_traces_without_any_events_make_a_time_line_that_says_so() -> None:
    empty = Trace(where="nothing", start_ns=5, end_ns=5, events={})
    timeline = timeline_of(empty, [vcpu()], empty, clock(), WORKLOAD)
    assert "No wake-ups were recorded, late or not." in timeline.problems
    assert timeline.late == ()


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


ANY_TID = st.sampled_from([-(2**31), -1, 0, 1, CYCLICTEST, SHELL, 2**22, 2**31 - 1])
ANY_LONG = st.sampled_from([-(2**63), -1, 0, 1, TIMER, 2**62, 2**63 - 1])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["switch", "wake", "start", "expire"]),
            st.sampled_from([0, 1, 5, 10**6, 10**15]),
            st.sampled_from([0, 1, 65535]),
            st.tuples(ANY_TID, ANY_TID),
            ANY_LONG,
        ),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_a_guest_wrote_makes_a_time_line(
    said: list[tuple[str, int, int, tuple[int, int], int]],
) -> None:
    outside, inside = host(), guest()
    outside.switch(50_000, 1, VCPU, HOG, PREEMPTED)
    outside.switch(54_000, 1, HOG, VCPU, PREEMPTED)
    now = 0
    for what, step, cpu, (tid, other), value in said:
        now += step
        if what == "switch":
            inside.switch(now, cpu, tid, other, value)
        elif what == "wake":
            inside.wake(now, cpu, other, by=tid)
        elif what == "start":
            inside.add("timer:hrtimer_start", now, cpu, tid, hrtimer=other, expires=value)
        else:
            inside.add("timer:hrtimer_expire_entry", now, cpu, tid, hrtimer=other)
    made_up = replace(inside.trace(), end_ns=max(now, 1) * 1000)
    for late in timeline_of(outside.trace(), [vcpu()], made_up, clock(), WORKLOAD).late:
        parts = (late.host_ns, late.exit_ns, late.queue_ns, late.other_ns)
        assert min(parts) >= 0
        assert sum(parts) == late.latency_ns
