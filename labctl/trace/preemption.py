"""Find who had the CPU that a thread waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labctl.trace.keys import Keys
from labctl.trace.model import Nanoseconds, Numbers, Trace
from labctl.trace.spans import Spans
from labctl.trace.tracepoints import MIGRATE, SWITCH

_UNKNOWN = -1

_BATCH = 1_000_000
"""Slices of waits that are worked on at a time: it bounds the memory."""


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Waits on one CPU each, as columns."""

    tid: NDArray[np.int32]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    cpu: NDArray[np.int32]

    def take(self, chosen: NDArray[np.intp]) -> _Stretches:
        return _Stretches(
            self.tid[chosen], self.start_ns[chosen], self.end_ns[chosen], self.cpu[chosen]
        )


def who_ran(trace: Trace, waits: Spans) -> dict[int, Mapping[int, int]]:
    """Return for each waiting thread how long, in ns, each other thread ran meanwhile on the CPU
    where it was queued; 0 is the idle task, -1 is unknown. `waits` are in order of thread and time.

    A thread that is moved while it waits waits for its new CPU from then on. Of a trace that was
    not to record switches nobody knows who ran.
    """
    if SWITCH not in trace.events:
        return {}
    stretches = _by_cpu_of_the_moment(trace, waits)
    switches = trace.events[SWITCH]
    totals: dict[tuple[int, int], int] = {}
    for cpu in np.unique(stretches.cpu).tolist():
        at = np.flatnonzero(switches.cpu == cpu)
        times = switches.time_ns[at]
        ran = _between_switches(switches.fields["prev_pid"][at], switches.fields["next_pid"][at])
        edges = np.append(times, trace.end_ns)
        here = stretches.take(np.flatnonzero(stretches.cpu == cpu))
        first = np.searchsorted(times, here.start_ns, "right")
        last = np.searchsorted(times, here.end_ns, "left")
        # Of a wait that lasts no time, any number of switches may be at its moment.
        last = np.maximum(last, first)
        for part in _parts(last - first + 1):
            _add_slices(totals, here.take(part), first[part], last[part], edges, ran)
    found: dict[int, dict[int, int]] = {}
    for (tid, preemptor), length_ns in totals.items():
        found.setdefault(tid, {})[preemptor] = length_ns
    return dict(found)


def _between_switches(left: Numbers, next_up: Numbers) -> NDArray[np.int64]:
    """Return who ran on a CPU before its first switch, after each, and after the last: of one
    without a switch that isn't known.

    Where the next switch is away from another thread one is missing, and isn't known when: -1.
    """
    if not len(left):
        return np.array([_UNKNOWN])
    ran = np.concatenate([left[:1], next_up]).astype(np.int64)
    ran[:-1][ran[:-1] != left] = _UNKNOWN
    return ran


def _parts(sizes: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """Yield indices in groups whose sizes add up to a batch each, or one by one when larger."""
    if not len(sizes):
        return
    group = np.cumsum(sizes) // _BATCH
    yield from np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(group)) + 1)


def _add_slices(
    totals: dict[tuple[int, int], int],
    waits: _Stretches,
    first: NDArray[np.intp],
    last: NDArray[np.intp],
    times: Nanoseconds,
    ran: NDArray[np.int64],
) -> None:
    """Cut each wait at the CPU's switches `first` to `last` (excluded), and add up by who ran."""
    count = last - first + 1
    wait = np.repeat(np.arange(len(count)), count)
    nth = np.arange(len(wait)) - np.repeat(np.cumsum(count) - count, count)
    slot = np.repeat(first, count) + nth
    begin = np.where(nth == 0, waits.start_ns[wait], times[np.maximum(slot - 1, 0)])
    is_last = nth == count[wait] - 1
    end = np.where(is_last, waits.end_ns[wait], times[slot])
    # No number of a pair is negative.
    pair = (waits.tid[wait].astype(np.int64) << 32) | (ran[slot] - _UNKNOWN)
    pairs, number = np.unique(pair, return_inverse=True)
    sums = np.bincount(number, weights=end - begin)
    for both, length_ns in zip(pairs.tolist(), sums.tolist(), strict=True):
        key = (both >> 32, (both & 0xFFFFFFFF) + _UNKNOWN)
        totals[key] = totals.get(key, 0) + int(length_ns)


def _by_cpu_of_the_moment(trace: Trace, waits: Spans) -> _Stretches:
    whole = _Stretches(waits.tid, waits.start_ns, waits.end_ns, waits.cpu)
    if MIGRATE not in trace.events or not len(waits):
        return whole
    events = trace.events[MIGRATE]
    # So that the wait before each move is found at once.
    end_ns = max(trace.end_ns, int(waits.end_ns.max()))
    keys = Keys(np.unique(waits.tid), trace.start_ns, end_ns - trace.start_ns + 2)
    moved = np.flatnonzero(np.isin(events.fields["pid"], keys.things))
    pids, time_ns = events.fields["pid"][moved], events.time_ns[moved]
    starts, moves = keys.key(waits.tid, waits.start_ns), keys.key(pids, time_ns)
    wait = np.searchsorted(starts, moves, "right") - 1
    inside = (wait >= 0) & (waits.tid[wait] == pids) & (time_ns < waits.end_ns[wait])
    if not inside.any():
        return whole
    wait, moved = wait[inside], moved[inside]
    of = np.concatenate([np.arange(len(waits)), wait])
    start_ns = np.concatenate([waits.start_ns, events.time_ns[moved]])
    cpu = np.concatenate([waits.cpu, events.fields["dest_cpu"][moved].astype(np.int32)])
    order = np.lexsort((start_ns, of))
    of, start_ns, cpu = of[order], start_ns[order], cpu[order]
    end_of = np.append(start_ns[1:], 0)
    is_last = np.append(of[1:] != of[:-1], True)
    return _Stretches(waits.tid[of], start_ns, np.where(is_last, waits.end_ns[of], end_of), cpu)
