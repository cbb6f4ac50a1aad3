"""Find what a trace's scheduler events say of each thread, as records in the thread's own order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import Nanoseconds, Trace
from labctl.trace.numbering import Mask, Numbering
from labctl.trace.tracepoints import STOPPED, SWITCH, WAKEUPS

BATCH = 30_000
"""Switches that are worked on at a time: it bounds the memory."""

OUT, OUT_RUNNABLE, WAKE, IN, UNSEEN = range(5)


@dataclass(frozen=True, slots=True)
class Records:
    """Hold what happened to threads, as columns. `thread`: as `Numbering` has it. `what`: OUT and
    OUT_RUNNABLE when a CPU left it, WAKE with its wake-up, IN when a CPU went to it; UNSEEN before
    anything is known of it."""

    thread: NDArray[Any]
    time_ns: Nanoseconds
    what: NDArray[np.int8]
    cpu: NDArray[np.int32]

    def take(self, chosen: NDArray[Any]) -> Records:
        """Return those of a mask, or of indices in their order."""
        return Records(
            self.thread[chosen], self.time_ns[chosen], self.what[chosen], self.cpu[chosen]
        )

    @property
    def is_last(self) -> Mask:
        """Return which are the last of their thread, where these are in order of threads."""
        found = np.ones(len(self.thread), dtype=bool)
        np.not_equal(self.thread[1:], self.thread[:-1], out=found[:-1])
        return found


def batches(trace: Trace, numbering: Numbering) -> Iterator[Records]:
    """Yield the records of a trace that has sched_switch, in batches that follow one another in
    time; within one they are in no order that one could go by."""
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
        out = np.where(stopped == 0, OUT_RUNNABLE, OUT).astype(np.int8)
        left, next_up = switches.fields["prev_pid"][part], switches.fields["next_pid"][part]
        # In the order in which things happen that have the same time.
        columns = [chosen(numbering, left, time_ns, out, cpu)]
        for at_ns, pids, to in wakeups:
            of = _slice(at_ns, begin_ns, end_ns)
            columns.append(chosen(numbering, pids[of], at_ns[of], WAKE, to[of]))
        columns.append(chosen(numbering, next_up, time_ns, IN, cpu))
        yield joined(*columns)
        begin_ns = end_ns


def by_thread(held: Records, batch: Records) -> Records:
    """Return the records of a batch after those that were held back of earlier ones, in order of
    thread and time."""
    merged = joined(held, batch)
    # Twice a stable sort, by time and then by thread. The columns are in order already, which the
    # first makes use of; of numbers of 16 bits the second is a radix sort.
    order = np.argsort(merged.time_ns, kind="stable")
    merged = merged.take(order[np.argsort(merged.thread[order], kind="stable")])
    came_and_left = _came_and_left_at_once(merged)
    if len(came_and_left):
        order = np.arange(len(merged.thread))
        order[came_and_left], order[came_and_left + 1] = came_and_left + 1, came_and_left
        merged = merged.take(order)
    return merged


def chosen(
    numbering: Numbering, tids: NDArray[Any], time_ns: Nanoseconds, what: Any, cpu: NDArray[Any]
) -> Records:
    """Return records of the numbered ones of these threads."""
    number = numbering.number_of[tids]
    is_chosen = number >= 0
    told = np.broadcast_to(np.asarray(what, np.int8), len(tids))
    return Records(
        number[is_chosen],
        time_ns[is_chosen],
        told[is_chosen],
        cpu[is_chosen].astype(np.int32, copy=False),
    )


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
    """Return where a thread that didn't run leaves a CPU, and comes to it next at the same time: it
    had come before it left."""
    what, thread = records.what, records.thread
    found = (what[1:-1] <= OUT_RUNNABLE) & (what[2:] == IN) & (thread[1:-1] == thread[2:])
    found &= records.time_ns[1:-1] == records.time_ns[2:]
    found &= (what[:-2] != IN) & (thread[:-2] == thread[1:-1])
    found &= records.cpu[1:-1] == records.cpu[2:]
    return np.flatnonzero(found) + 1
