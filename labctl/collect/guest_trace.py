"""The guest's own scheduler: what its perf recorded inside of it."""

from __future__ import annotations

COLLECTOR = "guest_trace"
EVENTS = (
    "sched:sched_switch",
    "sched:sched_waking",
    "sched:sched_wakeup",
    "sched:sched_wakeup_new",
    "sched:sched_migrate_task",
    "sched:sched_process_fork",
    "timer:hrtimer_start",
    "timer:hrtimer_expire_entry",
)
"""What perf records there: who runs, who waits, whose child that is, and when a timer was due."""
