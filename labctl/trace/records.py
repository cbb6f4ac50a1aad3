"""Convert a trace's scheduler events into records of each thread, in the thread's own order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import STOPPED, SWITCH, WAKEUPS, Nanoseconds, Numbers, Trace
from labctl.trace.threads import Mask, Numbering

BATCH = 30_000
"""Switches processed at a time, to bound the memory."""

OUT, OUT_RUNNABLE, WAKE, IN, UNSEEN = range(5)


@dataclass(frozen=True, slots=True)
class Records:
    """Hold the events of threads, as columns. `thread`: as numbered by `Numbering`. `what`: OUT and
    OUT_RUNNABLE when a CPU left it, WAKE with its wake-up, IN when a CPU switched to it; UNSEEN
    before its first event."""

    thread: NDArray[Any]
    time_ns: Nanoseconds
    what: NDArray[np.int8]
    cpu: Numbers

    def take(self, rows: NDArray[np.intp]) -> Records:
        """Return those of indices, in their order."""
        return Records(
            self.thread.take(rows),
            self.time_ns.take(rows),
            self.what.take(rows),
            self.cpu.take(rows),
        )

    @property
    def is_last(self) -> Mask:
        """Return which are the last of their thread, for records in order of threads."""
        found = np.ones(len(self.thread), dtype=bool)
        np.not_equal(self.thread[1:], self.thread[:-1], out=found[:-1])
        return found


def batches(trace: Trace, numbering: Numbering) -> Iterator[Sequence[Records]]:
    """Yield the records of a trace that has sched_switch, in batches that follow one another in
    time; each in parts, which are in order of time. Records of the same time are in the order of
    the events. -1 stands for threads without a number."""
    switches = trace.events[SWITCH]
    last = len(switches)
    wakeups: list[tuple[Nanoseconds, NDArray[Any], NDArray[Any]]] = []
    for name in WAKEUPS:
        if name in trace.events:
            events = trace.events[name]
            wakeups.append((events.time_ns, events.fields["pid"], events.fields["target_cpu"]))
    ends = [*range(BATCH, last, BATCH), last]
    begin_ns: int | None = None
    for end in ends:
        end_ns = int(switches.time_ns[end - 1]) if end < last else None
        part = _slice(switches.time_ns, begin_ns, end_ns)
        time_ns, cpu = switches.time_ns[part], switches.cpu[part]
        stopped = switches.fields["prev_state"][part] & STOPPED
        number_of = numbering.number_of
        left = number_of.take(switches.fields["prev_pid"][part])
        out = (stopped == 0).view(np.int8)  # OUT or OUT_RUNNABLE
        columns = [Records(left, time_ns, out, cpu)]
        for at_ns, pids, to in wakeups:
            of = _slice(at_ns, begin_ns, end_ns)
            woken = number_of.take(pids[of])
            columns.append(Records(woken, at_ns[of], np.full(len(woken), WAKE, np.int8), to[of]))
        came = number_of.take(switches.fields["next_pid"][part])
        columns.append(Records(came, time_ns, np.full(len(came), IN, np.int8), cpu))
        yield columns
        begin_ns = end_ns


def by_thread(held: Records, *batch: Records) -> Records:
    """Return the records of a batch after those deferred from earlier ones, in order of thread and
    time."""
    merged = joined(held, *batch)
    order = np.flatnonzero(merged.thread >= 0)
    # A stable sort by time, then one by thread. The columns are in order already, which speeds up
    # the first; for numbers of 16 bits the second is a radix sort.
    order = order.take(np.argsort(merged.time_ns.take(order), kind="stable"))
    merged = merged.take(order.take(np.argsort(merged.thread.take(order), kind="stable")))
    came_and_left = _came_and_left_at_once(merged)
    if len(came_and_left):
        order = np.arange(len(merged.thread))
        order[came_and_left], order[came_and_left + 1] = came_and_left + 1, came_and_left
        merged = merged.take(order)
    return merged


def joined(*parts: Records) -> Records:
    """Return all of these, one part after the other."""
    return Records(
        np.concatenate([part.thread for part in parts]),
        np.concatenate([part.time_ns for part in parts]),
        np.concatenate([part.what for part in parts]),
        np.concatenate([part.cpu for part in parts]),
    )


def _slice(time_ns: Nanoseconds, after_ns: int | None, until_ns: int | None) -> slice:
    first = 0 if after_ns is None else int(np.searchsorted(time_ns, after_ns, "right"))
    last = len(time_ns) if until_ns is None else int(np.searchsorted(time_ns, until_ns, "right"))
    return slice(first, last)


def _came_and_left_at_once(records: Records) -> NDArray[np.intp]:
    """Return the switches at which a thread that did not run leaves one CPU and enters another at
    the same timestamp: it had come before it left."""
    what, thread = records.what, records.thread
    at = np.flatnonzero(records.time_ns[1:-1] == records.time_ns[2:]) + 1
    found = (what[at] <= OUT_RUNNABLE) & (what[at + 1] == IN) & (thread[at] == thread[at + 1])
    found &= (what[at - 1] != IN) & (thread[at - 1] == thread[at])
    found &= records.cpu[at] == records.cpu[at + 1]
    where: NDArray[np.intp] = at[found]
    return where
