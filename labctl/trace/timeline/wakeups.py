"""Find when tasks were due, were woken, and ran, from a machine's own events. Pure.

A sleep ends with the task's next switch-in, whether or not an event shows what ended it: a kernel
may hide wake-ups (`perf.switches`), and a recorder may lose them. Those are reported as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labctl.trace.model import (
    ENDED,
    STOPPED,
    SWITCH,
    TIMER_EXPIRE,
    TIMER_START,
    UNTOLD,
    WAKEUP,
    WAKING,
    Events,
    Gap,
    Nanoseconds,
    Numbers,
    Trace,
)
from labctl.trace.timeline.lanes import Flags, Holes

# Combine things and times into one number, so that each thing's events are in one row.


_MOST = 2**62


@dataclass(frozen=True, slots=True)
class Keys:
    """Hold keys. `things`: in order, each once."""

    things: Numbers
    begin_ns: int
    length_ns: int

    @classmethod
    def of(cls, things: ArrayLike, trace: Trace) -> Keys:
        """Make keys for moments of a trace's events. Raises ValueError when it has none."""
        times = [events.time_ns for events in trace.events.values() if len(events)]
        begin = min(int(time[0]) for time in times)
        end = max(int(time[-1]) for time in times)
        return cls(np.unique(np.asarray(things)), begin, end - begin + 1)

    @property
    def fits(self) -> bool:
        """Return whether one number can hold both: a guest may write too many things and times."""
        return len(self.things) * self.length_ns <= _MOST

    def key(self, thing: Numbers, time_ns: Nanoseconds) -> NDArray[np.int64]:
        """Return the keys of things that are among `things`."""
        number = np.searchsorted(self.things, thing).astype(np.int64)
        return number * self.length_ns + (time_ns - self.begin_ns)

    def number(self, key: NDArray[np.int64]) -> NDArray[np.int64]:
        return key // self.length_ns

    def time_ns(self, key: NDArray[np.int64]) -> Nanoseconds:
        return key % self.length_ns + self.begin_ns


def last(keys: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the greatest of `keys` that is not above each wanted one; -1 for none."""
    if not len(keys):
        return np.full(len(wanted), -1)
    in_order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[in_order], wanted, "right") - 1
    found: NDArray[np.int64] = np.where(place >= 0, in_order[np.maximum(place, 0)], -1)
    return found


# Find the state of tasks between one of their switches and the next: running, waiting, or asleep.
# Pure.
#
# `spans` finds that of every thread of a host, in batches; this module handles a few tasks, at
# once.


RUNS, WAITS, SLEEPS, _ENDS = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stays:
    """Hold columns of one length, in order of task and time. `what`: RUNS from a switch to the
    task, WAITS or SLEEPS from one away from it; a task that left in an unknown state may sleep.
    `cpu` and `then_cpu`: of the switch at either end. `then_runs`: the one at the end is one to the
    task."""

    tid: NDArray[np.int32]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    what: NDArray[np.int8]
    cpu: Numbers
    then_cpu: Numbers
    then_runs: Flags

    @classmethod
    def of(cls, switches: Events, keys: Keys) -> Stays:
        """Return the stays of the tasks that are `keys.things`; their state after their last switch
        is left out."""
        left = np.flatnonzero(np.isin(switches.fields["prev_pid"], keys.things))
        came = np.flatnonzero(np.isin(switches.fields["next_pid"], keys.things))
        state = switches.fields["prev_state"][left]
        what = np.full(len(left) + len(came), RUNS, np.int8)
        what[: len(left)] = np.where(state & STOPPED, SLEEPS, WAITS)
        what[: len(left)][(state & ENDED != 0) & (state != UNTOLD)] = _ENDS
        pids = switches.fields["prev_pid"][left], switches.fields["next_pid"][came]
        tid = np.concatenate(pids).astype(np.int32, copy=False)
        row = np.concatenate((left, came))
        del left, came, state, pids
        # Two stable sorts; of two switches at one time the one away from the task comes first.
        order = np.argsort(switches.time_ns[row], kind="stable")
        number = np.searchsorted(keys.things, tid[order])
        few = len(keys.things) < 1 << 15  # for numbers of 16 bits it is a radix sort
        order = order[np.argsort(number.astype(np.int16) if few else number, kind="stable")]
        del number
        tid, what, row = tid[order], what[order], row[order]
        del order
        time_ns, cpu = switches.time_ns[row], switches.cpu[row]
        del row
        first = np.flatnonzero((tid[1:] == tid[:-1]) & (what[:-1] != _ENDS))
        return cls(
            tid=tid[first],
            start_ns=time_ns[first],
            end_ns=time_ns[first + 1],
            what=what[first],
            cpu=cpu[first],
            then_cpu=cpu[first + 1],
            then_runs=what[first + 1] == RUNS,
        )

    def is_whole(self, gaps: Collection[Gap]) -> Flags:
        """Return whether no switch of the task is missing in between: none that its next one
        presupposes, and none that may have been lost. A running task's CPU records its events."""
        runs = self.what == RUNS
        is_whole: Flags = runs != self.then_runs
        until_ns = Holes.of(gaps).of_spans(self.start_ns, self.end_ns)[0]
        is_whole &= runs | (until_ns == self.end_ns)
        for cpu in {gap.cpu for gap in gaps}:
            own = np.flatnonzero(runs & (self.cpu == cpu))
            until_ns = Holes.of(gaps, cpu).of_spans(self.start_ns[own], self.end_ns[own])[0]
            is_whole[own] &= until_ns == self.end_ns[own]
        return is_whole

    def came_ns(self, rows: NDArray[np.intp], begin_ns: int) -> Nanoseconds:
        """Return when each task had come to the CPU that it left then. `begin_ns`: of the trace,
        for tasks that were there already."""
        before = np.maximum(rows - 1, 0)
        follows = (rows > 0) & (self.tid[before] == self.tid[rows])
        return np.where(follows, self.start_ns[before], begin_ns)

    def slept_again_ns(self, rows: NDArray[np.intp]) -> Nanoseconds:
        """Return when each task began to sleep after these ended; if it is not seen to, the end of
        its last stay."""
        begins = np.flatnonzero(self.what == SLEEPS)
        lasts = np.flatnonzero(np.append(self.tid[1:] != self.tid[:-1], True))
        own_last = lasts[np.searchsorted(lasts, rows, "left")]
        following = np.searchsorted(begins, rows, "right")
        next_sleep = np.append(begins, len(self.tid))[following]
        is_own = next_sleep <= own_last
        at = np.where(is_own, next_sleep, own_last)
        return np.where(is_own, self.start_ns[at], self.end_ns[at])


_LONGEST_LATENESS_NS = 60_000_000_000
"""Limit on a timer's lateness. Beyond it `expires` is a time of another clock than
CLOCK_MONOTONIC."""
_NEVER = np.iinfo(np.int64).max

_Keys = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wakeups:
    """Hold wake-ups as columns of one length, by the recording machine's clock.

    `meant_ns`: when the timer that woke the task was due (`timed`); else when it was woken.
    `ran_ns`: when it was switched in next, on `cpu`; `again_ns`: when it slept again. `inferred`:
    no event shows the wake-up, which was at some time from `meant_ns` to `ran_ns`; `woken_ns` is
    the earliest.
    """

    tid: NDArray[np.int64]
    cpu: NDArray[np.int64]
    meant_ns: Nanoseconds
    woken_ns: Nanoseconds
    ran_ns: Nanoseconds
    again_ns: Nanoseconds
    timed: Flags
    inferred: Flags

    def __len__(self) -> int:
        return len(self.tid)

    @property
    def latency_ns(self) -> Nanoseconds:
        return self.ran_ns - self.meant_ns

    def within(self, start_ns: int, end_ns: int) -> Wakeups:
        """Return those that were due and came in a window."""
        return self.take((self.meant_ns >= start_ns) & (self.ran_ns <= end_ns))

    def take(self, chosen: Flags | NDArray[np.int64]) -> Wakeups:
        return Wakeups(
            tid=self.tid[chosen],
            cpu=self.cpu[chosen],
            meant_ns=self.meant_ns[chosen],
            woken_ns=self.woken_ns[chosen],
            ran_ns=self.ran_ns[chosen],
            again_ns=self.again_ns[chosen],
            timed=self.timed[chosen],
            inferred=self.inferred[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Hold stretches in which a task was, or may have been, woken without an event. A task has one
    after the other."""

    start_ns: Nanoseconds
    end_ns: Nanoseconds

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def total_ns(self) -> int:
        """Return the maximum total wait of their wake-ups."""
        return int((self.end_ns - self.start_ns).sum())

    def within(self, start_ns: int, end_ns: int) -> Unseen:
        """Return those that touch a window, cut to it."""
        start, end = np.maximum(self.start_ns, start_ns), np.minimum(self.end_ns, end_ns)
        inside = start < end
        return Unseen(start_ns=start[inside], end_ns=end[inside])


@dataclass(frozen=True, slots=True, kw_only=True)
class Woken:
    """Hold the ends of tasks' sleeps. `unslept_ns`: when they started a timer that expired before
    they slept."""

    wakeups: Wakeups
    unseen: Unseen
    unslept_ns: Nanoseconds

    def only(self, chosen: Flags) -> Woken:
        """Return the value with only some of the wake-ups."""
        return replace(self, wakeups=self.wakeups.take(chosen))

    def within(self, start_ns: int, end_ns: int) -> Woken:
        inside = (self.unslept_ns >= start_ns) & (self.unslept_ns <= end_ns)
        return Woken(
            wakeups=self.wakeups.within(start_ns, end_ns),
            unseen=self.unseen.within(start_ns, end_ns),
            unslept_ns=self.unslept_ns[inside],
        )


@dataclass(frozen=True, slots=True)
class _OwnTimers:
    """Hold timers that tasks started for themselves, to sleep until they expire: columns in order
    of task and time, which are the `key`.

    Such a timer lies on the task's own stack (hrtimer_nanosleep() in kernel/time/hrtimer.c), where
    no other task starts one during its lifetime; a timer that several tasks start is a CPU's. The
    task's own thread starts it, so the event exists even if a kernel hides the idle task's events
    (`perf.switches`): the timer's expiry, and the wake-up.
    """

    key: _Keys
    started_ns: Nanoseconds
    due_ns: Nanoseconds

    @classmethod
    def of(cls, trace: Trace, keys: Keys) -> _OwnTimers:
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
        """Return which one each task started last between two keys; -1 for none."""
        at = np.searchsorted(self.key, slept, "right") - 1
        is_any = (at >= 0) & (np.append(self.key, -1)[at] >= came)
        found: NDArray[np.intp] = np.where(is_any, at, -1)
        return found

    def unused_ns(self, used: NDArray[np.intp]) -> Nanoseconds:
        """Return the start times of those that are not among these; -1 is none."""
        unused = np.ones(len(self.key), dtype=bool)
        unused[used[used >= 0]] = False
        return self.started_ns[unused]


def woken(trace: Trace, tids: Sequence[int], *, by_timers: bool = False) -> Woken:
    """Return what ended the sleeps of some tasks, each from the switch away to the next switch-in.

    `by_timers`: only their own timers wake these tasks, once they have started one. Then a wake-up
    without an event is inferred: a task that started a timer, slept, and came after it was due was
    woken by it.
    """
    switches = trace.events.get(SWITCH)
    if switches is None or not len(switches) or not len(tids):
        return _nothing()
    keys = Keys.of(tids, trace)
    if not keys.fits:
        return _nothing()
    stays = Stays.of(switches, keys)
    is_whole = stays.is_whole(trace.gaps)
    asleep = np.flatnonzero(is_whole & (stays.what == SLEEPS))
    tid = stays.tid[asleep].astype(np.int64)
    slept_ns, ran_ns = stays.start_ns[asleep], stays.end_ns[asleep]
    slept, ran = keys.key(tid, slept_ns), keys.key(tid, ran_ns)

    told = _told(trace, keys)
    first = np.searchsorted(told.key, slept, "left")
    is_told = told.key[first] <= ran
    woken_ns = np.where(is_told, keys.time_ns(told.key[first]), ran_ns)
    due_ns, timed = _due(trace, tid, woken_ns, told.cpu[first], slept_ns)
    timed &= is_told

    timers = _OwnTimers.of(trace, keys)
    timer = timers.last_between(keys.key(tid, stays.came_ns(asleep, keys.begin_ns)), slept)
    own_ns = np.append(timers.due_ns, 0)[timer]
    is_own = ~timed & (timer >= 0) & (own_ns <= woken_ns)
    is_own &= woken_ns - own_ns < _LONGEST_LATENESS_NS
    inferred = is_own & ~is_told & by_timers
    is_known = is_told | inferred
    found = Wakeups(
        tid=tid,
        cpu=stays.then_cpu[asleep].astype(np.int64),
        meant_ns=np.where(is_own, own_ns, np.where(timed, due_ns, woken_ns)),
        woken_ns=np.where(inferred, own_ns, woken_ns),
        ran_ns=ran_ns,
        again_ns=stays.slept_again_ns(asleep),
        timed=timed | is_own,
        inferred=inferred,
    ).take(is_known)

    # A task that sleeps without a timer, although it has had some, waits for something else.
    unknown = asleep[:0] if by_timers and len(timers) else asleep[~is_known]
    unseen = np.concatenate((unknown, np.flatnonzero(~is_whole)))
    return Woken(
        wakeups=found,
        unseen=Unseen(start_ns=stays.start_ns[unseen], end_ns=stays.end_ns[unseen]),
        unslept_ns=timers.unused_ns(timer),
    )


@dataclass(frozen=True, slots=True)
class _Told:
    """Hold events that show wake-ups, in order of task and time, and one after all of them."""

    key: NDArray[np.int64]
    cpu: Numbers


def _told(trace: Trace, keys: Keys) -> _Told:
    """Return the events of the waker's request, and of the answer: only one of them may exist."""
    found = [np.array([_NEVER])]
    cpus: list[NDArray[Any]] = [np.array([-1], dtype=np.int16)]
    for events in (trace.events[name] for name in (WAKING, WAKEUP) if name in trace.events):
        own = np.flatnonzero(np.isin(events.fields["pid"], keys.things))
        found.append(keys.key(events.fields["pid"][own], events.time_ns[own]))
        cpus.append(events.cpu[own])
        del own
    key = np.concatenate(found)
    del found
    order = np.argsort(key, kind="stable")
    return _Told(key[order], np.concatenate(cpus)[order])


def _due(
    trace: Trace,
    tid: NDArray[np.int64],
    woken_ns: Nanoseconds,
    cpu: Numbers,
    slept_ns: Nanoseconds,
) -> tuple[Nanoseconds, Flags]:
    """Return when the timer that woke each task was due, and whether that is known.

    It is the last timer that expired on the CPU that woke the task, if that was while the task
    slept, and the task itself had started it: hrtimer_nanosleep() does so, and a tick's timer does
    not.
    """
    starts, expiries = trace.events.get(TIMER_START), trace.events.get(TIMER_EXPIRE)
    never = np.zeros(len(tid), dtype=np.int64), np.zeros(len(tid), dtype=bool)
    if starts is None or expiries is None or not len(starts) or not len(expiries):
        return never
    if not {"hrtimer", "expires"} <= starts.fields.keys() or "hrtimer" not in expiries.fields:
        return never
    by_cpu = Keys.of(expiries.cpu, trace)
    at = last(by_cpu.key(expiries.cpu, expiries.time_ns), by_cpu.key(cpu, woken_ns))
    expired_ns, timer = expiries.time_ns[at], expiries.fields["hrtimer"][at]
    known = (at >= 0) & (expiries.cpu[at] == cpu)
    known &= (expired_ns >= slept_ns) & (expired_ns <= woken_ns)
    by_timer = Keys.of(starts.fields["hrtimer"], trace)
    at = last(
        by_timer.key(starts.fields["hrtimer"], starts.time_ns), by_timer.key(timer, expired_ns)
    )
    due_ns = starts.fields["expires"][at].astype(np.int64)
    known &= (at >= 0) & (starts.fields["hrtimer"][at] == timer) & (starts.tid[at] == tid)
    known &= (due_ns <= expired_ns) & (expired_ns - due_ns < _LONGEST_LATENESS_NS)
    return due_ns, known


def _nothing() -> Woken:
    nothing = np.zeros(0, dtype=np.int64)
    return Woken(
        wakeups=Wakeups(
            tid=nothing,
            cpu=nothing,
            meant_ns=nothing,
            woken_ns=nothing,
            ran_ns=nothing,
            again_ns=nothing,
            timed=nothing.astype(bool),
            inferred=nothing.astype(bool),
        ),
        unseen=Unseen(start_ns=nothing, end_ns=nothing),
        unslept_ns=nothing,
    )


def _is_of_one(trace: Trace, starts: Events, rows: NDArray[np.intp], keys: Keys) -> Flags:
    """Return whether a task is the only one that starts this timer between its own first and last
    event: another one had the stack before, or gets it afterwards."""
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
    """Return the first and the last time at which each task is seen running."""
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
