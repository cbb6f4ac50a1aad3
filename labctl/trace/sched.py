"""Reduce a trace's scheduler events to figures on a machine's threads."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labctl.base.units import samples_needed
from labctl.trace.model import MIGRATE, SWITCH, Events, Nanoseconds, Trace
from labctl.trace.preemption import Preemptors
from labctl.trace.spans import Kind, Spans, spans_of
from labctl.trace.threads import Numbering

_PART = 1 << 20
"""Switches counted at a time, to bound the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Hold a thread's waits for a CPU that began and ended within the window, in order of time."""

    start_ns: Nanoseconds
    length_ns: Nanoseconds
    was_preempted: NDArray[np.bool_]
    """True if it was switched out while runnable; else it was woken up."""

    @property
    def total_ns(self) -> int:
        return int(self.length_ns.sum())

    def percentile(self, q: float) -> int | None:
        """Return the nearest-rank percentile (0 < q < 1) in ns; None if there are too few values
        (METHOD 16)."""
        count = len(self.length_ns)
        if count < samples_needed(q):
            return None
        rank = math.ceil(round(count * q, 9)) - 1
        return int(np.partition(self.length_ns, rank)[rank])

    def histogram(self) -> tuple[tuple[int, int], ...]:
        """Return counts by powers of two: (upper bound in ns, number between the previous bound and
        this one), up to the last non-empty one."""
        _, exponents = np.frexp(self.length_ns.astype(np.float64))
        counts = np.bincount(exponents)
        return tuple((2**power, int(count)) for power, count in enumerate(counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSchedule:
    """Hold a thread's schedule. `on_cpu_ns`: its time on any CPU within the window. `unknown`: the
    number of its spans that are unknown because of missing events, and `unknown_ns` their length
    within the window; `may_have_run_ns`: without those in which it slept or waited, and certainly
    did not run. `preempted_by_ns`: the threads that ran on the CPU that it waited for, by thread; 0
    is the idle task, which runs until the CPU has noticed the work, and -1 unknown. They add up to
    `delays.total_ns`."""

    tid: int
    name: str
    on_cpu_ns: int
    delays: Delays
    migrations: int
    unknown: int
    unknown_ns: int
    may_have_run_ns: int
    preempted_by_ns: Mapping[int, int]

    @property
    def preemptions(self) -> int:
        return int(self.delays.was_preempted.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Hold every thread in the trace's switches or wake-ups, by its id. `lost`: events that the
    recorder lost, in the whole trace."""

    start_ns: int
    end_ns: int
    threads: Mapping[int, ThreadSchedule]
    lost: int


def schedule(
    trace: Trace,
    tids: Collection[int] | None = None,
    *,
    window: tuple[int, int] | None = None,
    preemptors: bool = True,
) -> Schedule:
    """Return the schedule of every thread, or of some.

    `window`: the part of the trace that counts, in ns; without it the whole trace. `preemptors`:
    find the threads that ran while these waited. A thread without a switch in the trace is not in
    the result: whether it slept or ran all along is unknown.
    """
    start_ns, end_ns = window or (trace.start_ns, trace.end_ns)
    if not has_switches(trace):
        return Schedule(start_ns=start_ns, end_ns=end_ns, threads={}, lost=trace.lost)
    everybody = Numbering.of(trace)
    numbering = everybody if tids is None else Numbering.of(trace, tids)
    waits = _Waits(trace.events[SWITCH], numbering)
    sums = _Sums(start_ns, end_ns)
    who_ran = Preemptors(trace, everybody) if preemptors else None
    for batch in spans_of(trace, numbering):
        sums.add(batch)
        is_whole = (batch.start_ns >= start_ns) & (batch.end_ns <= end_ns)
        found = batch.where(np.flatnonzero(batch.is_wait & is_whole))
        waits.add(found)
        if who_ran is not None:
            who_ran.add(found)
    by_preemptor = who_ran.by_thread() if who_ran is not None else {}
    moved = _migrations(trace, start_ns, end_ns)
    threads = {
        tid: ThreadSchedule(
            tid=tid,
            name=trace.names.get(tid, ""),
            on_cpu_ns=total.ran_ns,
            delays=waits.of(tid),
            migrations=moved.get(tid, 0),
            unknown=total.unknown,
            unknown_ns=total.unknown_ns,
            may_have_run_ns=total.unknown_ns - total.off_cpu_ns,
            preempted_by_ns=by_preemptor.get(tid, {}),
        )
        for tid, total in sums.threads().items()
    }
    return Schedule(start_ns=start_ns, end_ns=end_ns, threads=threads, lost=trace.lost)


def has_switches(trace: Trace) -> bool:
    return SWITCH in trace.events and len(trace.events[SWITCH]) > 0


class _Sum(NamedTuple):
    ran_ns: int
    off_cpu_ns: int
    unknown_ns: int
    unknown: int


class _Sums:
    """Add up each thread's spans within a window."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self._start_ns, self._end_ns = start_ns, end_ns
        self._tids: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
        self._parts: list[NDArray[np.int64]] = [np.zeros((len(_Sum._fields), 0), np.int64)]

    def add(self, batch: Spans) -> None:
        """Take spans in order of threads."""
        if not len(batch):
            return
        inside = np.minimum(batch.end_ns, self._end_ns)
        inside -= np.maximum(batch.start_ns, self._start_ns)
        # A span of zero length counts where it is.
        ran = np.where(batch.kind == Kind.RAN, np.maximum(inside, 0), 0)
        firsts = np.append(0, np.flatnonzero(batch.tid[1:] != batch.tid[:-1]) + 1)
        nothing = np.zeros(len(firsts), np.int64)
        ran = np.add.reduceat(ran, firsts)
        self._add(batch.tid[firsts], ran, nothing, nothing, nothing)
        rest = np.flatnonzero((batch.kind >= Kind.UNKNOWN) & (inside >= 0))
        off_cpu = np.where(batch.kind[rest] == Kind.OFF_CPU, inside[rest], 0)
        self._add(batch.tid[rest], 0 * off_cpu, off_cpu, inside[rest], np.ones(len(rest), np.int64))

    def _add(self, tids: NDArray[np.int32], *columns: NDArray[np.int64]) -> None:
        self._tids.append(tids)
        self._parts.append(np.stack(columns))

    def threads(self) -> dict[int, _Sum]:
        """Return the sums by thread, in order."""
        tids, number = np.unique(np.concatenate(self._tids), return_inverse=True)
        sums = np.zeros((len(_Sum._fields), len(tids)), np.int64)
        for total, parts in zip(sums, np.concatenate(self._parts, axis=1), strict=True):
            np.add.at(total, number, parts)
        return dict(zip(tids.tolist(), map(_Sum._make, sums.T.tolist()), strict=True))


class _Waits:
    """Collect each thread's waits in a row of their own: there may be millions in total."""

    def __init__(self, switches: Events, numbering: Numbering) -> None:
        self._numbering = numbering
        # Each wait ends with a switch to its thread.
        most = np.zeros(len(numbering.tids), np.int64)
        for begin in range(0, len(switches), _PART):
            number = numbering.number_of.take(switches.fields["next_pid"][begin : begin + _PART])
            most += np.bincount(number[number >= 0], minlength=len(most))
        self._begins = np.cumsum(most) - most
        self._ends = self._begins.copy()
        # Only the written part takes memory.
        room = int(most.sum())
        self._start_ns = np.empty(room, np.int64)
        self._length_ns = np.empty(room, np.int64)
        self._was_preempted = np.empty(room, np.bool_)

    def add(self, batch: Spans) -> None:
        """Take waits in order of thread and time."""
        if not len(batch):
            return
        number = self._numbering.number_of.take(batch.tid)
        firsts = np.append(0, np.flatnonzero(number[1:] != number[:-1]) + 1)
        own, counts = number[firsts], np.diff(firsts, append=len(number))
        places = np.repeat(self._ends[own] - firsts, counts) + np.arange(len(number))
        self._start_ns[places] = batch.start_ns
        self._length_ns[places] = batch.end_ns - batch.start_ns
        self._was_preempted[places] = batch.kind == Kind.PREEMPTED
        self._ends[own] += counts

    def of(self, tid: int) -> Delays:
        number = self._numbering.number_of[tid]
        own = slice(int(self._begins[number]), int(self._ends[number]))
        return Delays(
            start_ns=self._start_ns[own],
            length_ns=self._length_ns[own],
            was_preempted=self._was_preempted[own],
        )


def _migrations(trace: Trace, start_ns: int, end_ns: int) -> dict[int, int]:
    if MIGRATE not in trace.events:
        return {}
    events = trace.events[MIGRATE]
    inside = (events.time_ns >= start_ns) & (events.time_ns <= end_ns)
    tids, counts = np.unique(events.fields["pid"][inside], return_counts=True)
    return dict(zip(tids.tolist(), counts.tolist(), strict=True))
