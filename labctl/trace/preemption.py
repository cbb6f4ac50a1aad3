"""Find which thread had the CPU that another waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import MIGRATE, SWITCH, Events, Nanoseconds, Numbers, Trace
from labctl.trace.spans import Spans
from labctl.trace.threads import Mask, Numbering

# Add up times by pairs of threads.


_CELLS = 1 << 18
"""Cells of a table that is worthwhile for a few pairs."""
_MOST = 1 << 18
"""Sums to keep before those of the same pair are added up, to bound the memory."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Hold columns of one length. `first`, `second`: the numbers of two threads."""

    first: NDArray[np.int32]
    second: NDArray[np.int32]
    length_ns: Nanoseconds


class SumsOfPairs:
    """Add up times by pairs of threads, including pairs with very short times. `count`: above all
    numbers of threads."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._parts: list[tuple[NDArray[np.int64], Nanoseconds]] = []
        self._kept = 0

    def add(self, pairs: Pairs) -> None:
        """Add pairs, all of whose times add up to less than 2^53 ns, some hundred days."""
        if not len(pairs.first):
            return
        least = int(pairs.first.min())
        cells = (int(pairs.first.max()) - least + 1) * self._count
        pair = (pairs.first.astype(np.int64) - least) * self._count + pairs.second
        if cells <= max(_CELLS, 4 * len(pair)):
            found = np.flatnonzero(np.bincount(pair))
            total = np.bincount(pair, weights=pairs.length_ns)[found]
        else:
            found, place = np.unique(pair, return_inverse=True)
            total = np.bincount(place, weights=pairs.length_ns)
        self._parts.append((found + least * self._count, total.astype(np.int64)))
        self._kept += len(found)
        if self._kept > _MOST:
            self._parts = [self._added_up()]
            self._kept = 0

    def _added_up(self) -> tuple[NDArray[np.int64], Nanoseconds]:
        nothing = np.zeros(0, np.int64)
        pair, place = np.unique(
            np.concatenate([nothing, *(pair for pair, _ in self._parts)]), return_inverse=True
        )
        total_ns = np.zeros(len(pair), np.int64)
        np.add.at(total_ns, place, np.concatenate([nothing, *(part for _, part in self._parts)]))
        return pair, total_ns

    def found(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Nanoseconds]:
        """Return both threads of each pair, in order, and its sum."""
        pair, total_ns = self._added_up()
        return pair // self._count, pair % self._count, total_ns


_PART = 1 << 16
"""Waits, and slices of them, processed at a time, to bound the memory."""
_MOST_ASIDE = 1 << 20
"""Maximum of deferred waits, for the same reason."""


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Hold waits on one CPU each, as columns in order of threads."""

    tid: NDArray[np.int32]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    cpu: Numbers

    def __len__(self) -> int:
        return len(self.tid)

    def take(self, chosen: NDArray[np.intp]) -> _Stretches:
        return _Stretches(
            self.tid.take(chosen),
            self.start_ns.take(chosen),
            self.end_ns.take(chosen),
            self.cpu.take(chosen),
        )


class Preemptors:
    """Find, for each thread, which threads ran on the CPU that it was queued at while it waited.

    A thread that is moved while it waits then waits for its new CPU. Most waits are short, and
    looked up among the switches since the previous ones. Longer ones, and those of threads that
    were moved, are deferred and looked up among all switches.
    """

    def __init__(self, trace: Trace, numbering: Numbering) -> None:
        """`trace`: one with switches; `numbering`: of all its threads."""
        self._trace = trace
        self._switches = trace.events[SWITCH]
        self._runners = _Runners(numbering)
        self._sums = SumsOfPairs(self._runners.count)
        self._row = 0  # among the switches, after those that were processed
        self._came = np.full(int(self._switches.cpu.max(initial=0)) + 1, _NOBODY, np.int32)
        self._move = 0
        self._aside: list[_Stretches] = []

    def add(self, waits: Spans) -> None:
        """Add waits in order of thread and time, all of which end later than the earlier ones."""
        if not len(waits):
            return
        until_ns = int(waits.end_ns.max())
        end = int(np.searchsorted(self._switches.time_ns, until_ns, "right"))
        rows = slice(self._row, end)
        near = _Stretches(waits.tid, waits.start_ns, waits.end_ns, waits.cpu)
        is_aside = waits.start_ns < self._switches.time_ns[rows.start if rows.start < end else -1]
        is_aside &= rows.start > 0
        is_aside[self._moved(waits, until_ns)] = True
        for cpu in _each(near.cpu):
            own = np.flatnonzero(near.cpu == cpu)
            runs = _Runs.of(self._switches, cpu, rows, self._runners, self._came_to(cpu))
            here = near.take(own)
            places = runs.places(here)
            is_aside[own] |= runs.end_after(places)
            now = np.flatnonzero(~is_aside[own])
            for pairs in runs.during(here.take(now), places.take(now), self._runners):
                self._sums.add(pairs)
        self._came[self._switches.cpu[rows].astype(np.intp)] = self._runners.number_of(
            self._switches.fields["next_pid"][rows]
        )
        self._row = end
        self._put_aside(near.take(np.flatnonzero(is_aside)))

    def _came_to(self, cpu: int) -> int:
        # A wake-up may be for a CPU without a switch.
        return int(self._came[cpu]) if 0 <= cpu < len(self._came) else _NOBODY

    def _moved(self, waits: Spans, until_ns: int) -> NDArray[np.intp]:
        """Return which of these waits include a move since the previous ones, up to this time."""
        if MIGRATE not in self._trace.events:
            return np.zeros(0, np.intp)
        events = self._trace.events[MIGRATE]
        rows = slice(self._move, int(np.searchsorted(events.time_ns, until_ns, "right")))
        self._move = rows.stop
        return _moves(events, rows, waits.tid, waits.start_ns, waits.end_ns)[0]

    def _put_aside(self, waits: _Stretches) -> None:
        self._aside.append(waits)
        if sum(map(len, self._aside)) > _MOST_ASIDE:
            self._look_up_aside()

    def _look_up_aside(self) -> None:
        columns = (
            np.concatenate([getattr(some, field.name) for some in self._aside])
            for field in fields(_Stretches)
        )
        waits = _Stretches(*columns)
        self._aside = []
        waits = waits.take(np.argsort(waits.tid, kind="stable"))
        stayed, moved = _by_cpu_of_the_moment(self._trace, waits)
        every = slice(0, len(self._switches))
        for cpu in np.unique(np.concatenate([waits.cpu, moved.cpu])).tolist():
            runs = _Runs.of(self._switches, cpu, every, self._runners, _NOBODY)
            for part in chain(_here(waits, cpu, stayed), _here(moved, cpu)):
                for pairs in runs.during(part, runs.places(part), self._runners):
                    self._sums.add(pairs)
            del runs  # before the next CPU's

    def by_thread(self) -> dict[int, Mapping[int, int]]:
        """Return, by thread that waited, how long each other thread ran meanwhile, in ns; 0 is the
        idle task, -1 unknown."""
        if self._aside:
            self._look_up_aside()
        waited, ran, total_ns = self._sums.found()
        waiters, begins = np.unique(waited, return_index=True)
        ends = np.append(begins, len(waited))[1:].tolist()
        who, lengths = self._runners.tids[ran].tolist(), total_ns.tolist()
        return {
            tid: dict(zip(who[begin:end], lengths[begin:end], strict=True))
            for tid, begin, end in zip(
                self._runners.tids[waiters].tolist(), begins.tolist(), ends, strict=True
            )
        }


_NOBODY, _UNKNOWN = -1, 0
"""Numbers for nobody yet, and for an unknown thread."""


class _Runners:
    """Number the threads that may run: 0 is unknown, 1 the idle task."""

    def __init__(self, numbering: Numbering) -> None:
        self._number_of = numbering.number_of.astype(np.int32) + 2
        self.tids = np.concatenate([np.array([-1, 0], np.int32), numbering.tids])

    @property
    def count(self) -> int:
        return len(self.tids)

    def number_of(self, tids: Numbers) -> NDArray[np.int32]:
        found: NDArray[np.int32] = self._number_of.take(tids)
        return found


@dataclass(frozen=True, slots=True)
class _Places:
    """Hold, for each wait, the number of a CPU's switches before its start, and the number of
    switches that cut it."""

    first: NDArray[np.intp]
    cuts: NDArray[np.intp]

    def take(self, chosen: NDArray[np.intp]) -> _Places:
        return _Places(self.first.take(chosen), self.cuts.take(chosen))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Hold the threads that ran on a CPU. `switch_ns`: its switches; `who`: the number of the
    thread that ran before the first of them, after each, and after the last."""

    switch_ns: Nanoseconds
    who: NDArray[np.int32]

    @classmethod
    def of(cls, switches: Events, cpu: int, rows: slice, runners: _Runners, before: int) -> _Runs:
        """Find the runs of these switches. `before`: the number of the thread that came to the CPU
        last."""
        count = int(np.count_nonzero(switches.cpu[rows] == cpu))
        time_ns = np.empty(count, np.int64)
        # If the next switch is away from another thread, it is unknown which one ran.
        who = np.empty(count + 1, np.int32)
        who[0] = before
        at = 0
        for here in _rows_of(switches, cpu, rows):
            new = slice(at, at + len(here))
            time_ns[new] = switches.time_ns[here]
            left = runners.number_of(switches.fields["prev_pid"][here])
            who[new.start + 1 : new.stop + 1] = runners.number_of(switches.fields["next_pid"][here])
            if len(left) and who[at] == _NOBODY:
                who[at] = left[0]
            who[new][who[new] != left] = _UNKNOWN
            at = new.stop
        if who[0] == _NOBODY:
            who[0] = _UNKNOWN
        return cls(time_ns, who)

    def places(self, waits: _Stretches) -> _Places:
        first = np.searchsorted(self.switch_ns, waits.start_ns, "right")
        last = np.searchsorted(self.switch_ns, waits.end_ns, "left")
        # For a wait of zero length, any number of switches may have the same time.
        return _Places(first, np.maximum(last, first) - first)

    def end_after(self, places: _Places) -> Mask:
        """Return which end after all of these switches: later ones determine who ran then."""
        found: Mask = places.first + places.cuts == len(self.switch_ns)
        return found

    def during(self, waits: _Stretches, places: _Places, runners: _Runners) -> Iterator[Pairs]:
        """Yield the thread that waited, the one that ran meanwhile, and how long."""
        first, cuts = places.first, places.cuts
        waited = runners.number_of(waits.tid)
        whole = np.flatnonzero(cuts == 0)
        length_ns = waits.end_ns[whole] - waits.start_ns[whole]
        yield Pairs(waited[whole], self.who[first[whole]], length_ns)
        others = np.flatnonzero(cuts)
        for part in _parts(cuts[others] + 1):
            own = others[part]
            length_ns, slot, wait = self._slices(waits.take(own), first[own], cuts[own] + 1)
            yield Pairs(waited[own][wait], self.who[slot], length_ns)

    def _slices(
        self, waits: _Stretches, first: NDArray[np.intp], count: NDArray[np.intp]
    ) -> tuple[Nanoseconds, NDArray[np.intp], NDArray[np.intp]]:
        """Return these waits cut at the CPU's switches: the length of each slice, the switch at its
        start, and its wait."""
        wait = np.repeat(np.arange(len(count)), count)
        slot = np.arange(len(wait)) + np.repeat(first - (np.cumsum(count) - count), count)
        is_first = np.append(True, wait[1:] != wait[:-1])
        is_last = np.append(is_first[1:], True)
        # Only inner ends are at a switch: the outer ones may be before all or after them.
        begin = np.where(is_first, waits.start_ns[wait], self.switch_ns.take(slot - 1, mode="clip"))
        end = np.where(is_last, waits.end_ns[wait], self.switch_ns.take(slot, mode="clip"))
        return end - begin, slot, wait


def _each(cpu: Numbers) -> list[int]:
    """Return each CPU once, in order."""
    if (cpu == cpu[0]).all():
        return [int(cpu[0])]
    found: list[int] = np.unique(cpu).tolist()
    return found


def _rows_of(switches: Events, cpu: int, rows: slice) -> Iterator[NDArray[np.intp]]:
    """Yield which of these switches are a CPU's, a part at a time."""
    for begin in range(rows.start, rows.stop, _PART):
        end = min(begin + _PART, rows.stop)
        yield begin + np.flatnonzero(switches.cpu[begin:end] == cpu)


def _here(some: _Stretches, cpu: int, chosen: Mask | None = None) -> Iterator[_Stretches]:
    """Yield those on a CPU, a part at a time."""
    for begin in range(0, len(some), _PART):
        rows = slice(begin, begin + _PART)
        is_here = some.cpu[rows] == cpu
        if chosen is not None:
            is_here &= chosen[rows]
        if is_here.any():
            yield some.take(begin + np.flatnonzero(is_here))


def _parts(sizes: NDArray[np.intp]) -> Iterator[slice]:
    """Yield rows whose sizes add up to a part each, or one by one when larger."""
    group = np.cumsum(sizes) // _PART
    ends = [*(np.flatnonzero(np.diff(group)) + 1).tolist(), len(sizes)]
    yield from map(slice, [0, *ends[:-1]], ends)


def _by_cpu_of_the_moment(trace: Trace, waits: _Stretches) -> tuple[Mask, _Stretches]:
    """Return which waits were for one CPU, and the stretches of the others."""
    stayed = np.ones(len(waits), dtype=bool)
    if MIGRATE not in trace.events:
        return stayed, waits.take(np.zeros(0, np.intp))
    events = trace.events[MIGRATE]
    wait, move = _moves(events, slice(0, len(events)), waits.tid, waits.start_ns, waits.end_ns)
    stayed[wait] = False
    first = np.unique(wait)
    of = np.concatenate([first, wait])
    order = np.argsort(of, kind="stable")
    of = of[order]
    start_ns = np.concatenate([waits.start_ns[first], events.time_ns[move]])[order]
    end_ns = waits.end_ns[of]
    goes_on = np.flatnonzero(of[1:] == of[:-1])
    end_ns[goes_on] = start_ns[goes_on + 1]
    cpu = np.concatenate([waits.cpu[first], events.fields["dest_cpu"][move]])[order]
    return stayed, _Stretches(waits.tid[of], start_ns, end_ns, cpu)


def _moves(
    events: Events,
    rows: slice,
    tid: NDArray[np.int32],
    start_ns: Nanoseconds,
    end_ns: Nanoseconds,
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return which of these waits, in order of thread and time, contains each of the moves, and the
    rows of these moves: in order of waits and time."""
    waited: list[NDArray[np.intp]] = [np.zeros(0, np.intp)]
    moved: list[NDArray[np.intp]] = [np.zeros(0, np.intp)]
    pids = events.fields["pid"][rows]
    by_thread = np.argsort(pids, kind="stable")
    threads, begins = np.unique(pids[by_thread], return_index=True)
    ends = np.append(begins[1:], len(pids))
    firsts = np.searchsorted(tid, threads, "left")
    lasts = np.searchsorted(tid, threads, "right")
    for nth in np.flatnonzero(firsts < lasts).tolist():
        first, last = int(firsts[nth]), int(lasts[nth])
        own = rows.start + by_thread[begins[nth] : ends[nth]]
        time_ns = events.time_ns[own]
        wait = first + np.searchsorted(start_ns[first:last], time_ns, "right") - 1
        inside = (wait >= first) & (time_ns < end_ns[wait])
        waited.append(wait[inside])
        moved.append(own[inside])
    return np.concatenate(waited), np.concatenate(moved)
