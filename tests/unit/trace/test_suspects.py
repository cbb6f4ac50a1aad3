"""Moments in which the two schedulers got in each other's way."""

from __future__ import annotations

import pytest

from labctl.trace.timeline.nested import timeline_of
from tests.unit.trace.recorded import (
    HLT,
    PAUSE,
    PREEMPTED,
    RUNNABLE,
    SLEEPING,
)
from tests.unit.trace.two_sides import (
    CYCLICTEST,
    HOG,
    NEIGHBOUR,
    SECOND,
    SHELL,
    VCPU,
    WAKER,
    WORKLOAD,
    clock,
    guest,
    host,
    told,
    vcpu,
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
        "the guest runs 'sh', but vCPU 0 waits 5.000 ms for a CPU behind 'stress-ng'"
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


def test_a_vcpu_that_sleeps_with_a_task_on_it_is_blocked_and_its_waker_is_named() -> None:
    """The waker, an ordinary thread, waits behind a hog for most of it: priority inversion."""
    outside, inside = host(), guest()
    outside.switch(48_000, 0, WAKER, HOG, PREEMPTED)
    outside.switch(50_000, 1, VCPU, 0, SLEEPING)
    outside.switch(58_000, 0, HOG, WAKER, PREEMPTED)
    outside.wake(59_000, 0, VCPU, by=WAKER, to=1)
    outside.switch(59_010, 1, 0, VCPU, PREEMPTED)
    inside.switch(40_000, 0, 0, SHELL, RUNNABLE)
    timeline = told(outside, inside)
    (suspect,) = [one for one in timeline.suspects if one.kind == "blocked vCPU"]
    assert (suspect.start_ns, suspect.end_ns) == (50_000_000, 59_000_000)
    assert suspect.text == (
        "the guest runs 'sh', but vCPU 0 sleeps 9.000 ms in the host, until it is woken by 'qemu', "
        "which waits 8.000 ms of it for a CPU behind 'stress-ng'"
    )
    assert timeline.figures["blocked_vcpu_s"] == pytest.approx(0.009)


def test_a_vcpu_under_kvm_is_blocked_in_an_exit_but_not_in_its_guests_halt() -> None:
    outside, inside = host(), guest()
    outside.entry(10, 1, VCPU)
    outside.exit(20_000, 1, VCPU, PAUSE)
    outside.switch(20_010, 1, VCPU, 0, SLEEPING)
    outside.wake(24_010, 0, VCPU, by=NEIGHBOUR, to=1)
    outside.switch(24_020, 1, 0, VCPU, PREEMPTED)
    outside.entry(24_030, 1, VCPU)
    outside.exit(50_000, 1, VCPU, HLT)
    outside.switch(50_010, 1, VCPU, 0, SLEEPING)
    outside.wake(60_000, 0, VCPU, by=WAKER, to=1)
    outside.switch(60_010, 1, 0, VCPU, PREEMPTED)
    inside.switch(10_000, 0, 0, SHELL, RUNNABLE)
    inside.switch(49_000, 0, SHELL, 0, SLEEPING)
    inside.switch(61_000, 0, 0, SHELL, RUNNABLE)
    (suspect,) = [one for one in told(outside, inside).suspects if one.kind == "blocked vCPU"]
    assert suspect.text == (
        "the guest runs 'sh', but vCPU 0 sleeps 4.000 ms in the host, until it is woken by "
        "'other-vm'"
    )


@pytest.mark.parametrize(("length_us", "error_us"), [(900, 0), (1_500, 1_600)])
def test_a_short_sleep_blocks_nothing(length_us: int, error_us: float) -> None:
    outside, inside = host(), guest()
    outside.switch(50_000, 1, VCPU, 0, SLEEPING)
    outside.wake(50_000 + length_us, 0, VCPU, by=WAKER, to=1)
    outside.switch(50_010 + length_us, 1, 0, VCPU, PREEMPTED)
    inside.switch(40_000, 0, 0, SHELL, RUNNABLE)
    timeline = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(0, error_us), WORKLOAD)
    assert timeline.figures["blocked_vcpu_count"] == 0


def test_without_a_switch_of_the_guests_no_longest_sleep_is_known() -> None:
    outside = host()
    outside.switch(50_000, 1, VCPU, 0, SLEEPING)
    outside.wake(59_000, 0, VCPU, by=WAKER, to=1)
    outside.switch(59_010, 1, 0, VCPU, PREEMPTED)
    assert "blocked_vcpu_max_s" not in told(outside, guest()).figures


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


@pytest.mark.parametrize("idles_between", [False, True])
def test_a_vcpu_that_slept_with_a_task_on_it_begins_no_chain(idles_between: bool) -> None:
    """It slept for QEMU's lock, say, or for a spinlock of the guest's: what its guest switches to
    afterwards isn't what it was woken for."""
    outside, inside = host(), guest()
    outside.switch(30_000, 1, VCPU, HOG, SLEEPING)
    outside.wake(50_000, 0, VCPU, by=WAKER, to=1)
    outside.switch(52_000, 1, HOG, VCPU, PREEMPTED)
    inside.switch(29_000, 0, 0, SHELL, RUNNABLE)
    if idles_between:
        inside.switch(54_000, 0, SHELL, 0, SLEEPING)
    inside.switch(55_000, 0, 0 if idles_between else SHELL, CYCLICTEST, RUNNABLE)
    assert told(outside, inside).figures["wake_up_chain_count"] == 0


def test_who_had_the_cpu_later_in_a_chain_is_named_too() -> None:
    outside, inside = host(), guest()
    outside.switch(30_000, 1, VCPU, NEIGHBOUR, SLEEPING)
    outside.wake(50_000, 0, VCPU, by=WAKER, to=1)
    outside.switch(50_010, 1, NEIGHBOUR, VCPU, PREEMPTED)
    outside.switch(50_100, 1, VCPU, HOG, PREEMPTED)
    outside.switch(70_100, 1, HOG, VCPU, PREEMPTED)
    inside.switch(29_000, 0, SHELL, 0, SLEEPING)
    inside.switch(70_200, 0, 0, SHELL, RUNNABLE)
    (suspect,) = [one for one in told(outside, inside).suspects if one.kind == "wake-up chain"]
    assert suspect.text == (
        "vCPU 0, woken by 'qemu', waits 0.010 ms for a CPU behind 'other-vm'; 20.190 ms later "
        "(20.000 ms of them without a CPU again behind 'stress-ng') the guest runs 'sh'"
    )


@pytest.mark.parametrize(("error_us", "count"), [(2_000, 1), (2_100, 0)])
def test_a_chain_is_longer_than_the_clocks_may_differ_by(error_us: float, count: int) -> None:
    outside, inside = host(), guest()
    outside.switch(30_000, 1, VCPU, HOG, SLEEPING)
    outside.wake(50_000, 0, VCPU, by=WAKER, to=1)
    outside.switch(52_000, 1, HOG, VCPU, PREEMPTED)
    inside.switch(29_000, 0, SHELL, 0, SLEEPING)
    inside.switch(52_050, 0, 0, SHELL, RUNNABLE)
    timeline = timeline_of(outside.trace(), [vcpu()], inside.trace(), clock(0, error_us), WORKLOAD)
    assert timeline.figures["wake_up_chain_count"] == count
