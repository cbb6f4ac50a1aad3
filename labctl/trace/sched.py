"""Compute what a machine's scheduler did to its threads: a trace's events reduced to figures."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labctl.base.percentiles import samples_needed
from labctl.trace.model import Nanoseconds, Trace
from labctl.trace.preemption import who_ran
from labctl.trace.spans import Kind, Spans, spans
from labctl.trace.tracepoints import MIGRATE, SWITCH

_PART = 30_000
"""Waits that are put in order at a time: it bounds the memory."""


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
        """Return the nearest-rank percentile (0 < q < 1) in ns; None of too few values (METHOD
        16)."""
        count = len(self.length_ns)
        if count < samples_needed(q):
            return None
        rank = math.ceil(round(count * q, 9)) - 1
        return int(np.partition(self.length_ns, rank)[rank])

    def histogram(self) -> tuple[tuple[int, int], ...]:
        """Return counts by powers of two: (upper bound in ns, how many lie between the bound before
        and this one), up to the last that isn't empty."""
        _, exponents = np.frexp(self.length_ns.astype(np.float64))
        counts = np.bincount(exponents)
        return tuple((2**power, int(count)) for power, count in enumerate(counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSchedule:
    """Hold a thread's schedule. `on_cpu_ns`: its time on any CPU within the window. `unknown`: how
    many of its spans aren't known, since events of them are missing, and `unknown_ns` how long
    those were within the window; `may_have_run_ns`: without those in which it slept or waited, and
    surely didn't run. `preempted_by_ns`: who ran on the CPU that it waited for, while it did, by
    thread; 0 is the idle task, which runs until the CPU has seen that there is work, and -1 what
    events don't tell. They add up to `delays.total_ns`."""

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
    """Hold every thread that the trace's switches or wake-ups name, by its id. `lost`: events that
    the recorder lost, in all of the trace."""

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
    """Return what became of every thread, or of some.

    `window`: the part of the trace that counts, in ns; without it all of the trace. `preemptors`:
    find out who ran while they waited. A thread without a switch in the trace is none of the
    result's: whether it slept or ran all along isn't known.
    """
    start_ns, end_ns = window or (trace.start_ns, trace.end_ns)
    ran: dict[int, int] = {}
    unknown: dict[int, int] = {}
    unknown_ns: dict[int, int] = {}
    off_cpu_ns: dict[int, int] = {}
    seen: set[int] = set()
    most = len(trace.events[SWITCH]) if SWITCH in trace.events else 0
    waits = _Waits(most, with_cpus=preemptors)
    for batch in spans(trace, tids):
        inside = np.minimum(batch.end_ns, end_ns) - np.maximum(batch.start_ns, start_ns)
        # One that lasts no time at all counts where it is.
        is_inside = (batch.end_ns >= start_ns) & (batch.start_ns <= end_ns)
        seen.update(np.unique(batch.tid).tolist())
        _add(ran, batch.tid, inside, is_inside & (batch.kind == Kind.RAN))
        is_off_cpu = is_inside & (batch.kind == Kind.OFF_CPU)
        is_unknown = is_off_cpu | (is_inside & (batch.kind == Kind.UNKNOWN))
        _add(off_cpu_ns, batch.tid, inside, is_off_cpu)
        _add(unknown_ns, batch.tid, inside, is_unknown)
        _add(unknown, batch.tid, np.ones_like(inside), is_unknown)
        is_whole = (batch.start_ns >= start_ns) & (batch.end_ns <= end_ns)
        waits.add(batch.where(batch.is_wait & is_whole))
    found = waits.ordered()
    by_preemptor = who_ran(trace, found) if preemptors else {}
    moved = _migrations(trace, start_ns, end_ns)
    firsts = np.searchsorted(found.tid, sorted(seen), "left")
    lasts = np.searchsorted(found.tid, sorted(seen), "right")
    threads = {}
    for tid, first, last in zip(sorted(seen), firsts, lasts, strict=True):
        threads[tid] = ThreadSchedule(
            tid=tid,
            name=trace.names.get(tid, ""),
            on_cpu_ns=ran.get(tid, 0),
            delays=Delays(
                start_ns=found.start_ns[first:last],
                length_ns=found.end_ns[first:last] - found.start_ns[first:last],
                was_preempted=found.kind[first:last] == Kind.PREEMPTED,
            ),
            migrations=moved.get(tid, 0),
            unknown=unknown.get(tid, 0),
            unknown_ns=unknown_ns.get(tid, 0),
            may_have_run_ns=unknown_ns.get(tid, 0) - off_cpu_ns.get(tid, 0),
            preempted_by_ns=by_preemptor.get(tid, {}),
        )
    return Schedule(start_ns=start_ns, end_ns=end_ns, threads=threads, lost=trace.lost)


def has_switches(trace: Trace) -> bool:
    return SWITCH in trace.events and len(trace.events[SWITCH]) > 0


def _add(
    totals: dict[int, int], tid: NDArray[np.int32], value: Nanoseconds, chosen: NDArray[np.bool_]
) -> None:
    """Add each thread's values to its total. A sum of floats: exact below 2**53 ns, 104 days."""
    if not chosen.any():
        return
    found, number = np.unique(tid[chosen], return_inverse=True)
    sums = np.bincount(number, weights=value[chosen])
    for one, total in zip(found.tolist(), sums.tolist(), strict=True):
        totals[one] = totals.get(one, 0) + int(total)


class _Waits:
    """Columns that waits are gathered in: of all threads there may be millions. `most`: how many
    there may be; each ends with a switch. Without `with_cpus` their CPUs are -1."""

    def __init__(self, most: int, *, with_cpus: bool) -> None:
        # Of these only what is written to takes memory.
        self._columns: dict[str, NDArray[Any]] = {
            "tid": np.empty(most, np.int32),
            "start_ns": np.empty(most, np.int64),
            "end_ns": np.empty(most, np.int64),
            "kind": np.empty(most, np.int8),
        }
        if with_cpus:
            self._columns["cpu"] = np.empty(most, np.int32)
        self._count = 0

    def add(self, batch: Spans) -> None:
        new = slice(self._count, self._count + len(batch))
        for name, column in self._columns.items():
            column[new] = getattr(batch, name)
        self._count = new.stop

    def ordered(self) -> Spans:
        """Return all of them, by thread and time: batches follow one another in time."""
        tids = self._columns["tid"][: self._count]
        highest = int(tids.max(initial=0))
        counts = np.zeros(highest + 1, np.int64)
        for part in self._parts():
            counts += np.bincount(tids[part], minlength=len(counts))
        for name in [name for name in self._columns if name != "tid"]:
            # One column at a time is in memory twice.
            column = self._columns[name]
            self._columns[name] = np.empty_like(column[: self._count])
            for part, places in self._places(tids, np.cumsum(counts) - counts):
                self._columns[name][places] = column[part]
        self._columns["tid"] = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        nowhere = np.broadcast_to(np.int32(-1), self._count)
        return Spans(**{"cpu": nowhere} | self._columns)

    def _places(
        self, tids: NDArray[np.int32], following: NDArray[np.int64]
    ) -> Iterator[tuple[slice, NDArray[np.int64]]]:
        """Yield where each part's rows belong; `following`: where the next row of each thread
        does."""
        for part in self._parts():
            order = np.argsort(tids[part], kind="stable")
            found, firsts, counts = np.unique(
                tids[part][order], return_index=True, return_counts=True
            )
            places = np.empty(len(order), np.int64)
            places[order] = np.repeat(following[found] - firsts, counts) + np.arange(len(order))
            following[found] += counts
            yield part, places

    def _parts(self) -> Iterator[slice]:
        for first in range(0, self._count, _PART):
            yield slice(first, min(first + _PART, self._count))


def _migrations(trace: Trace, start_ns: int, end_ns: int) -> dict[int, int]:
    if MIGRATE not in trace.events:
        return {}
    events = trace.events[MIGRATE]
    inside = (events.time_ns >= start_ns) & (events.time_ns <= end_ns)
    tids, counts = np.unique(events.fields["pid"][inside], return_counts=True)
    return dict(zip(tids.tolist(), counts.tolist(), strict=True))
