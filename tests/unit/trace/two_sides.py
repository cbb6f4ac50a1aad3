"""A made-up host with one guest, and what its time line is made of."""

from __future__ import annotations

from labctl.trace.clocks import ClockMap
from labctl.trace.threads import Thread, Workload
from labctl.trace.timeline.lanes import Lane, Timeline
from labctl.trace.timeline.nested import timeline_of
from tests.unit.trace.recorded import PREEMPTED, RUNNABLE, SLEEPING, Recorded

VCPU, SECOND, HOG, NEIGHBOUR, WAKER = 100, 101, 200, 201, 202
HOST_NAMES = {HOG: "stress-ng", NEIGHBOUR: "other-vm", WAKER: "qemu"}
CYCLICTEST, MAIN, SHELL = 50, 49, 60
GUEST_NAMES = {CYCLICTEST: "cyclictest", MAIN: "cyclictest", SHELL: "sh", 0: "swapper/0"}
TIMER = -0x7000
WORKLOAD = Workload(name="cyclictest")


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
