"""Name the kernel's tracepoints as perf calls them, and describe their fields."""

from __future__ import annotations

SWITCH = "sched:sched_switch"
WAKING = "sched:sched_waking"
"""Somebody asks for a thread to be woken. Where a CPU wakes a thread of another one, it comes
before the thread is on a run queue, and may come before it was switched out."""
WAKEUP, WAKEUP_NEW = "sched:sched_wakeup", "sched:sched_wakeup_new"
WAKEUPS = (WAKEUP, WAKEUP_NEW)
"""Events from which a thread is on a run queue."""
MIGRATE = "sched:sched_migrate_task"
FORK = "sched:sched_process_fork"

STOPPED = 0xFF
"""prev_state's bits for why a thread stopped; with none of them it is runnable (TASK_REPORT_MAX,
above them, is "preempted": include/trace/events/sched.h, __trace_sched_switch_state)."""
ENDED = 0x30
"""State bits of a thread that has ended (EXIT_DEAD, EXIT_ZOMBIE)."""
UNTOLD = -1
"""A prev_state of ours: whether the thread sleeps, waits or has ended isn't known."""

TIMER_START, TIMER_EXPIRE = "timer:hrtimer_start", "timer:hrtimer_expire_entry"

ENTRY, EXIT = "kvm:kvm_entry", "kvm:kvm_exit"
TO_QEMU = "kvm:kvm_userspace_exit"
HALT_POLL = "kvm:kvm_halt_poll_ns"
