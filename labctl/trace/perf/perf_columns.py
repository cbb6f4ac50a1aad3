"""Gather the columns of one tracepoint from the samples of perf.data."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, Final

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

_FEW = 1 << 16
"""Events that have room at first: of eleven tracepoints most are rare, and the system may give
memory to a larger column by megabytes."""

_RANGES: Final = tuple(
    (kind, np.iinfo(kind).min, np.iinfo(kind).max) for kind in (np.int16, np.int32, np.int64)
)
_TIME, _CPU, _TID = "(time)", "(cpu)", "(thread)"  # no field is called so
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
        # A column is as narrow as its values let it be. Of threads there is at first that which
        # ran: a sched_switch tells of it twice, and what is the same is kept once.
        self.columns: dict[str, NDArray[Any]] = {
            _TIME: np.empty(room, np.int64),
            _CPU: np.empty(room, np.int16),
            _TID: np.empty(room, np.int32),
            **{n: np.empty(room, np.int16) for n, field in self.fields.items() if not field.thread},
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
        starts = chunk.samples.take(own)
        self._check(chunk, starts, chunk.ends.take(own), raw_word)
        raw_at = 8 * raw_word + _RAW_HEAD
        tids = tids.take(own)
        if self.layout.common_pid is not None and tids.min(initial=0) < 0:
            # A thread that has died has no number any more, by which perf would know it.
            tids = np.where(tids < 0, gathered(chunk, starts, raw_at, self.layout.common_pid), tids)
            self._check_threads(chunk, starts, tids)
        read = [gathered(chunk, starts, raw_at, field) for field in self.read]
        for field, values in zip(self.read, read, strict=True):
            if field.thread:
                self._check_threads(chunk, starts, values)
        self._make_room_for(len(own))
        for name, place in self.places.items():
            if name in self.columns or not np.array_equal(read[place], tids):
                self._put(name, read[place])
        self._put(_TIME, times.take(own))
        self._put(_CPU, cpus.take(own))
        self._put(_TID, tids)
        self.count += len(own)
        at = chunk.offset + 8 * starts
        for (comm, _, leaves), place in zip(self.named, self.named_places, strict=True):
            threads.are_called(
                read[place],
                at,
                chunk.words.view("<u4"),
                2 * starts + (raw_at + comm.offset) // 4,
                anew=leaves,
            )

    def column(self, name: str) -> NDArray[Any]:
        """Return what was taken of a field so far."""
        return self.columns.get(name, self.columns[_TID])[: self.count]

    def _make_room_for(self, count: int) -> None:
        if self.count + count > len(self.columns[_TIME]):
            # Of all this only what is written to takes memory.
            for name, column in self.columns.items():
                self.columns[name] = _moved(column[: self.count], self.most, column.dtype.type)

    def _put(self, name: str, values: NDArray[Any]) -> None:
        column = self.columns.get(name)
        if column is None:  # it was the same as the thread that ran
            known = self.columns[_TID]
            column = _moved(known[: self.count], len(known), np.int32)
        column = self.columns[name] = _holding(column, self.count, values)
        column[self.count : self.count + len(values)] = values

    def _check(
        self, chunk: Chunk, starts: NDArray[np.int64], ends: NDArray[np.int64], raw_word: int
    ) -> None:
        raw_bytes = chunk.words.view("<u4")[2 * raw_word :].take(2 * starts)
        room = 8 * (ends - starts) - 8 * raw_word - _RAW_HEAD
        is_short = int(raw_bytes.min(initial=self.least_bytes)) < self.least_bytes
        if is_short or (raw_bytes > room).any():
            wrong = (raw_bytes < self.least_bytes) | (raw_bytes > room)
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
        columns, count = self.columns, self.count
        if missing is not None and len(missing):
            count += len(missing)
            more: dict[str, NDArray[Any]] = {
                _TIME: missing.time_ns,
                _CPU: missing.cpu,
                _TID: missing.left,
                "prev_pid": missing.left,
                "prev_state": missing.state,
                "next_pid": missing.came,
            }
            nothing = np.zeros(len(missing), np.int16)
            for name in columns:
                values = more.get(name, nothing)
                columns[name] = _inserted(columns[name], self.count, missing.place, values)
        columns = {name: column[:count] for name, column in columns.items()}
        del self.columns
        _sort(columns[_TIME], [column for name, column in columns.items() if name != _TIME])
        return Events(
            time_ns=columns[_TIME],
            cpu=columns[_CPU],
            tid=columns[_TID],
            fields={name: columns.get(name, columns[_TID]) for name in self.fields},
        )


def _moved(known: NDArray[Any], room: int, kind: type[np.signedinteger[Any]]) -> NDArray[Any]:
    column = np.empty(room, kind)
    column[: len(known)] = known
    return column


def _holding(column: NDArray[Any], count: int, values: NDArray[Any]) -> NDArray[Any]:
    """Return the column, or a wider one that has room for such values; `count` are in it."""
    if column.dtype == values.dtype or not len(values):
        return column
    least, most = int(values.min()), int(values.max())
    kind = next(kind for kind, low, high in _RANGES if low <= least and most <= high)
    if np.can_cast(kind, column.dtype):
        return column
    return _moved(column[:count], len(column), kind)


def _inserted(
    column: NDArray[Any], count: int, places: NDArray[np.int64], values: NDArray[Any]
) -> NDArray[Any]:
    """Return the column with values before these ascending places of the `count` in it. It is moved
    from its end on, a part at a time, so that it isn't in memory twice."""
    column = _holding(column, count, values)
    if len(column) < count + len(values):
        column = _moved(column[:count], count + len(values), column.dtype.type)
    end, last = count, len(values)
    while last:
        begin = max(0, end - _PART)
        first = int(np.searchsorted(places, begin))
        part = np.insert(column[begin:end], places[first:last] - begin, values[first:last])
        column[begin + first : begin + first + len(part)] = part
        end, last = begin, first
    return column


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
        found = parts[at // unit :].take(places)
    else:
        found = np.zeros(len(starts), dtype=f"<u{field.size}")
        for index in range(field.size // unit):
            part = parts[at // unit + index :].take(places).astype(found.dtype)
            found |= part << np.array(8 * unit * index, dtype=found.dtype)
    if field.signed:
        found = found.view(f"<i{field.size}")
    return found.astype(_kind(field), copy=False)


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
