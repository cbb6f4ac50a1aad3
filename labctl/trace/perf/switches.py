"""Restore switches that a kernel kept back, from perf's own records of them.

Linux 6.18 was seen to tell nothing of what some threads do, a CPU's idle task among them, to no
reader, neither by tracepoints nor by perf's own records; the cause isn't known. But of a switch
perf has two of these: PERF_RECORD_SWITCH_CPU_WIDE (`perf record --switch-events`) comes once from
the thread that leaves the CPU, right after its sched_switch, and once from the one that comes
(__perf_event_task_sched_out and _in in kernel/events/core.c). So only a switch from one such thread
to another is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import Events, Nanoseconds, Numbers
from labctl.trace.numbering import Mask
from labctl.trace.perf.chain import Chunk
from labctl.trace.perf.gaps import MAX_CPUS
from labctl.trace.perf.head import CPU, TID, TIME, broken
from labctl.trace.perf.perf_threads import MAX_TID
from labctl.trace.tracepoints import UNTOLD

# Bits of their headers: PERF_RECORD_MISC_SWITCH_OUT and _OUT_PREEMPT of
# include/uapi/linux/perf_event.h, above the 32 of the type.
_OUT, _OUT_RUNNABLE = np.uint64(1 << 45), np.uint64(1 << 46)
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)
_RUNS, _SLEEPS = 0, 1
"""prev_state of who is runnable; of who isn't, in whichever way."""


@dataclass(frozen=True, slots=True)
class _Records:
    """As columns: `left`, in `state`, for `came`. `is_out`: written by the one that left."""

    time_ns: Nanoseconds
    cpu: NDArray[np.int32]
    left: NDArray[np.int32]
    came: NDArray[np.int32]
    state: NDArray[np.int8]
    is_out: Mask

    def take(self, chosen: NDArray[np.intp]) -> _Records:
        return _Records(
            self.time_ns[chosen],
            self.cpu[chosen],
            self.left[chosen],
            self.came[chosen],
            self.state[chosen],
            self.is_out[chosen],
        )


class Switches:
    """Hold what these records of a file tell. `trailer`: as `Head` has it."""

    def __init__(self, where: str, trailer: Mapping[int, int]) -> None:
        self._where = where
        self._trailer = trailer
        self._parts: list[_Records] = []

    @property
    def are_told(self) -> bool:
        """Return whether there are any."""
        return bool(self._parts)

    def take(self, chunk: Chunk) -> None:
        """Raise BrokenError where one can't be."""
        words, at = chunk.words, chunk.switches
        end = at + 2 + len(self._trailer)
        # struct { header, u32 next_prev_pid, next_prev_tid, sample_id { u32 pid, tid, ... } }
        other = (words[at + 1] >> _HIGH).astype(np.int32)
        own = (words[end - self._trailer[TID]] >> _HIGH).astype(np.int32)
        time_ns = words[end - self._trailer[TIME]].view(np.int64)
        cpu = (words[end - self._trailer[CPU]] & _LOW).view(np.int64)
        wrong = (own > MAX_TID) | (other > MAX_TID) | (cpu >= MAX_CPUS) | (time_ns < 0)
        if wrong.any():
            first = int(np.argmax(wrong))
            broken(
                self._where,
                f"no switch is between threads {own[first]} and {other[first]} on CPU "
                f"{cpu[first]} at {time_ns[first]} ns",
                chunk.byte(at[first]),
            )
        is_out = words[at] & _OUT != 0
        state = np.where(words[at] & _OUT_RUNNABLE, _RUNS, _SLEEPS)
        self._parts.append(
            _Records(
                time_ns,
                cpu.astype(np.int32),
                np.where(is_out, own, other),
                np.where(is_out, other, own),
                np.where(is_out, state, UNTOLD).astype(np.int8),
                is_out,
            )
        )

    def completed(self, events: Events, start_ns: int, end_ns: int) -> Events:
        """Return a file's sched_switch events, with those that are missing between these moments.

        Of the CPUs that any of them is of: of the others it was not to be recorded. Without its
        fields prev_pid and next_pid, which tell what is missing, they stay as they are.
        """
        if (
            not (self._parts and len(events))
            or not {"prev_pid", "next_pid"} <= events.fields.keys()
        ):
            return events
        names = _Records.__dataclass_fields__
        found = _Records(*(np.concatenate([getattr(p, n) for p in self._parts]) for n in names))
        # A thread that has died has no number any more: with such a one nothing can be put back.
        is_in = (found.time_ns >= start_ns) & (found.time_ns <= end_ns)
        found = found.take(np.flatnonzero(is_in & (found.left >= 0) & (found.came >= 0)))
        found = found.take(np.argsort(found.time_ns, kind="stable"))
        if not len(found.time_ns):
            return events
        missing = found.take(np.sort(_untold(found, events)))
        if not len(missing.time_ns):
            return events
        fields = {"prev_pid": missing.left, "prev_state": missing.state, "next_pid": missing.came}
        place = _places(missing, events)
        return events.with_more(missing.time_ns, missing.cpu, missing.left, fields, place)


def _places(missing: _Records, events: Events) -> NDArray[np.intp]:
    """Before which event each belongs: of those of its time, the one that presupposes it, since the
    CPU had not gone to the thread that leaves it there; without such a one after all of them."""
    place = np.searchsorted(events.time_ns, missing.time_ns, "right")
    tied = np.flatnonzero(np.searchsorted(events.time_ns, missing.time_ns, "left") < place)
    if not len(tied):
        return place
    left, came = events.fields["prev_pid"], events.fields["next_pid"]
    order = np.argsort(events.cpu, kind="stable")
    goes_on = np.zeros(len(events), dtype=bool)
    goes_on[order[1:]] = (events.cpu[order[1:]] == events.cpu[order[:-1]]) & (
        left[order[1:]] == came[order[:-1]]
    )
    breaks = np.flatnonzero(~goes_on & np.isin(events.time_ns, missing.time_ns[tied]))
    presuppose: dict[tuple[int, int, int], list[int]] = {}
    for at in breaks.tolist():
        key = (int(events.cpu[at]), int(events.time_ns[at]), int(left[at]))
        presuppose.setdefault(key, []).append(at)
    # From the last on: several in a row presuppose each other, and an event the last of them.
    for index in tied[::-1].tolist():
        cpu, time_ns = int(missing.cpu[index]), int(missing.time_ns[index])
        if found := presuppose.get((cpu, time_ns, int(missing.came[index]))):
            place[index] = found.pop()
            key = (cpu, time_ns, int(missing.left[index]))
            presuppose.setdefault(key, []).append(int(place[index]))
    return place


def _untold(found: _Records, events: Events) -> NDArray[np.intp]:
    """Records of switches that no event tells of, one of each, by CPU.

    The two records of a switch follow each other. Its event is the last one of the CPU before them,
    and comes after those of any other switch. A coarse clock gives several the same time.
    """
    cpus = np.unique(events.cpu)
    known = np.flatnonzero(np.isin(found.cpu, cpus))
    begin_ns = min(int(events.time_ns[0]), int(found.time_ns[0]))
    # More than a day and more than 2^16 CPUs are refused, so that this has room.
    length_ns = max(int(events.time_ns[-1]), int(found.time_ns[-1])) - begin_ns + 1
    told, told_in = _in_rows(cpus, events.cpu, events.time_ns - begin_ns, length_ns)
    pairs = _pair(events.fields["prev_pid"], events.fields["next_pid"])[told_in]
    key, order = _in_rows(cpus, found.cpu[known], found.time_ns[known] - begin_ns, length_ns)
    own = known[order]
    row, pair, is_out = key // length_ns, _pair(found.left[own], found.came[own]), found.is_out[own]
    is_second = np.zeros(len(own), dtype=bool)
    is_second[1:] = ~is_out[1:] & is_out[:-1] & (pair[1:] == pair[:-1]) & (row[1:] == row[:-1])
    first = np.flatnonzero(~is_second)
    key, row, pair = key[first], row[first], pair[first]
    # What tells of the switch before tells of no other one.
    since = np.append(-1, key[:-1]) + (np.append(-1, pair[:-1]) == pair)
    since = np.maximum(since, row * length_ns)
    is_told = np.zeros(len(first), dtype=bool)
    begin, end = np.searchsorted(told, key, "left"), np.searchsorted(told, key, "right")
    # The last one that was earlier, and of those at the same time the first and the last.
    for place in (begin - 1, begin, end - 1):
        near = np.clip(place, 0, len(told) - 1)
        is_it = (place >= 0) & (place < end) & (pairs[near] == pair)
        is_told |= is_it & (told[near] >= since)
    return own[first[~is_told]]


def _in_rows(
    cpus: NDArray[np.int32], cpu: NDArray[np.int32], since_ns: Nanoseconds, length_ns: int
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Moments as one number, a CPU's row after another's, and by it the order; of equal ones as
    they were."""
    key = np.searchsorted(cpus, cpu) * length_ns + since_ns
    order = np.argsort(key, kind="stable")
    return key[order], order


def _pair(left: Numbers, came: Numbers) -> NDArray[np.int64]:
    return left.astype(np.int64) << 32 | came
