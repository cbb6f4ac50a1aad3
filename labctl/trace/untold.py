"""Wake-ups that a trace doesn't tell of, found by what happened before and after.

Linux 6.18 was seen to tell nothing of what some threads do, one CPU's idle task among them, to no
reader: likely, though not proven, its guard against events within events, each thread's own since
6.11 (perf_swevent_get_recursion_context), had stuck. The switch away from that idle task is missing
then, and so is the wake-up that it carries out for another CPU. What asked for the wake-up,
sched_waking, is there: it happens on the CPU that asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import Nanoseconds, Trace
from labctl.trace.numbering import Numbering
from labctl.trace.tracepoints import SWITCH, WAKEUPS, WAKING

_SOON = 1000
"""Events that are looked through for each switch that is missing."""


@dataclass(frozen=True, slots=True)
class Wakeups:
    """Columns of one length, in order of time. `cpu`: where the thread was to run."""

    time_ns: Nanoseconds
    tid: NDArray[np.int64]
    cpu: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Column:
    """Times of one kind of event, in order, of a thread at a time."""

    thread: NDArray[Any]
    time_ns: Nanoseconds

    @classmethod
    def of(cls, numbering: Numbering, tids: NDArray[Any], time_ns: Nanoseconds) -> _Column:
        at = np.flatnonzero(numbering.number_of[tids] >= 0)
        number = numbering.number_of[tids[at]]
        order = np.argsort(number, kind="stable")
        return cls(number[order], time_ns[at[order]])

    def of_thread(self, number: int) -> Nanoseconds:
        first, last = np.searchsorted(self.thread, (number, number + 1))
        return self.time_ns[first:last]


@dataclass(frozen=True, slots=True)
class Missed:
    """Columns of one length: switches (`at`) away from a thread on a CPU that was last seen to go
    to another one (`before`, at `since_ns`); 0 is the idle task."""

    at: NDArray[np.intp]
    before: NDArray[np.int64]
    since_ns: Nanoseconds


def missed_switches(
    time_ns: Nanoseconds,
    cpu: NDArray[np.int32],
    left: NDArray[Any],
    next_up: NDArray[Any],
    went_to: dict[int, tuple[int, int]],
) -> Missed:
    """Between which switches one is missing, but for switches to the idle task.

    `went_to`: by CPU whom it was last seen to go to in the batch before, and when; that of this
    one afterwards.
    """
    order = np.argsort(cpu.astype(np.int16), kind="stable")
    cpus, firsts = np.unique(cpu[order], return_index=True)
    before = np.empty(len(order), np.int64)
    before[1:] = next_up[order[:-1]]
    since_ns = np.empty(len(order), np.int64)
    since_ns[1:] = time_ns[order[:-1]]
    for number, first in zip(cpus.tolist(), firsts.tolist(), strict=True):
        nobody = int(left[order[first]]), 0
        before[first], since_ns[first] = went_to.get(number, nobody)
    for number, end in zip(cpus.tolist(), [*firsts[1:].tolist(), len(order)], strict=True):
        last = order[end - 1]
        went_to[number] = int(next_up[last]), int(time_ns[last])
    found = np.flatnonzero((before != left[order]) & (left[order] != 0))
    return Missed(order[found], before[found], since_ns[found])


def first_seen(trace: Trace, tid: int, cpu: int, after_ns: int, before_ns: int) -> int | None:
    """When an event first shows this thread on this CPU, in between; None where none does soon."""
    found = None
    for name, events in trace.events.items():
        if name == SWITCH:
            continue
        first = int(np.searchsorted(events.time_ns, after_ns, "right"))
        last = min(int(np.searchsorted(events.time_ns, before_ns)), first + _SOON)
        such = (events.tid[first:last] == tid) & (events.cpu[first:last] == cpu)
        if such.any():
            at_ns = int(events.time_ns[first + int(np.argmax(such))])
            found = at_ns if found is None else min(found, at_ns)
    return found


def untold_wakeups(trace: Trace, wanted: Numbering) -> Wakeups:
    """Of threads that slept, then ran on a CPU that had gone idle, with no event between the two
    but the sched_waking. Empty where the trace has none of these."""
    switches = trace.events[SWITCH]
    left = switches.fields["prev_pid"]
    ended = np.empty(0, np.intp)
    if WAKING in trace.events:
        next_up = switches.fields["next_pid"]
        missed = missed_switches(switches.time_ns, switches.cpu, left, next_up, {})
        ended = missed.at[missed.before == 0]
        ended = np.sort(ended[wanted.number_of[left[ended]] >= 0])
    found: list[tuple[int, int, int]] = []
    if len(ended):
        affected = Numbering.of(trace, np.unique(left[ended]).tolist())
        waking = trace.events[WAKING]
        outs = _Column.of(affected, left, switches.time_ns)
        ins = _Column.of(affected, switches.fields["next_pid"], switches.time_ns)
        asked = _Column.of(affected, affected.within(waking.fields["pid"]), waking.time_ns)
        told = _told(trace, affected)
        of = affected.number_of[left[ended]]
        for number, tid in enumerate(affected.tids.tolist()):
            own = ended[of == number]
            times = _of_thread(
                switches.time_ns[own],
                outs=outs.of_thread(number),
                ins=ins.of_thread(number),
                asked=asked.of_thread(number),
                told=told.of_thread(number),
            )
            cpus = switches.cpu[own].tolist()
            found += [(at, tid, cpu) for at, cpu in zip(times, cpus, strict=True) if at is not None]
    columns = np.array(sorted(found), np.int64).reshape(-1, 3)
    return Wakeups(columns[:, 0], columns[:, 1], columns[:, 2])


def _told(trace: Trace, affected: Numbering) -> _Column:
    events = [trace.events[name] for name in WAKEUPS if name in trace.events]
    time_ns = np.concatenate([one.time_ns for one in events] or [np.empty(0, np.int64)])
    tids = np.concatenate([one.fields["pid"] for one in events] or [np.empty(0, np.int64)])
    order = np.argsort(time_ns, kind="stable")
    return _Column.of(affected, affected.within(tids[order]), time_ns[order])


def _of_thread(
    ended: Nanoseconds,
    *,
    outs: Nanoseconds,
    ins: Nanoseconds,
    asked: Nanoseconds,
    told: Nanoseconds,
) -> list[int | None]:
    """When the thread was woken whose runs ended at `ended`; None where it is told, or not known.

    A wake-up may be asked for while the thread is on its way to sleep; then it takes effect when
    the thread sleeps. Those that are told are none that are sought, and each is of one sleep only.
    """
    # Nothing told between it and the next one: it is the one that is missing.
    next_told = np.append(told, np.iinfo(np.int64).max)[np.searchsorted(told, asked)]
    following = np.append(asked[1:], np.iinfo(np.int64).max)
    unanswered = asked[next_told >= following]
    # Before a thread's first switch nothing is known of it.
    outs = np.concatenate([[-1, -1], outs])
    slept = np.searchsorted(outs, ended) - 1
    asleep = outs[slept]
    is_told = np.searchsorted(told, ended) > np.searchsorted(told, asleep, "right")
    is_told |= asleep < 0
    # The run before the sleep began where the thread was switched in, if it is seen; else with a
    # request that is used by now.
    began = np.append(ins, -1)[np.searchsorted(ins, asleep, "right") - 1]
    is_seen = began >= np.maximum(outs[slept - 1], 0)
    passed = np.where(is_seen, np.searchsorted(unanswered, began, "right"), 0)
    candidates = unanswered.tolist()
    found: list[int | None] = []
    used = 0
    for end_ns, asleep_ns, is_known, least in zip(
        ended.tolist(), asleep.tolist(), is_told.tolist(), passed.tolist(), strict=True
    ):
        used = max(used, least)
        if is_known or used >= len(candidates) or candidates[used] >= end_ns:
            found.append(None)
        else:
            found.append(max(candidates[used], asleep_ns))
            used += 1
    return found
