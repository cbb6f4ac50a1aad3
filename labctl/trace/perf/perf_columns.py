"""Gather the columns of one tracepoint from the samples of perf.data."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labctl.base.errors import BrokenError
from labctl.trace.model import Events, Nanoseconds, Numbers
from labctl.trace.perf.chain import Chunk
from labctl.trace.perf.formats import Field, Format
from labctl.trace.perf.head import broken
from labctl.trace.perf.perf_threads import COMM_BYTES, MAX_TID, Threads
from labctl.trace.perf.switches import Missing

_LEAVES = ("prev_comm", "prev_pid")
_NAMED = (_LEAVES, ("next_comm", "next_pid"), ("comm", "pid"))
"""Fields of scheduler events that tell a thread's name, and whose it is. A thread changes its name
while it runs, so the one that leaves a CPU has its newest."""

_PART = 1 << 18
"""Events that are put in order at a time: it bounds the memory."""

_FEW = 1 << 12
"""Events that have room at first: of eleven tracepoints most are rare, and the system may give
memory to a column by megabytes."""

_INT32 = np.iinfo(np.int32)
_RAW_HEAD = 4  # the u32 that says how many bytes follow


class Columns:
    """Hold a tracepoint's columns. `raw_words`: where samples of its events have its own bytes;
    `data_bytes`: all records.
    """

    def __init__(
        self,
        where: str,
        layout: Format,
        fields: Sequence[str],
        *,
        raw_words: Collection[int],
        data_bytes: int,
    ) -> None:
        self.where = where
        self.layout = layout
        self.fields = {name: _integer(where, layout, name) for name in fields}
        self.named = [
            (layout.fields[comm], layout.fields[tid], (comm, tid) == _LEAVES)
            for comm, tid in _NAMED
            if _is_name(layout.fields.get(comm)) and _is_thread(layout.fields.get(tid))
        ]
        used = [*self.fields.values()]
        used += [field for comm, tid, _ in self.named for field in (comm, tid)]
        if layout.common_pid is not None:
            used.append(layout.common_pid)
        # Each place is read once, whichever names it has.
        self.read = list(dict.fromkeys([*self.fields.values(), *(tid for _, tid, _ in self.named)]))
        self.places = {name: self.read.index(field) for name, field in self.fields.items()}
        self.named_places = [self.read.index(tid) for _, tid, _ in self.named]
        self.least_bytes = max((field.offset + field.size for field in used), default=0)
        shortest = min(8 * word + _RAW_HEAD for word in raw_words) + self.least_bytes
        self.most = data_bytes // shortest
        self.count = 0
        room = min(self.most, _FEW)
        self.times = np.empty(room, dtype=np.int64)
        self.cpus = np.empty(room, dtype=np.int32)
        self.tids = np.empty(room, dtype=np.int32)
        self.columns: dict[str, NDArray[Any]] = {
            name: np.empty(room, dtype=np.int32 if field.signed else _kind(field))
            for name, field in self.fields.items()
        }

    def take(
        self,
        chunk: Chunk,
        own: NDArray[np.int64],
        raw_word: int,
        times: Nanoseconds,
        cpus: NDArray[np.int32],
        tids: NDArray[np.int32],
        threads: Threads,
    ) -> None:
        """Take the chunk's samples `own` of this tracepoint, whose own bytes, after their number,
        are at `raw_word`. Raises BrokenError where those are too few, or garbage."""
        starts = chunk.samples[own]
        self._check(chunk, starts, chunk.ends[own], raw_word)
        raw_at = 8 * raw_word + _RAW_HEAD
        tids = tids[own]
        if self.layout.common_pid is not None and tids.min(initial=0) < 0:
            # A thread that has died has no number any more, by which perf would know it.
            tids = np.where(tids < 0, gathered(chunk, starts, raw_at, self.layout.common_pid), tids)
            self._check_threads(chunk, starts, tids)
        new = self._room_for(len(own))
        self.times[new] = times[own]
        self.cpus[new] = cpus[own]
        self.tids[new] = tids
        read = [gathered(chunk, starts, raw_at, field) for field in self.read]
        for field, values in zip(self.read, read, strict=True):
            if field.thread:
                self._check_threads(chunk, starts, values)
        for name, place in self.places.items():
            self._put(name, new, read[place])
        at = chunk.offset + 8 * starts
        for (comm, _, leaves), place in zip(self.named, self.named_places, strict=True):
            threads.are_called(
                read[place],
                at,
                chunk.words.view("<u4"),
                2 * starts + (raw_at + comm.offset) // 4,
                anew=leaves,
            )

    def _room_for(self, count: int) -> slice:
        new = slice(self.count, self.count + count)
        if new.stop > len(self.times):
            # Of all this only what is written to takes memory.
            self.times, self.cpus = self._grown(self.times), self._grown(self.cpus)
            self.tids = self._grown(self.tids)
            self.columns = {name: self._grown(column) for name, column in self.columns.items()}
        self.count = new.stop
        return new

    def _grown(self, column: NDArray[Any], dtype: type[np.int64] | None = None) -> NDArray[Any]:
        grown = np.empty(self.most, dtype=dtype or column.dtype)
        grown[: self.count] = column[: self.count]
        return grown

    def _put(self, name: str, new: slice, values: Numbers) -> None:
        """Store values. A signed column of 8 bytes, such as a thread's state, is int32 until a
        value doesn't fit: half the memory."""
        column = self.columns[name]
        if column.dtype != values.dtype and not _fit(values):
            column = self.columns[name] = self._grown(column, np.int64)
        column[new] = values

    def _check(
        self, chunk: Chunk, starts: NDArray[np.int64], ends: NDArray[np.int64], raw_word: int
    ) -> None:
        raw_bytes = chunk.words[raw_word:][starts] & np.uint64(0xFFFFFFFF)
        room = 8 * (ends - starts) - 8 * raw_word - _RAW_HEAD
        wrong = (raw_bytes < self.least_bytes) | (raw_bytes > room.view("<u8"))
        if wrong.any():
            first = int(np.argmax(wrong))
            broken(
                self.where,
                f"{self.layout.name} has {raw_bytes[first]} bytes of fields, "
                f"of which {self.least_bytes} are needed and {room[first]} recorded",
                chunk.byte(starts[first]),
            )

    def _check_threads(self, chunk: Chunk, starts: NDArray[np.int64], tids: Numbers) -> None:
        # Whoever reads the columns looks threads up by number.
        # Of these numbers taken as unsigned, negative ones are the largest.
        if tids.view(f"<u{tids.itemsize}").max(initial=0) > MAX_TID:
            first = int(np.argmax((tids < 0) | (tids > MAX_TID)))
            broken(
                self.where,
                f"{self.layout.name} names a thread {tids[first]}",
                chunk.byte(starts[first]),
            )

    def events(self, missing: Missing | None) -> Events:
        """Return what was taken, in order of time; of equal times, in the file's. `missing`: what
        belongs between. To be asked for once."""
        taken = slice(0, self.count)
        times, cpus, tids = self.times[taken], self.cpus[taken], self.tids[taken]
        fields = {name: self.columns.pop(name)[taken] for name in self.fields}
        del self.times, self.cpus, self.tids
        if missing is not None and len(missing):
            # One column at a time is in memory twice.
            times = np.insert(times, missing.place, missing.time_ns)
            cpus = np.insert(cpus, missing.place, missing.cpu)
            tids = np.insert(tids, missing.place, missing.left)
            more = {
                "prev_pid": missing.left,
                "prev_state": missing.state,
                "next_pid": missing.came,
            }
            for name in fields:
                fields[name] = np.insert(fields[name], missing.place, more.get(name, 0))
        _sort(times, [cpus, tids, *fields.values()])
        # A sched_switch tells twice who ran. What is the same is kept once.
        for field in fields.values():
            if field.dtype == np.int32 and np.array_equal(field, tids):
                tids = field
        return Events(time_ns=times, cpu=cpus, tid=tids, fields=fields)


def _sort(times: Nanoseconds, columns: Sequence[NDArray[Any]]) -> None:
    """Sorts `times`, and the columns with them, in place and stable.

    A file is almost in order: perf flushes one CPU's buffer after the other's. So it is sorted part
    by part, and what of a part is no later than anything after it is done. No column is in memory
    twice.
    """
    if not len(times):
        return
    bounds = [*range(0, len(times), _PART), len(times)]
    earliest = np.minimum.reduceat(times, bounds[:-1])
    limits = np.minimum.accumulate(earliest[::-1])[::-1].tolist()
    done = 0
    for end, limit in zip(bounds[1:], [*limits[1:], np.iinfo(np.int64).max], strict=True):
        part = times[done:end]
        if np.any(part[1:] < part[:-1]):
            order = np.argsort(part, kind="stable")
            for column in (times, *columns):
                column[done:end] = column[done:end][order]
        done += int(np.searchsorted(part, limit, side="right"))


def gathered(chunk: Chunk, starts: NDArray[np.int64], raw_at: int, field: Field) -> Numbers:
    """Return a field of all these samples, whose own bytes begin `raw_at` bytes after their
    start."""
    at = raw_at + field.offset
    unit = math.gcd(at, field.size)  # raw bytes begin in the middle of a word
    parts: NDArray[Any] = chunk.words.view(f"<u{unit}")
    places = starts * (8 // unit)
    found: NDArray[Any]
    if unit == field.size:
        found = parts[at // unit :][places]
    else:
        found = np.zeros(len(starts), dtype=f"<u{field.size}")
        for index in range(field.size // unit):
            part = parts[at // unit + index :][places].astype(found.dtype)
            found |= part << np.array(8 * unit * index, dtype=found.dtype)
    if field.signed:
        found = found.view(f"<i{field.size}")
    return found.astype(_kind(field), copy=False)


def _fit(values: Numbers) -> bool:
    return bool(_INT32.min <= values.min(initial=0) and values.max(initial=0) <= _INT32.max)


def _kind(field: Field) -> np.dtype[Any]:
    return np.dtype(np.int32 if field.size < 4 or (field.size == 4 and field.signed) else np.int64)


def _integer(where: str, layout: Format, name: str) -> Field:
    field = layout.fields.get(name)
    if field is None or not field.is_integer:
        integers = [known for known, found in layout.fields.items() if found.is_integer]
        what = "no field" if field is None else "no integer"
        raise BrokenError(
            f"'{where}': '{name}' is {what} of {layout.name}",
            hint=f"The kernel that recorded it knows the integers {', '.join(integers)}.",
        )
    return field


def _is_name(field: Field | None) -> bool:
    return field is not None and field.size == COMM_BYTES and field.offset % 4 == 0


def _is_thread(field: Field | None) -> bool:
    return field is not None and field.thread
