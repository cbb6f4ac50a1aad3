"""What a vCPU's thread was doing on its host."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from labctl.trace.model import UNTOLD
from labctl.trace.timeline.host_lanes import HostSide
from labctl.trace.timeline.lanes import State
from tests.unit.trace.recorded import (
    DEAD,
    HLT,
    INTERRUPT,
    IO,
    MSR_WRITE,
    PREEMPTED,
    RUNNABLE,
    SLEEPING,
    Recorded,
    spans,
)

VCPU, HOG, OTHER = 100, 200, 300
NAMES = {VCPU: "CPU 0/KVM", HOG: "hog", OTHER: "other"}


def lane_of(recorded: Recorded, *tids: int) -> list[tuple[float, float, str, str]]:
    return spans(HostSide.of(recorded.trace(), {}).vcpu_lane(tids or (VCPU,), 0)[0])


def test_under_kvm_entries_and_exits_say_what_the_thread_does() -> None:
    trace = Recorded(1000, NAMES)
    trace.switch(100, 1, 0, VCPU, RUNNABLE)
    trace.entry(150, 1, VCPU)
    trace.exit(200, 1, VCPU, MSR_WRITE)
    trace.entry(210, 1, VCPU)
    trace.exit(300, 1, VCPU, IO)
    trace.to_qemu(310, 1, VCPU, 2)
    trace.entry(350, 1, VCPU)
    trace.exit(400, 1, VCPU, HLT)
    trace.switch(420, 1, VCPU, 0, SLEEPING)
    assert lane_of(trace) == [
        (0, 150, "UNKNOWN", ""),
        (150, 200, "GUEST", ""),
        (200, 210, "EXIT", "MSR_WRITE"),
        (210, 300, "GUEST", ""),
        (300, 310, "EXIT", "IO_INSTRUCTION"),
        (310, 350, "EXIT", "IO_INSTRUCTION, in QEMU (IO)"),
        (350, 400, "GUEST", ""),
        (400, 420, "EXIT", "HLT"),
        (420, 1000, "HALTED", ""),
    ]


def test_a_thread_that_sleeps_in_another_exit_than_hlt_is_not_halted() -> None:
    trace = Recorded(100, NAMES)
    trace.exit(10, 1, VCPU, IO)
    trace.switch(20, 1, VCPU, 0, SLEEPING)
    trace.wake(60, 1, VCPU)
    trace.switch(70, 1, 0, VCPU, RUNNABLE)
    assert lane_of(trace) == [
        (0, 10, "GUEST", ""),
        (10, 20, "EXIT", "IO_INSTRUCTION"),
        (20, 60, "EXIT", "IO_INSTRUCTION, asleep"),
        (60, 70, "PREEMPTED", "idle CPU"),
        (70, 100, "EXIT", "IO_INSTRUCTION"),
    ]


def test_who_took_the_cpu_is_named_and_each_that_followed() -> None:
    trace = Recorded(100, NAMES)
    trace.switch(10, 1, VCPU, HOG, PREEMPTED)
    trace.switch(30, 1, HOG, OTHER, PREEMPTED)
    trace.switch(40, 1, OTHER, HOG)
    trace.switch(50, 1, HOG, VCPU, PREEMPTED)
    assert lane_of(trace) == [
        (0, 10, "GUEST", ""),
        (10, 30, "PREEMPTED", "hog"),
        (30, 40, "PREEMPTED", "other"),
        (40, 50, "PREEMPTED", "hog"),
        (50, 100, "GUEST", ""),
    ]


def test_where_switches_of_others_are_not_recorded_both_ends_are_named() -> None:
    trace = Recorded(100, NAMES)
    trace.switch(10, 1, VCPU, HOG, PREEMPTED)
    trace.switch(50, 1, OTHER, VCPU)
    assert lane_of(trace)[1] == (10, 50, "PREEMPTED", "hog, then other")


def test_a_woken_thread_waits_behind_who_runs_there_and_moves_with_its_queue() -> None:
    trace = Recorded(100, NAMES)
    trace.switch(5, 1, 0, HOG)
    trace.switch(6, 0, HOG, OTHER)
    trace.switch(10, 1, VCPU, HOG)  # contradicts the switch at 5, and concerns the other CPU only
    trace.wake(20, 0, VCPU, to=1)
    trace.add("sched:sched_migrate_task", 30, 0, 0, pid=VCPU, orig_cpu=1, dest_cpu=0)
    trace.switch(45, 0, OTHER, VCPU, PREEMPTED)
    assert lane_of(trace)[1:] == [
        (10, 20, "HALTED", ""),
        (20, 30, "PREEMPTED", "hog"),
        (30, 45, "PREEMPTED", "other"),
        (45, 100, "GUEST", ""),
    ]


def test_a_thread_that_is_moved_as_it_is_woken_waits_from_then_on() -> None:
    trace = Recorded(100, NAMES)
    trace.switch(10, 1, VCPU, 0, SLEEPING)
    trace.add("sched:sched_migrate_task", 39, 0, HOG, pid=VCPU, orig_cpu=1, dest_cpu=0)
    trace.wake(40, 0, VCPU, by=HOG, to=0)
    trace.switch(50, 0, HOG, VCPU, PREEMPTED)
    assert lane_of(trace)[1:] == [
        (10, 40, "HALTED", ""),
        (40, 50, "PREEMPTED", "hog"),
        (50, 100, "GUEST", ""),
    ]


def test_who_comes_without_a_wake_up_woke_at_a_moment_that_is_not_known() -> None:
    trace = Recorded(100, NAMES)
    trace.switch(10, 1, VCPU, 0, SLEEPING)
    trace.wake(20, 0, OTHER)
    trace.switch(50, 1, 0, VCPU, RUNNABLE)
    assert lane_of(trace)[1:] == [(10, 50, "UNKNOWN", ""), (50, 100, "GUEST", "")]


def test_of_who_left_silently_nothing_is_known_until_it_is_woken() -> None:
    trace = Recorded(100, NAMES)
    trace.switch(10, 1, VCPU, 0, UNTOLD)
    trace.wake(40, 1, VCPU)
    trace.switch(50, 1, 0, VCPU, RUNNABLE)
    assert lane_of(trace)[1:] == [
        (10, 40, "UNKNOWN", ""),
        (40, 50, "PREEMPTED", "idle CPU"),
        (50, 100, "GUEST", ""),
    ]


def test_without_entries_and_exits_all_time_on_a_cpu_is_the_guests() -> None:
    trace = Recorded(100, {VCPU: "CPU 0/TCG"})
    trace.switch(10, 1, 0, VCPU, RUNNABLE)
    trace.to_qemu(12, 1, VCPU, 2)  # software-only KVM tells of these alone
    trace.switch(30, 1, VCPU, 0, SLEEPING)
    trace.wake(50, 1, VCPU)
    trace.switch(55, 1, 0, VCPU, RUNNABLE)
    assert lane_of(trace) == [
        (0, 10, "UNKNOWN", ""),
        (10, 30, "GUEST", ""),
        (30, 50, "HALTED", ""),
        (50, 55, "PREEMPTED", "idle CPU"),
        (55, 100, "GUEST", ""),
    ]


def test_a_thread_that_comes_and_goes_is_known_while_it_lives() -> None:
    trace = Recorded(100, NAMES)
    trace.add("sched:sched_wakeup_new", 20, 0, 1, pid=VCPU, target_cpu=1)
    trace.switch(25, 1, 0, VCPU, RUNNABLE)
    trace.switch(60, 1, VCPU, 0, DEAD)
    assert lane_of(trace)[-3:] == [
        (20, 25, "PREEMPTED", "idle CPU"),
        (25, 60, "GUEST", ""),
        (60, 100, "UNKNOWN", "the thread ended"),
    ]


def test_a_vcpu_that_got_another_thread_has_one_lane() -> None:
    trace = Recorded(100, NAMES)
    trace.switch(20, 1, VCPU, 0, DEAD)
    trace.add("sched:sched_wakeup_new", 50, 0, 1, pid=OTHER, target_cpu=1)
    trace.switch(55, 1, 0, OTHER, RUNNABLE)
    states = [(start, state) for start, _, state, _ in lane_of(trace, VCPU, OTHER)]
    assert states == [(0, "GUEST"), (20, "UNKNOWN"), (50, "PREEMPTED"), (55, "GUEST")]


def test_a_gap_on_its_cpu_is_not_bridged() -> None:
    trace = Recorded(100, NAMES)
    trace.switch(10, 1, 0, VCPU, RUNNABLE)
    trace.lose(40, 60, cpu=1)
    trace.switch(80, 1, VCPU, HOG, PREEMPTED)
    assert lane_of(trace) == [
        (0, 10, "UNKNOWN", ""),
        (10, 40, "GUEST", ""),
        (40, 60, "UNKNOWN", ""),
        (60, 80, "GUEST", ""),  # who is switched out at 80 had the CPU since the loss
        (80, 100, "PREEMPTED", "hog"),
    ]


def test_a_gap_on_another_cpu_hides_nothing_of_a_thread_that_runs() -> None:
    trace = Recorded(100, NAMES)
    trace.switch(10, 1, 0, VCPU, RUNNABLE)
    trace.switch(80, 1, VCPU, 0, SLEEPING)
    trace.lose(40, 60, cpu=0)
    trace.lose(85, 90, cpu=0)
    assert lane_of(trace) == [
        (0, 10, "UNKNOWN", ""),
        (10, 80, "GUEST", ""),
        (80, 85, "HALTED", ""),
        (85, 100, "UNKNOWN", ""),  # it may have run on CPU 0 since
    ]


def test_after_a_gap_an_exit_is_not_taken_for_the_one_before() -> None:
    trace = Recorded(100, NAMES)
    trace.entry(5, 1, VCPU)
    trace.exit(10, 1, VCPU, MSR_WRITE)
    trace.lose(20, 30, cpu=1)
    trace.switch(50, 1, VCPU, HOG, PREEMPTED)
    trace.switch(60, 1, HOG, VCPU)
    trace.entry(70, 1, VCPU)
    assert lane_of(trace)[2:] == [
        (10, 20, "EXIT", "MSR_WRITE"),
        (20, 50, "UNKNOWN", ""),
        (50, 60, "PREEMPTED", "hog"),
        (60, 70, "UNKNOWN", ""),
        (70, 100, "GUEST", ""),
    ]


def test_events_that_contradict_each_other_are_counted_and_nothing_is_made_of_them() -> None:
    trace = Recorded(100, NAMES)
    trace.switch(10, 1, VCPU, HOG, PREEMPTED)
    trace.switch(50, 1, VCPU, HOG, PREEMPTED)  # the switch-in between was never written
    trace.switch(60, 1, HOG, VCPU)
    lane, denied = HostSide.of(trace.trace(), {}).vcpu_lane([VCPU], 0)
    assert denied == 1
    assert spans(lane)[1] == (10, 50, "UNKNOWN", "")


def test_a_vcpu_without_events_is_unknown_throughout() -> None:
    assert lane_of(Recorded(100, NAMES)) == [(0, 100, "UNKNOWN", "")]


def test_helpers_run_wait_and_idle() -> None:
    trace = Recorded(100, NAMES)
    trace.switch(10, 0, OTHER, HOG, PREEMPTED)
    trace.switch(30, 0, HOG, OTHER)
    trace.switch(40, 0, OTHER, 0, SLEEPING)
    lane = HostSide.of(trace.trace(), {}).thread_lane(OTHER, "emulator")
    assert lane is not None
    assert spans(lane) == [
        (0, 10, "HOST", ""),
        (10, 30, "PREEMPTED", "hog"),
        (30, 40, "HOST", ""),
        (40, 100, "IDLE", ""),
    ]
    assert HostSide.of(trace.trace(), {}).thread_lane(VCPU, "emulator") is None


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from(["in", "out", "sleep", "wake", "entry", "exit", "move", "lose"]),
            st.integers(0, 1),
        ),
        max_size=40,
    )
)
def test_whatever_the_events_say_spans_fill_the_window_once(
    said: list[tuple[int, str, int]],
) -> None:
    trace = Recorded(200, NAMES)
    now = 0
    for step, what, cpu in said:
        now += step
        if what == "in":
            trace.switch(now, cpu, HOG, VCPU, RUNNABLE)
        elif what in ("out", "sleep"):
            trace.switch(now, cpu, VCPU, HOG, RUNNABLE if what == "out" else SLEEPING)
        elif what == "wake":
            trace.wake(now, cpu, VCPU, by=HOG)
        elif what == "entry":
            trace.entry(now, cpu, VCPU)
        elif what == "exit":
            trace.exit(now, cpu, VCPU, INTERRUPT)
        elif what == "move":
            trace.add("sched:sched_migrate_task", now, cpu, HOG, pid=VCPU, dest_cpu=1 - cpu)
        else:
            trace.lose(max(0, now - 3), now, cpu)
    lane, _ = HostSide.of(trace.trace(), {}).vcpu_lane([VCPU], 0)
    found = spans(lane)
    assert found[0][0] == 0
    assert found[-1][1] == 200
    assert all(one[1] == then[0] for one, then in itertools.pairwise(found))
    assert all(start < end for start, end, _, _ in found)
    assert {state for _, _, state, _ in found} <= {state.name for state in State}
