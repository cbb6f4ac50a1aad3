"""Compute what a machine's scheduler did to its threads: a trace's events reduced to figures."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labctl.base.percentiles import samples_needed
from labctl.trace.model import Nanoseconds, Trace
from labctl.trace.preemption import who_ran
from labctl.trace.spans import Kind, Spans, spans
from labctl.trace.tracepoints import MIGRATE, SWITCH


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
    most = len(trace.events[SWITCH]) if SWITCH in trace.events else 0
    waits = _Waits(most, with_cpus=preemptors)
    sums = _Sums(start_ns, end_ns)
    for batch in spans(trace, tids):
        sums.add(batch)
        is_whole = (batch.start_ns >= start_ns) & (batch.end_ns <= end_ns)
        waits.add(batch.where(np.flatnonzero(batch.is_wait & is_whole)))
    found = waits.ordered()
    by_preemptor = who_ran(trace, found) if preemptors else {}
    moved = _migrations(trace, start_ns, end_ns)
    seen = sums.threads()
    tids_seen = np.array([*seen], dtype=found.tid.dtype)  # of another one, all would be copied
    firsts = np.searchsorted(found.tid, tids_seen, "left")
    lasts = np.searchsorted(found.tid, tids_seen, "right")
    length_ns = np.subtract(found.end_ns, found.start_ns, out=found.end_ns)  # the ends are used
    was_preempted = found.kind == Kind.PREEMPTED
    threads = {}
    for (tid, total), first, last in zip(seen.items(), firsts, lasts, strict=True):
        threads[tid] = ThreadSchedule(
            tid=tid,
            name=trace.names.get(tid, ""),
            on_cpu_ns=total.ran_ns,
            delays=Delays(
                start_ns=found.start_ns[first:last],
                length_ns=length_ns[first:last],
                was_preempted=was_preempted[first:last],
            ),
            migrations=moved.get(tid, 0),
            unknown=total.unknown,
            unknown_ns=total.unknown_ns,
            may_have_run_ns=total.unknown_ns - total.off_cpu_ns,
            preempted_by_ns=by_preemptor.get(tid, {}),
        )
    return Schedule(start_ns=start_ns, end_ns=end_ns, threads=threads, lost=trace.lost)


def has_switches(trace: Trace) -> bool:
    return SWITCH in trace.events and len(trace.events[SWITCH]) > 0


class _Sum(NamedTuple):
    ran_ns: int
    off_cpu_ns: int
    unknown_ns: int
    unknown: int


class _Sums:
    """Add up what each thread's spans come to within a window."""

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
        # One that lasts no time at all counts where it is.
        is_inside = inside >= 0
        is_off_cpu = is_inside & (batch.kind == Kind.OFF_CPU)
        is_unknown = is_off_cpu | (is_inside & (batch.kind == Kind.UNKNOWN))
        firsts = np.append(0, np.flatnonzero(batch.tid[1:] != batch.tid[:-1]) + 1)
        self._tids.append(batch.tid[firsts])
        self._parts.append(
            np.stack(
                [
                    np.add.reduceat(inside * (is_inside & (batch.kind == Kind.RAN)), firsts),
                    np.add.reduceat(inside * is_off_cpu, firsts),
                    np.add.reduceat(inside * is_unknown, firsts),
                    np.add.reduceat(is_unknown, firsts, dtype=np.int64),
                ]
            )
        )

    def threads(self) -> dict[int, _Sum]:
        """Return the sums by thread, in order."""
        tids, number = np.unique(np.concatenate(self._tids), return_inverse=True)
        sums = np.zeros((len(_Sum._fields), len(tids)), np.int64)
        for total, parts in zip(sums, np.concatenate(self._parts, axis=1), strict=True):
            np.add.at(total, number, parts)
        return dict(zip(tids.tolist(), map(_Sum._make, sums.T.tolist()), strict=True))


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
        self._ends = [0]

    def add(self, batch: Spans) -> None:
        """Take waits in order of thread and time."""
        new = slice(self._ends[-1], self._ends[-1] + len(batch))
        for name, column in self._columns.items():
            column[new] = getattr(batch, name)
        self._ends.append(new.stop)

    def ordered(self) -> Spans:
        """Return all of them, by thread and time: batches follow one another in time."""
        count = self._ends[-1]
        tids = self._columns.pop("tid")[:count]
        counts = np.zeros(int(tids.max(initial=0)) + 1, np.int64)
        for part in self._parts():
            of_part = np.bincount(tids[part])
            counts[: len(of_part)] += of_part
        begins = np.cumsum(counts) - counts
        columns: dict[str, NDArray[Any]] = {"cpu": np.broadcast_to(np.int32(-1), count)}
        for name in [*self._columns]:
            # One column at a time is in memory twice.
            column = self._columns.pop(name)
            columns[name] = np.empty(count, column.dtype)
            for part, places in self._places(tids, begins.copy()):
                columns[name][places] = column[part]
        del tids
        columns["tid"] = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return Spans(**columns)

    def _places(
        self, tids: NDArray[np.int32], following: NDArray[np.int64]
    ) -> Iterator[tuple[slice, NDArray[np.int64]]]:
        """Yield where each part's rows belong; `following`: where the next row of each thread
        does."""
        for part in self._parts():
            own = tids[part]
            firsts = np.append(0, np.flatnonzero(own[1:] != own[:-1]) + 1)
            found, counts = own[firsts], np.diff(firsts, append=len(own))
            places = np.repeat(following[found] - firsts, counts) + np.arange(len(own))
            following[found] += counts
            yield part, places

    def _parts(self) -> Iterator[slice]:
        for first, last in pairwise(self._ends):
            if first < last:
                yield slice(first, last)


def _migrations(trace: Trace, start_ns: int, end_ns: int) -> dict[int, int]:
    if MIGRATE not in trace.events:
        return {}
    events = trace.events[MIGRATE]
    inside = (events.time_ns >= start_ns) & (events.time_ns <= end_ns)
    tids, counts = np.unique(events.fields["pid"][inside], return_counts=True)
    return dict(zip(tids.tolist(), counts.tolist(), strict=True))
