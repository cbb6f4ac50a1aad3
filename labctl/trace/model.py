"""Define the contents of a trace, whichever tool recorded it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Nanoseconds = NDArray[np.int64]
"""Time of the recording machine's CLOCK_MONOTONIC."""
Numbers = NDArray[np.int64] | NDArray[np.int32] | NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Hold every event of one tracepoint as columns of one length, in order of time.

    `tid`: the thread that ran when it happened; 0 is the idle task. `fields`: the tracepoint's own
    integers, by their names in its format (`prev_pid`, `next_pid`, `prev_state`, ...).
    """

    time_ns: Nanoseconds
    cpu: Numbers
    tid: NDArray[np.int32]
    fields: Mapping[str, Numbers]

    def __len__(self) -> int:
        return len(self.time_ns)

    def with_more(
        self,
        time_ns: Nanoseconds,
        cpu: NDArray[Any],
        tid: NDArray[Any] | int,
        fields: Mapping[str, Any],
    ) -> Events:
        """Return the events with these added, columns in order too, after those of the same time; 0
        in missing fields."""
        place = np.searchsorted(self.time_ns, time_ns, "right")

        def joined(column: NDArray[Any], more: NDArray[Any] | int) -> Any:
            return np.insert(column, place, more)

        return Events(
            time_ns=joined(self.time_ns, time_ns),
            cpu=joined(self.cpu, cpu),
            tid=joined(self.tid, tid),
            fields={
                name: joined(column, fields.get(name, 0)) for name, column in self.fields.items()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Describe a gap: the recorder lost events on a CPU between two times. A state from before the
    gap may not have lasted through it."""

    cpu: int
    start_ns: int
    end_ns: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Hold a trace. `where`: the file, for errors. `names`: threads' own names, by tid.
    `processes`: the process of a thread, as far as the trace shows it. `problems`: sentences on
    incomplete parts of the file."""

    where: str
    start_ns: int
    end_ns: int
    events: Mapping[str, Events]
    """Events by the tracepoint's full name: `sched:sched_switch`."""
    names: Mapping[int, str] = field(default_factory=dict)
    processes: Mapping[int, int] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    problems: tuple[str, ...] = ()
    every_switch: bool = False
    """True if the recorder also wrote records of its own for switches, one from either thread: a
    thread without missing records ran nowhere between two known switches."""

    @property
    def lost(self) -> int:
        return sum(gap.count for gap in self.gaps)


# Define perf's names of the kernel's tracepoints, and describe their fields.


SWITCH = "sched:sched_switch"
WAKING = "sched:sched_waking"
"""Request to wake a thread. If a CPU wakes a thread of another CPU, it precedes the thread's
arrival on a run queue, and may precede its switch-out."""
WAKEUP, WAKEUP_NEW = "sched:sched_wakeup", "sched:sched_wakeup_new"
WAKEUPS = (WAKEUP, WAKEUP_NEW)
"""Events that put a thread on a run queue."""
MIGRATE = "sched:sched_migrate_task"
FORK = "sched:sched_process_fork"

STOPPED = 0xFF
"""prev_state's bits for why a thread stopped; without any of them it is runnable (TASK_REPORT_MAX,
above them, is "preempted": include/trace/events/sched.h, __trace_sched_switch_state)."""
ENDED = 0x30
"""State bits of a thread that has ended (EXIT_DEAD, EXIT_ZOMBIE)."""
UNTOLD = -1
"""labctl's own prev_state: whether the thread sleeps, waits or has ended is unknown."""

TIMER_START, TIMER_EXPIRE = "timer:hrtimer_start", "timer:hrtimer_expire_entry"

ENTRY, EXIT = "kvm:kvm_entry", "kvm:kvm_exit"
TO_QEMU = "kvm:kvm_userspace_exit"
HALT_POLL = "kvm:kvm_halt_poll_ns"
