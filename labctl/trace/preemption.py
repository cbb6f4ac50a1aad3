"""Find who had the CPU that a thread waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import Events, Nanoseconds, Trace
from labctl.trace.spans import Spans
from labctl.trace.tracepoints import MIGRATE, SWITCH

_UNKNOWN = -1

_PART = 1 << 16
"""Waits, and slices of them, that are worked on at a time: it bounds the memory."""
_CELLS = 1 << 20
"""Pairs of a thread that waits and one that runs whose times are added up at a time."""


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Hold waits on one CPU each, as columns in order of threads."""

    tid: NDArray[np.int32]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    cpu: NDArray[np.int32]

    def take(self, chosen: NDArray[np.intp]) -> _Stretches:
        return _Stretches(
            self.tid[chosen], self.start_ns[chosen], self.end_ns[chosen], self.cpu[chosen]
        )


def who_ran(trace: Trace, waits: Spans) -> dict[int, Mapping[int, int]]:
    """Return by thread that waited: by thread that ran meanwhile on the CPU it was queued at, how
    long, in ns; 0 is the idle task, -1 what isn't known. `waits` are in order of thread and time.

    A thread that is moved while it waits waits for its new CPU from then on. Of a trace that was
    not to record switches nobody knows who ran.
    """
    if SWITCH not in trace.events:
        return {}
    found: dict[int, dict[int, int]] = {}
    stayed, moved = _by_cpu_of_the_moment(trace, waits)
    whole = _Stretches(waits.tid, waits.start_ns, waits.end_ns, waits.cpu)
    cpus = np.unique(np.concatenate([np.unique(some.cpu) for some in (whole, moved)]))
    for cpu in cpus.tolist():
        runs = _Runs.of(trace.events[SWITCH], cpu)
        for part in chain(_here(whole, cpu, stayed), _here(moved, cpu)):
            for tid, by, length_ns in runs.during(part):
                own = found.setdefault(tid, {})
                own[by] = own.get(by, 0) + length_ns
        del runs  # before the next CPU's
    return dict(found)


def _here(
    some: _Stretches, cpu: int, chosen: NDArray[np.bool_] | None = None
) -> Iterator[_Stretches]:
    """Yield those on a CPU, a part at a time."""
    for begin in range(0, len(some.tid), _PART):
        rows = slice(begin, begin + _PART)
        is_here = some.cpu[rows] == cpu
        if chosen is not None:
            is_here &= chosen[rows]
        if is_here.any():
            yield some.take(begin + np.flatnonzero(is_here))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Hold who ran on a CPU. `switch_ns`: its switches; `number`: of who ran before the first of
    them, after each, and after the last, the place in `who`."""

    switch_ns: Nanoseconds
    number: NDArray[np.int32]
    who: NDArray[np.int64]

    @classmethod
    def of(cls, switches: Events, cpu: int) -> _Runs:
        count = sum(np.count_nonzero(here) for _, here in _rows_of(switches, cpu))
        time_ns = np.empty(count, np.int64)
        # Before the first switch, after each, and after the last: of one without a switch, and
        # where the next switch is away from another thread, that isn't known.
        ran = np.full(count + 1, _UNKNOWN, np.int32)
        at = 0
        for rows, here in _rows_of(switches, cpu):
            left = switches.fields["prev_pid"][rows][here]
            if not len(left):
                continue
            new = slice(at, at + len(left))
            time_ns[new] = switches.time_ns[rows][here]
            ran[new.start + 1 : new.stop + 1] = switches.fields["next_pid"][rows][here]
            if at == 0:
                ran[0] = left[0]
            ran[new][ran[new] != left] = _UNKNOWN
            at = new.stop
        ran -= _UNKNOWN  # no number is negative
        is_there = np.zeros(int(ran.max()) + 1, dtype=bool)
        is_there[ran] = True
        number_of = np.cumsum(is_there, dtype=np.int32) - 1
        for begin in range(0, len(ran), _PART):
            ran[begin : begin + _PART] = number_of[ran[begin : begin + _PART]]
        return cls(time_ns, ran, np.flatnonzero(is_there) + _UNKNOWN)

    def during(self, waits: _Stretches) -> Iterator[tuple[int, int, int]]:
        """Yield who waited, who ran meanwhile, and how long."""
        first = np.searchsorted(self.switch_ns, waits.start_ns, "right")
        last = np.searchsorted(self.switch_ns, waits.end_ns, "left")
        # Of a wait that lasts no time, any number of switches may be at its moment.
        count = np.maximum(last, first) - first + 1
        tids, begins = np.unique(waits.tid, return_index=True)
        begins = np.append(begins, len(count))
        most = max(1, _CELLS // len(self.who))
        for begin in range(0, len(tids), most):
            group = tids[begin : begin + most]
            rows = slice(int(begins[begin]), int(begins[begin + len(group)]))
            thread = np.searchsorted(group, waits.tid[rows])
            sums = np.zeros((len(group), len(self.who)))
            is_pair = np.zeros(sums.shape, dtype=bool)
            for part in _parts(count[rows]):
                of = slice(rows.start + part.start, rows.start + part.stop)
                lengths, slot, wait = self._slices(waits, first, count, of)
                own = thread[part]
                pair = (own[wait] - own[0]) * len(self.who) + self.number[slot]
                threads = slice(own[0], own[-1] + 1)
                cells = sums[threads].size
                found = np.bincount(pair, weights=lengths, minlength=cells)
                sums[threads] += found.reshape(-1, len(self.who))
                is_pair[threads].reshape(-1)[pair] = True
            for one, by in zip(*(axis.tolist() for axis in np.nonzero(is_pair)), strict=True):
                yield int(group[one]), int(self.who[by]), int(sums[one, by])

    def _slices(
        self, waits: _Stretches, first: NDArray[np.intp], count: NDArray[np.intp], rows: slice
    ) -> tuple[Nanoseconds, NDArray[np.intp], NDArray[np.intp]]:
        """Return these waits cut at the CPU's switches: how long each slice is, after which switch
        it begins, and which wait's it is, counted from the first of them."""
        own = count[rows]
        wait = np.repeat(np.arange(len(own)), own)
        slot = np.arange(len(wait)) + np.repeat(first[rows] - (np.cumsum(own) - own), own)
        is_first = np.append(True, wait[1:] != wait[:-1])
        is_last = np.append(is_first[1:], True)
        # Only inner ends are a switch's: the places of others may be before all or after them.
        begin = self.switch_ns.take(slot - 1, mode="clip") if len(self.switch_ns) else slot
        begin = np.where(is_first, waits.start_ns[rows][wait], begin)
        end = self.switch_ns.take(slot, mode="clip") if len(self.switch_ns) else slot
        end = np.where(is_last, waits.end_ns[rows][wait], end)
        return end - begin, slot, wait


def _rows_of(switches: Events, cpu: int) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
    """Yield parts of the switches, and which of each are a CPU's."""
    for begin in range(0, len(switches), _PART):
        rows = slice(begin, begin + _PART)
        yield rows, switches.cpu[rows] == cpu


def _parts(sizes: NDArray[np.intp]) -> Iterator[slice]:
    """Yield rows whose sizes add up to a part each, or one by one when larger."""
    group = np.cumsum(sizes) // _PART
    ends = [*(np.flatnonzero(np.diff(group)) + 1).tolist(), len(sizes)]
    yield from map(slice, [0, *ends[:-1]], ends)


def _by_cpu_of_the_moment(trace: Trace, waits: Spans) -> tuple[NDArray[np.bool_], _Stretches]:
    """Return which waits were for one CPU, and the stretches of the others."""
    wait, moved_ns, to = _moves(trace, waits)
    stayed = np.ones(len(waits), dtype=bool)
    stayed[wait] = False
    first = np.unique(wait)
    of = np.concatenate([first, wait])
    order = np.argsort(of, kind="stable")
    of = of[order]
    start_ns = np.concatenate([waits.start_ns[first], moved_ns])[order]
    end_ns = waits.end_ns[of]
    goes_on = np.flatnonzero(of[1:] == of[:-1])
    end_ns[goes_on] = start_ns[goes_on + 1]
    cpu = np.concatenate([waits.cpu[first], to])[order]
    return stayed, _Stretches(waits.tid[of], start_ns, end_ns, cpu)


def _moves(trace: Trace, waits: Spans) -> tuple[NDArray[np.intp], Nanoseconds, NDArray[np.int32]]:
    """Return which wait each move of a thread fell into, when that was, and where to, in order of
    waits and time."""
    waited: list[NDArray[np.intp]] = [np.zeros(0, np.intp)]
    moved: list[NDArray[np.intp]] = [np.zeros(0, np.intp)]
    none = np.zeros(0, np.int64)
    if MIGRATE not in trace.events:
        return waited[0], none, none.astype(np.int32)
    events = trace.events[MIGRATE]
    pids = events.fields["pid"]
    by_thread = np.argsort(pids, kind="stable")
    threads, begins = np.unique(pids[by_thread], return_index=True)
    ends = np.append(begins[1:], len(pids))
    firsts = np.searchsorted(waits.tid, threads, "left")
    lasts = np.searchsorted(waits.tid, threads, "right")
    for nth in np.flatnonzero(firsts < lasts).tolist():
        first, last = int(firsts[nth]), int(lasts[nth])
        own = by_thread[begins[nth] : ends[nth]]
        time_ns = events.time_ns[own]
        wait = first + np.searchsorted(waits.start_ns[first:last], time_ns, "right") - 1
        inside = (wait >= first) & (time_ns < waits.end_ns[wait])
        waited.append(wait[inside])
        moved.append(own[inside])
    move = np.concatenate(moved)
    to = events.fields["dest_cpu"][move].astype(np.int32)
    return np.concatenate(waited), events.time_ns[move], to
