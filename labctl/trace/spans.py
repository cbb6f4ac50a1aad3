"""Find the state of each thread between its scheduler events: running, waiting for a CPU, or
asleep.

A wait is the kernel's run delay: from the wake-up, or from being switched out while runnable, to
the switch-in (kernel/sched/stats.h, sched_info_enqueue and sched_info_arrive; `perf sched latency`
uses the same).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import SWITCH, Gap, Nanoseconds, Numbers, Trace
from labctl.trace.records import (
    BATCH,
    IN,
    OUT,
    OUT_RUNNABLE,
    UNSEEN,
    WAKE,
    Records,
    batches,
    by_thread,
    joined,
)
from labctl.trace.threads import Mask, Numbering


class Kind(IntEnum):
    """Name kinds of spans. PREEMPTED waits began when the thread was switched out, WOKEN ones with
    its wake-up; UNFINISHED ones last beyond the end of the trace. UNKNOWN: events are missing in
    between. OFF_CPU: it slept and then waited, but its wake-up is missing; it certainly did not
    run."""

    RAN = 0
    PREEMPTED = 1
    WOKEN = 2
    UNFINISHED = 3
    UNKNOWN = 4
    OFF_CPU = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Hold columns of one length, in order of thread and time. `cpu`: where the span began; a
    waiting thread may be moved meanwhile. `kind`: of `Kind`."""

    tid: NDArray[np.int32]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    cpu: Numbers
    kind: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.tid)

    @property
    def is_wait(self) -> Mask:
        """Return which are waits from their beginning to their end."""
        found: Mask = (self.kind == Kind.PREEMPTED) | (self.kind == Kind.WOKEN)
        return found

    def where(self, chosen: Mask | NDArray[np.intp]) -> Spans:
        """Return those of a mask, or of indices in their order."""
        rows = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return Spans(
            tid=self.tid.take(rows),
            start_ns=self.start_ns.take(rows),
            end_ns=self.end_ns.take(rows),
            cpu=self.cpu.take(rows),
            kind=self.kind.take(rows),
        )


def spans(trace: Trace, tids: Collection[int] | None = None) -> Iterator[Spans]:
    """Yield every thread's spans (or those of some threads) in batches, which follow one another in
    time.

    Sleep and the idle task are left out. If the first event of a thread is that it leaves a CPU, it
    has run there since the trace began; if the last is that it enters one, it runs there until the
    trace ended. Spans across a gap are UNKNOWN, as are those that events contradict. Nothing
    without sched_switch.
    """
    if SWITCH in trace.events and len(trace.events[SWITCH]):
        yield from spans_of(trace, Numbering.of(trace, tids))


def spans_of(trace: Trace, numbering: Numbering) -> Iterator[Spans]:
    """Yield the spans of the numbered threads as `spans` does, of a trace that has switches."""
    gaps = _Gaps(trace.gaps)
    held = joined(_unseen(trace, numbering), _running_at_start(trace, numbering))
    for records in batches(trace, numbering):
        merged = by_thread(held, *records)
        told = _told_already(merged, gaps)
        if len(told):
            merged = merged.take(np.delete(np.arange(len(merged.thread)), told))
        yield _between(merged, gaps, numbering.tids, trace.every_switch)
        held = merged.take(np.flatnonzero(merged.is_last))
    yield _at_end(held, trace, gaps, numbering.tids)


def _unseen(trace: Trace, numbering: Numbering) -> Records:
    """Return every thread, before anything is known about it."""
    count = len(numbering.tids)
    return Records(
        np.arange(count, dtype=numbering.number_of.dtype),
        np.full(count, trace.start_ns, np.int64),
        np.full(count, UNSEEN, np.int8),
        np.zeros(count, trace.events[SWITCH].cpu.dtype),
    )


def _running_at_start(trace: Trace, numbering: Numbering) -> Records:
    switches = trace.events[SWITCH]
    first = _last_of_each(switches.cpu[::-1])
    first = len(switches) - 1 - first[first >= 0]
    cpus = switches.cpu[first]
    began = np.full(len(first), trace.start_ns, np.int64)
    left = numbering.number_of[switches.fields["prev_pid"][first]]
    found = Records(left, began, np.full(len(first), IN, np.int8), cpus)
    return found.take(np.flatnonzero(left >= 0))


def _last_of_each(cpu: Numbers) -> NDArray[np.int32]:
    """Return the last index of each CPU from 0; -1 if there is none."""
    found = np.full(int(cpu.max()) + 1, -1, np.int32)
    for first in range(0, len(cpu), BATCH):
        part = cpu[first : first + BATCH]
        # For a repeated index the last value applies (NumPy's "Assigning values to indexed
        # arrays").
        found[part] = np.arange(first, first + len(part), dtype=np.int32)
    return found


def _told_already(records: Records, gaps: _Gaps) -> NDArray[np.intp]:
    """Return which wake-ups are of threads that ran or were runnable: they interrupt a thread that
    is about to sleep, or come twice. After a gap they may be genuine."""
    at = np.flatnonzero(records.what[1:] == WAKE)
    at = at[records.thread[at] == records.thread[at + 1]]
    before = records.what[at]
    at = at[(before != OUT) & (before != UNSEEN)]
    if gaps:
        at = at[~gaps.between(records.time_ns[at], records.time_ns[at + 1])]
    found: NDArray[np.intp] = at + 1
    return found


_ASLEEP, _NONE = -1, -2
_WHATS = UNSEEN + 1


def _kinds(every_switch: bool) -> NDArray[np.int8]:
    """Return the state between two records of a thread, if no event is missing: a `Kind`, sleep or
    nothing; indexed by the `what` of the first times the number of values, plus the `what` of the
    second."""
    found = np.full((_WHATS, _WHATS), Kind.UNKNOWN, np.int8)
    found[OUT, WAKE] = _ASLEEP
    # A thread that is first seen leaving, without having come, has missing events before.
    found[UNSEEN, OUT_RUNNABLE + 1 :] = _NONE
    found[IN, : OUT_RUNNABLE + 1] = Kind.RAN
    found[OUT_RUNNABLE, IN] = Kind.PREEMPTED
    found[WAKE, IN] = Kind.WOKEN
    if every_switch:
        found[OUT, IN] = Kind.OFF_CPU
    return found.ravel()


def _between(records: Records, gaps: _Gaps, tids: NDArray[np.int32], every_switch: bool) -> Spans:
    kind = _kinds(every_switch).take(records.what[:-1] * np.int8(_WHATS) + records.what[1:])
    kind[records.thread[1:] != records.thread[:-1]] = _NONE
    if gaps:  # Sleep is only returned if a gap touches it.
        sleeps = np.flatnonzero(kind == _ASLEEP)
        ends_ns = records.time_ns.take(sleeps + 1)
        kind[sleeps[~gaps.between(records.time_ns.take(sleeps), ends_ns)]] = _NONE
    at = np.flatnonzero(kind >= (_ASLEEP if gaps else 0))
    kind, after = kind.take(at), at + 1
    start_ns, end_ns = records.time_ns.take(at), records.time_ns.take(after)
    cpu = records.cpu.take(at)
    kind[(kind == Kind.RAN) & (cpu != records.cpu.take(after))] = Kind.UNKNOWN
    if gaps:
        _mark_gaps(gaps, start_ns, end_ns, cpu, kind)
    return Spans(
        tid=tids.take(records.thread.take(at)), start_ns=start_ns, end_ns=end_ns, cpu=cpu, kind=kind
    )


def _mark_gaps(
    gaps: _Gaps, start_ns: Nanoseconds, end_ns: Nanoseconds, cpu: Numbers, kind: NDArray[np.int8]
) -> None:
    """Mark the spans in these columns that a gap touches as unknown."""
    rows = np.flatnonzero(gaps.between(start_ns, end_ns))
    kinds = kind.take(rows)
    # A running thread's CPU records its events. A waiting thread may have run elsewhere in a gap.
    ran = rows[kinds == Kind.RAN]
    ran = ran[gaps.between_of(cpu.take(ran), start_ns.take(ran), end_ns.take(ran))]
    # A thread that slept at both ends of a gap may have run in it, and only there.
    sleeps = rows[kinds == _ASLEEP]
    start_ns[sleeps], end_ns[sleeps] = gaps.within(start_ns.take(sleeps), end_ns.take(sleeps))
    kind[rows[kinds != Kind.RAN]] = Kind.UNKNOWN
    kind[ran] = Kind.UNKNOWN


def _at_end(held: Records, trace: Trace, gaps: _Gaps, tids: NDArray[np.int32]) -> Spans:
    """Return, for each thread, the state that its last event began."""
    end_ns = np.full(len(held.thread), trace.end_ns, np.int64)
    kind = np.full(len(held.thread), Kind.UNKNOWN, np.int8)
    switches = trace.events[SWITCH]
    ran = np.flatnonzero(held.what == IN)
    # If a CPU has switched to another thread since, a switch is missing.
    last = _last_of_each(switches.cpu)[held.cpu[ran]]
    ran = ran[tids[held.thread[ran]] == switches.fields["next_pid"][last]]
    ran = ran[~gaps.between_of(held.cpu[ran], held.time_ns[ran], end_ns[ran])]
    waits = (held.what == OUT_RUNNABLE) | (held.what == WAKE)
    kind[ran] = Kind.RAN
    kind[waits & ~gaps.between(held.time_ns, end_ns)] = Kind.UNFINISHED
    found = Spans(
        tid=tids[held.thread], start_ns=held.time_ns, end_ns=end_ns, cpu=held.cpu, kind=kind
    )
    return found.where((held.what != OUT) & (held.what != UNSEEN))


class _Gaps:
    def __init__(self, gaps: Collection[Gap]) -> None:
        self._all = _merged(gaps)
        by_cpu: dict[int, list[Gap]] = defaultdict(list)
        for gap in gaps:
            by_cpu[gap.cpu].append(gap)
        self._by_cpu = {cpu: _merged(own) for cpu, own in by_cpu.items()}

    def __bool__(self) -> bool:
        return bool(self._by_cpu)

    def between(self, start_ns: Nanoseconds, end_ns: Nanoseconds) -> Mask:
        """Return which of these spans a gap of any CPU touches."""
        return _touched(self._all, start_ns, end_ns)

    def within(self, start_ns: Nanoseconds, end_ns: Nanoseconds) -> tuple[Nanoseconds, Nanoseconds]:
        """Return the time from the first to the last gap in each of these spans, all of which have
        one."""
        starts, ends = self._all
        first = np.searchsorted(ends, start_ns, "right")
        last = np.searchsorted(starts, end_ns, "left") - 1
        return np.maximum(start_ns, starts[first]), np.minimum(end_ns, ends[last])

    def between_of(self, cpu: Numbers, start_ns: Nanoseconds, end_ns: Nanoseconds) -> Mask:
        """Return which of these spans a gap of their own CPU touches."""
        found = np.zeros(len(cpu), dtype=bool)
        for number in np.unique(cpu).tolist() if self._by_cpu else []:
            if number in self._by_cpu:
                at = np.flatnonzero(cpu == number)
                found[at] = _touched(self._by_cpu[number], start_ns[at], end_ns[at])
        return found


def _merged(gaps: Collection[Gap]) -> tuple[Nanoseconds, Nanoseconds]:
    """Return starts and ends of gaps that do not overlap, in order."""
    ordered = sorted((gap.start_ns, gap.end_ns) for gap in gaps)
    merged: list[tuple[int, int]] = []
    for start_ns, end_ns in ordered:
        if merged and start_ns <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end_ns, merged[-1][1]))
        else:
            merged.append((start_ns, end_ns))
    columns = np.array(merged, np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _touched(
    gaps: tuple[Nanoseconds, Nanoseconds], start_ns: Nanoseconds, end_ns: Nanoseconds
) -> Mask:
    starts, ends = gaps
    found = np.zeros(len(start_ns), dtype=bool)
    if not len(found):
        return found
    first = int(np.searchsorted(ends, start_ns.min(), "right"))
    last = int(np.searchsorted(starts, end_ns.max(), "left"))
    if first >= last:
        return found
    # Most spans are short, and far from any gap.
    near = np.flatnonzero((end_ns > starts[first]) & (start_ns < ends[last - 1]))
    # The first gap that is not over when the span begins. Gaps lie between two events, both seen.
    next_gap = np.searchsorted(ends, start_ns.take(near), "right")
    is_any = next_gap < len(starts)
    found[near] = is_any & (starts.take(next_gap, mode="clip") < end_ns.take(near))
    return found
