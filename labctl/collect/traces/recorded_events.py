"""Choose the events of a trial that perf records, as perf's own arguments.

Events are chosen by CPU and not by thread: everything on the CPUs that the trial's machine may run
on. Only this way does the trace show who had the CPU that a vCPU waited for, include threads that
QEMU starts meanwhile, and include a native workload, whose processes are not known beforehand.
Wake-ups are chosen by their target CPU, because the event happens on the CPU that wakes. The
filters are the kernel's own, so that no other event reaches a buffer.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence

from labctl.base.cpus import CpuSet
from labctl.base.tuning import Kind
from labctl.collect.collector import Target
from labctl.trace.model import (
    ENTRY,
    EXIT,
    FORK,
    HALT_POLL,
    MIGRATE,
    SWITCH,
    TIMER_START,
    TO_QEMU,
    WAKEUPS,
    WAKING,
)

_HARDIRQ, _SOFTIRQ = 0x08, 0x10
"""Flags of an event's context (include/linux/trace_events.h)."""
_WHOLE = (6, 1)
"""Newest Linux that was seen to withhold no switch; 6.18 does withhold some."""


def trial_events(target: Target) -> list[str]:
    """Return perf's arguments for all events of a trial's machine."""
    events = sched_events(target.trial_cpus)
    if target.kind is Kind.NATIVE:
        events += timer_events(target.trial_cpus)
    elif target.accelerator == "kvm":
        events += kvm_events(target.vcpu_tids)
    return events


def sched_events(cpus: CpuSet) -> list[str]:
    """Return perf's arguments for all scheduler events on these CPUs."""
    filters = {
        SWITCH: among("CPU", cpus),
        **dict.fromkeys((WAKING, *WAKEUPS), among("target_cpu", cpus)),
        MIGRATE: f"{among('orig_cpu', cpus)}||{among('dest_cpu', cpus)}",
    }
    # Rare, and needed to find the children of a workload's processes.
    return [*_chosen(filters), "-e", FORK, *switch_records(platform.release())]


def timer_events(cpus: CpuSet) -> list[str]:
    """Return perf's arguments for the timers that tasks start on these CPUs to sleep or wait. Ticks
    and other timers of interrupts and of the idle task are left out."""
    in_interrupt = f"common_flags&{_HARDIRQ | _SOFTIRQ}"
    tasks_own = f"({among('CPU', cpus)})&&common_pid!=0&&!({in_interrupt})"
    return _chosen({TIMER_START: tasks_own})


def switch_records(release: str) -> list[str]:
    """Return perf's arguments for its own records of every switch, if this release of Linux may
    withhold some (`perf.switches`). They cannot be filtered: they come from all of the host's
    CPUs."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    return ["--switch-events"] if numbers > _WHOLE else []


def kvm_events(vcpu_tids: Sequence[int]) -> list[str]:
    """Return perf's arguments for KVM's events in these threads; other guests may be on the same
    CPUs."""
    own = among("common_pid", vcpu_tids)
    return _chosen(dict.fromkeys((ENTRY, EXIT, TO_QEMU, HALT_POLL), own))


def _chosen(filters: dict[str, str]) -> list[str]:
    return [word for name, text in filters.items() for word in ("-e", name, "--filter", text)]


def among(field: str, numbers: Sequence[int] | CpuSet) -> str:
    """Return a filter for these values of a field (Documentation/trace/events.rst, "Event
    filtering"), in ranges if possible, because a filter must fit into a page."""
    parts: list[str] = []
    for first, last in _ranges(numbers):
        parts.append(
            f"{field}=={first}" if first == last else f"({field}>={first}&&{field}<={last})"
        )
    return "||".join(parts)


def _ranges(numbers: Sequence[int] | CpuSet) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
