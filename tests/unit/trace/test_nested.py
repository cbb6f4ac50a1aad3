"""Both schedulers on one time line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.trace.model import Trace
from labctl.trace.threads import Thread, Workload
from labctl.trace.timeline.nested import timeline_of
from tests.unit.trace.recorded import (
    PREEMPTED,
    RUNNABLE,
    SLEEPING,
    spans,
)
from tests.unit.trace.two_sides import (
    CYCLICTEST,
    HOG,
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
        assert any("The guest's own side is not shown" in problem for problem in timeline.problems)


def test_natively_there_is_a_lane_per_cpu_and_waiting_is_for_other_tasks() -> None:
    native = guest()
    wake_up(native, due_us=20_000, woken_us=20_010, ran_us=20_510, over=SHELL)
    timeline = timeline_of(native.trace(), [], None, "natively there is no other clock", WORKLOAD)
    assert [lane.title for lane in timeline.lanes] == ["CPU 0"]
    (late,) = timeline.late
    assert (late.host_ns, late.queue_ns, late.other_ns) == (0, 500_000, 10_000)
    assert late.culprit == "sh (task)"
    assert timeline.suspects == ()


def test_what_cannot_be_told_has_no_figure() -> None:
    outside, inside = host(), guest()
    outside.switch(10_000, 1, VCPU, HOG, PREEMPTED)
    outside.switch(12_000, 1, HOG, VCPU, PREEMPTED)
    wake_up(inside, due_us=20_000, woken_us=20_010, ran_us=20_510, over=SHELL)
    emulated = told(outside, inside).figures
    assert emulated["late_host_share"] == 0
    assert not {"late_exit_share", "vcpu0_exit_share", "lock_holder_count"} & emulated.keys()
    alone = timeline_of(host().trace(), [], inside.trace(), clock(), WORKLOAD)
    told_of = {"wakeups", "wakeups_unseen", "late_wakeups", "late_threshold_s"}
    assert set(alone.figures) == told_of
    assert [late.queue_ns for late in alone.late] == [0]
    assert any("the causes of late wake-ups are unknown" in text for text in alone.problems)
    native = timeline_of(inside.trace(), [], None, "natively", WORKLOAD).figures
    assert {name for name in native if "share" in name} == {"late_queue_share", "late_other_share"}


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


def test_threads_of_qemu_that_follow_each_other_have_lanes_of_their_own_names() -> None:
    """What came after the first look at QEMU's threads was counted anew."""
    outside, inside = host(), guest()
    came = [Thread(tid=tid, pid=90, role="emulator", index=1, name="worker") for tid in (HOG, 203)]
    for at, tid in ((10_000, HOG), (20_000, 203)):
        outside.switch(at, 1, VCPU, tid, PREEMPTED)
        outside.switch(at + 5_000, 1, tid, VCPU, SLEEPING)
    timeline = timeline_of(outside.trace(), [vcpu(), *came], inside.trace(), clock(), WORKLOAD)
    titles = [lane.title for lane in timeline.lanes if lane.vcpu < 0]
    assert titles == ["emulator 0: worker", "emulator 1: worker"]


def test_a_vcpu_of_another_guest_that_had_the_cpu_is_not_taken_for_this_ones() -> None:
    outside, inside = host(), guest()
    outside.names[NEIGHBOUR] = "CPU 0/KVM"
    outside.switch(10_000, 1, VCPU, NEIGHBOUR, PREEMPTED)
    outside.switch(12_000, 1, NEIGHBOUR, VCPU, PREEMPTED)
    inside.switch(5_000, 0, 0, SHELL, RUNNABLE)
    (suspect,) = told(outside, inside).suspects
    assert suspect.text.endswith("behind 'another guest's CPU 0/KVM'")


def test_traces_without_any_events_make_a_time_line_that_says_so() -> None:
    empty = Trace(where="nothing", start_ns=5, end_ns=5, events={})
    timeline = timeline_of(empty, [vcpu()], empty, clock(), WORKLOAD)
    assert "No wake-ups were recorded, late or not." in timeline.problems
    assert timeline.late == ()


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
