"""Restore switches that a kernel hid, from perf's own records of them.

Linux 6.18 was seen to hide all events of some threads, among them a CPU's idle task, from every
reader, both tracepoints and perf's own records; the cause is unknown. But perf has two records of a
switch: PERF_RECORD_SWITCH_CPU_WIDE (`perf record --switch-events`) comes once from the thread that
leaves the CPU, right after its sched_switch, and once from the one that comes
(__perf_event_task_sched_out and _in in kernel/events/core.c). So only a switch from one such thread
to another is missing.

A CPU writes all of them into one buffer, whose order the file keeps. That order assigns events to
records, however coarse the clock is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import UNTOLD, Nanoseconds, Numbers
from labctl.trace.perf.chain import MAX_CPUS, Chunk
from labctl.trace.perf.head import CPU, TID, TIME, broken
from labctl.trace.perf.perf_threads import MAX_TID
from labctl.trace.threads import Mask

# Bits of their headers: PERF_RECORD_MISC_SWITCH_OUT and _OUT_PREEMPT of
# include/uapi/linux/perf_event.h.
_OUT, _OUT_RUNNABLE = np.uint32(1 << 13), np.uint32(1 << 14)
_RUNS, _SLEEPS = 0, 1
"""prev_state of a runnable thread, and of one that is not, for whatever reason."""

_NONE = -1
_PLACE_BITS = 32
_ONE_SWITCH = 2  # records of it


@dataclass(frozen=True, slots=True)
class Missing:
    """Hold switches without an event, as columns in the file's order: `left`, in `state`, for
    `came`. `place`: before which event, counted from the file's first, each belongs."""

    time_ns: Nanoseconds
    cpu: NDArray[np.int32]
    left: NDArray[np.int32]
    came: NDArray[np.int32]
    state: NDArray[np.int32]
    place: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.place)


@dataclass(frozen=True, slots=True)
class Told:
    """Hold the sched_switch events of a chunk in the file's order, as columns. `at`: where each
    begins, in words, `ends`: where the next record does; `before`: how many preceded the chunk."""

    at: NDArray[np.int64]
    ends: NDArray[np.int64]
    cpu: NDArray[np.int32]
    left: Numbers
    came: Numbers
    before: int

    @property
    def nothing(self) -> Told:
        """Return none of these events."""
        return Told(
            self.at[:0], self.ends[:0], self.cpu[:0], self.left[:0], self.came[:0], self.before
        )


@dataclass(frozen=True, slots=True)
class _Records:
    """Hold a chunk's records of switches as columns. `at`: where each begins, in words; `own`: the
    thread that wrote it, `other`: the thread that left for it or came after it; `misc`: the
    header's flags."""

    at: NDArray[np.int64]
    own: NDArray[np.int32]
    other: NDArray[np.int32]
    cpu: NDArray[np.uint32]
    time_ns: Nanoseconds
    misc: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.at)

    @property
    def is_out(self) -> Mask:
        found: Mask = self.misc & _OUT != 0
        return found

    def rows(self, chosen: slice) -> _Records:
        return _Records(*(getattr(self, name)[chosen] for name in _Records.__dataclass_fields__))


class Switches:
    """Find, chunk by chunk, the switches in a file's records that its events lack. `trailer`: as in
    `Head`."""

    def __init__(self, where: str, trailer: Mapping[int, int]) -> None:
        self._where = where
        self._trailer = trailer
        self._words = 2 + len(trailer)
        self._parts: list[Missing] = []
        # For each CPU, as of the processed records: the switch of the last record, if the leaving
        # thread wrote it; and that of the last event, if no record of another switch has followed
        # it.
        self._half = np.full(MAX_CPUS, _NONE, dtype=np.int64)
        self._event = np.full(MAX_CPUS, _NONE, dtype=np.int64)
        self._is_told = np.zeros(MAX_CPUS, dtype=bool)
        self.are_told = False
        """True once a switch of these records was processed."""

    def take(self, chunk: Chunk, told: Told | None) -> None:
        """Process the chunk's records, and its events; None if these lack the threads that left and
        came. Raises BrokenError for an impossible record."""
        records = self._read(chunk)
        self.are_told |= len(records) > 0
        if told is None:
            return
        self._is_told[told.cpu] = True
        # A chunk may begin between the records of a switch.
        begun = int(np.searchsorted(records.at, told.at[0])) if len(told.at) else 0
        rest = records.rows(np.s_[begun:])
        if begun > _ONE_SWITCH or not self._are_all_told(rest, told):
            self._take(records, told)
            return
        if begun:
            self._take(records.rows(np.s_[:begun]), told.nothing)
        cpu, outs = rest.cpu[0], (len(rest) + 1) // 2
        pairs = _pair(told.left[-1:], told.came[-1:])
        self._half[cpu] = pairs[0] if rest.is_out[-1] else _NONE
        self._event[cpu] = pairs[0] if len(told.at) > outs else _NONE

    def _read(self, chunk: Chunk) -> _Records:
        # struct { header, u32 next_prev_pid, next_prev_tid, sample_id { u32 pid, tid, ... } }
        at = chunk.switches
        halves, twice = chunk.words.view("<u4"), 2 * at
        words = self._words
        found = _Records(
            at=at,
            own=halves[2 * (words - self._trailer[TID]) + 1 :].take(twice).view("<i4"),
            other=halves[3:].take(twice).view("<i4"),
            cpu=halves[2 * (words - self._trailer[CPU]) :].take(twice),
            time_ns=chunk.words[words - self._trailer[TIME] :].take(at).view("<i8"),
            misc=halves[1:].take(twice),
        )
        most = max(found.own.max(initial=0), found.other.max(initial=0))
        if (
            most > MAX_TID
            or found.cpu.max(initial=0) >= MAX_CPUS
            or found.time_ns.min(initial=0) < 0
        ):
            self._check(chunk, found)
        return found

    def _check(self, chunk: Chunk, found: _Records) -> None:
        wrong = (found.own > MAX_TID) | (found.other > MAX_TID)
        wrong |= (found.cpu >= MAX_CPUS) | (found.time_ns < 0)
        if wrong.any():
            first = int(np.argmax(wrong))
            broken(
                self._where,
                f"no switch is between threads {found.own[first]} and {found.other[first]} on CPU "
                f"{found.cpu[first]} at {found.time_ns[first]} ns",
                chunk.byte(found.at[first]),
            )

    def _are_all_told(self, records: _Records, told: Told) -> bool:
        """Return whether these are of one CPU, and each event's switch is followed directly by the
        record of the leaving thread and then that of the coming one. Most chunks of a busy CPU are
        like that if nothing is hidden, and this check takes a fifth of the time of `_take`."""
        of = np.s_[: (len(records) + 1) // 2]
        outs, ins = records.rows(np.s_[::2]), records.rows(np.s_[1::2])
        more = len(told.at) - len(outs)  # The last one's records may be in the next chunk.
        if not len(outs) or more not in (0, 1) or (more and len(ins) < len(outs)):
            return False
        left, came, ends = told.left[of], told.came[of], told.ends[of]
        done = np.s_[: len(ins)]
        cpu = records.cpu[0]
        are_told: bool = (
            np.array_equal(outs.at, ends)
            and np.array_equal(ins.at, ends[done] + self._words)
            and bool((records.cpu == cpu).all() and (told.cpu == cpu).all())
            and bool(outs.is_out.all() and not ins.is_out.any())
            and np.array_equal(outs.own, left)
            and np.array_equal(outs.other, came)
            and np.array_equal(ins.own, came[done])
            and np.array_equal(ins.other, left[done])
        )
        return are_told

    def _take(self, records: _Records, told: Told) -> None:
        at, cpu, time_ns, is_out = records.at, records.cpu, records.time_ns, records.is_out
        own, other = records.own, records.other
        left, came = np.where(is_out, own, other), np.where(is_out, other, own)
        # A dead thread has no number any more; without it nothing can be restored.
        known = np.flatnonzero((left >= 0) & (came >= 0))
        # By CPU, and on each in the order of its buffer.
        order = known[_by_cpu(cpu[known])]
        pair = _pair(left[order], came[order])
        first_halves = self._first_halves(cpu[order], pair, is_out[order])
        order, pair = order[first_halves], pair[first_halves]
        key = cpu[order].astype(np.int64) << _PLACE_BITS | at[order]
        new = order[self._untold(key, pair, told)]
        if len(new):
            new = np.sort(new)
            state = np.where(records.misc[new] & _OUT_RUNNABLE, _RUNS, _SLEEPS)
            self._parts.append(
                Missing(
                    time_ns[new],
                    cpu[new].astype(np.int32),
                    left[new],
                    came[new],
                    np.where(is_out[new], state, UNTOLD).astype(np.int32),
                    told.before + np.searchsorted(told.at, at[new]),
                )
            )

    def _first_halves(
        self, cpu: NDArray[np.uint32], pair: NDArray[np.int64], is_out: Mask
    ) -> NDArray[np.intp]:
        """Return which are not the second record of the switch of the CPU's last record."""
        half = np.where(is_out, pair, _NONE)
        before = np.append(_NONE, half[:-1])
        starts = _starts(cpu)
        before[starts] = self._half[cpu[starts]]
        self._half[cpu] = half  # for equal indices the last one applies
        return np.flatnonzero(is_out | (before != pair))

    def _untold(self, key: NDArray[np.int64], pair: NDArray[np.int64], told: Told) -> Mask:
        """Return which of these records, one of each switch, have no event of their own right
        before them."""
        order = _by_cpu(told.cpu)
        told_cpu = told.cpu[order].astype(np.int64)
        told_key = told_cpu << _PLACE_BITS | told.at[order]
        told_pair = _pair(told.left[order], told.came[order])
        cpu = key >> _PLACE_BITS
        last = np.searchsorted(told_key, key) - 1
        is_here = last >= 0
        is_here[is_here] = told_cpu[last[is_here]] == cpu[is_here]
        starts = _starts(cpu)
        event = np.full(len(key), _NONE)
        event[starts] = self._event[cpu[starts]]
        # An event belongs to one switch: the first of those after it.
        is_news = is_here.copy()
        is_news[1:] &= (last[1:] != last[:-1]) | (cpu[1:] != cpu[:-1])
        event[is_news] = told_pair[last[is_news]]
        event[is_here & ~is_news] = _NONE
        self._event[told_cpu] = told_pair
        ends = np.append(starts[1:], len(cpu)) - 1 if len(cpu) else starts
        after = np.searchsorted(told_key, (cpu[ends] + 1) << _PLACE_BITS) - 1
        self._event[cpu[ends[last[ends] == after]]] = _NONE
        found: Mask = event != pair
        return found

    def missing(self, start_ns: int, end_ns: int) -> Missing:
        """Return the switches found between these times, on the CPUs that have any event: on others
        none should have been recorded."""
        names = Missing.__dataclass_fields__
        none = np.zeros(0, dtype=np.int32)
        found = Missing(
            *(np.concatenate([none, *(getattr(p, n) for p in self._parts)]) for n in names)
        )
        is_in = (found.time_ns >= start_ns) & (found.time_ns <= end_ns) & self._is_told[found.cpu]
        return Missing(*(getattr(found, name)[is_in] for name in names))


def _by_cpu(cpu: NDArray[Any]) -> NDArray[np.intp]:
    if not len(cpu) or (cpu == cpu[0]).all():
        return np.arange(len(cpu))
    return np.argsort(cpu.astype(np.uint16), kind="stable")


def _starts(cpu: NDArray[Any]) -> NDArray[np.intp]:
    """Return where another CPU's row begins."""
    if not len(cpu):
        return np.zeros(0, dtype=np.intp)
    return np.append(0, np.flatnonzero(cpu[1:] != cpu[:-1]) + 1)


def _pair(left: Numbers, came: Numbers) -> NDArray[np.int64]:
    return left.astype(np.int64) << 32 | came
