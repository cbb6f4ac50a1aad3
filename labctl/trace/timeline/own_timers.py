"""Find timers that tasks started for themselves, to sleep until they expire. Pure.

Such a timer lies on the task's own stack (hrtimer_nanosleep() in kernel/time/hrtimer.c), where no
other task starts one while this one lives; what several tasks are seen to start is a CPU's timer.
The task's own thread starts it, so the event is there also where a kernel keeps back what the idle
task does (`perfdata_switches`): the timer's expiry, and the wake-up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labctl.trace.keys import Keys
from labctl.trace.model import Events, Nanoseconds, Numbers, Trace
from labctl.trace.timeline.lane_spans import Flags
from labctl.trace.tracepoints import SWITCH, TIMER_START

_Keys = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OwnTimers:
    """Hold columns in order of task and time, which are the `key`."""

    key: _Keys
    started_ns: Nanoseconds
    due_ns: Nanoseconds

    @classmethod
    def of(cls, trace: Trace, keys: Keys) -> OwnTimers:
        """Return those of the tasks that are `keys.things`; none where no starts were recorded."""
        starts = trace.events.get(TIMER_START)
        if starts is None or not {"hrtimer", "expires"} <= starts.fields.keys():
            nothing = np.zeros(0, dtype=np.int64)
            return cls(nothing, nothing, nothing)
        rows = np.flatnonzero(np.isin(starts.tid, keys.things))
        rows = rows[_is_of_one(trace, starts, rows, keys)]
        key = keys.key(starts.tid[rows], starts.time_ns[rows])
        order = np.argsort(key, kind="stable")
        rows = rows[order]
        due_ns = starts.fields["expires"][rows].astype(np.int64)
        return cls(key[order], starts.time_ns[rows], due_ns)

    def __len__(self) -> int:
        return len(self.key)

    def last_between(self, came: _Keys, slept: _Keys) -> NDArray[np.intp]:
        """Return which one each task started last from one key up to another; -1 for none."""
        at = np.searchsorted(self.key, slept, "right") - 1
        is_any = (at >= 0) & (np.append(self.key, -1)[at] >= came)
        found: NDArray[np.intp] = np.where(is_any, at, -1)
        return found

    def unused_ns(self, used: NDArray[np.intp]) -> Nanoseconds:
        """Return when those were started that aren't among these; -1 is none."""
        unused = np.ones(len(self.key), dtype=bool)
        unused[used[used >= 0]] = False
        return self.started_ns[unused]


def _is_of_one(trace: Trace, starts: Events, rows: NDArray[np.intp], keys: Keys) -> Flags:
    """Return whether a task is the only one that starts this timer between its own first and last
    event: another one had the stack before, or gets it after."""
    if not len(rows):
        return np.zeros(0, dtype=bool)
    timer = starts.fields["hrtimer"]
    timers = Keys.of(timer, trace)
    if not timers.fits:
        return np.zeros(len(rows), dtype=bool)
    task = np.searchsorted(keys.things, starts.tid[rows])
    begin, end = _lifetimes(trace, starts, rows, keys)
    pair = np.searchsorted(timers.things, timer[rows]) * len(keys.things) + task
    _, first, inverse, own = np.unique(
        pair, return_index=True, return_inverse=True, return_counts=True
    )
    by_all = np.sort(timers.key(timer, starts.time_ns))
    which, whose = timer[rows[first]], task[first]
    until = np.searchsorted(by_all, timers.key(which, end[whose]), "right")
    by_any = until - np.searchsorted(by_all, timers.key(which, begin[whose]), "left")
    is_of_one: Flags = (by_any == own)[inverse]
    return is_of_one


def _lifetimes(
    trace: Trace, starts: Events, rows: NDArray[np.intp], keys: Keys
) -> tuple[Nanoseconds, Nanoseconds]:
    """Return the first and the last moment at which each task is seen to run."""
    begin = np.full(len(keys.things), np.iinfo(np.int64).max)
    end = np.full(len(keys.things), np.iinfo(np.int64).min)
    seen: list[tuple[Numbers, Nanoseconds]] = [(starts.tid[rows], starts.time_ns[rows])]
    if SWITCH in trace.events:
        switches = trace.events[SWITCH]
        for field in ("prev_pid", "next_pid"):
            own = np.isin(switches.fields[field], keys.things)
            seen.append((switches.fields[field][own], switches.time_ns[own]))
    for tid, time_ns in seen:
        task = np.searchsorted(keys.things, tid)
        np.minimum.at(begin, task, time_ns)
        np.maximum.at(end, task, time_ns)
    return begin, end
