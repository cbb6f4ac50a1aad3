"""Traces made of the lines that a test writes."""

from __future__ import annotations

import numpy as np

from labctl.trace.model import Events, Gap, Trace

SLEEPS, RUNNABLE, PREEMPTED = 1, 0, 0x100
"""Values of prev_state: TASK_INTERRUPTIBLE, TASK_RUNNING, TASK_REPORT_MAX."""

Switch = tuple[int, int, int, int, int]
"""Time, CPU, prev_pid, prev_state, next_pid."""
Wakeup = tuple[int, int, int]
"""Time, pid, target_cpu."""
Migration = tuple[int, int, int]
"""Time, pid, dest_cpu."""
Fork = tuple[int, int, int]
"""Time, parent_pid, child_pid."""


def trace(
    switches: list[Switch],
    wakeups: list[Wakeup] = [],  # noqa: B006
    migrations: list[Migration] = [],  # noqa: B006
    wakings: list[Wakeup] = [],  # noqa: B006
    forks: list[Fork] = [],  # noqa: B006
    by: list[Wakeup] = [],  # noqa: B006
    *,
    end_ns: int,
    gaps: tuple[Gap, ...] = (),
    names: dict[int, str] | None = None,
) -> Trace:
    """From 0 to `end_ns`. `by`: events of threads on CPUs that say nothing else."""
    time, cpu, prev, state, then = _columns(switches, 5)
    woken_at, woken, target = _columns(wakeups, 3)
    moved_at, moved, to = _columns(migrations, 3)
    asked_at, asked, last = _columns(wakings, 3)
    forked_at, parent, child = _columns(forks, 3)
    done_at, doer, where = _columns(by, 3)
    return Trace(
        where="made up",
        start_ns=0,
        end_ns=end_ns,
        events={
            "sched:sched_switch": _events(
                time, cpu, prev, prev_pid=prev, prev_state=state, next_pid=then
            ),
            "sched:sched_wakeup": _events(woken_at, target, woken, pid=woken, target_cpu=target),
            "sched:sched_waking": _events(asked_at, last, asked, pid=asked, target_cpu=last),
            "kvm:kvm_entry": _events(done_at, where, doer),
            "sched:sched_process_fork": _events(
                forked_at, 0 * parent, parent, parent_pid=parent, child_pid=child
            ),
            "sched:sched_migrate_task": _events(moved_at, to, moved, pid=moved, dest_cpu=to),
        },
        names=names or {},
        gaps=gaps,
    )


def _columns(rows: list[tuple[int, ...]] | list[Switch] | list[Wakeup], width: int) -> np.ndarray:
    return np.array(sorted(rows), np.int64).reshape(-1, width).T


def _events(time: np.ndarray, cpu: np.ndarray, tid: np.ndarray, **fields: np.ndarray) -> Events:
    return Events(
        time_ns=time,
        cpu=cpu.astype(np.int32),
        tid=tid.astype(np.int32),
        fields={name: column.astype(np.int32) for name, column in fields.items()},
    )
