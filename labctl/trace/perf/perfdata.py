"""Read perf.data, the file of `perf record`, into columns.

The caller names the tracepoints and fields that it needs in advance, so that ten million events fit
into memory. The parts of the file and their sources are documented in `head` (events and their
fields) and `chain` (records).
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labctl.base.errors import FileError
from labctl.trace.model import SWITCH, Events, Nanoseconds, Numbers, Trace
from labctl.trace.perf.chain import MAX_CPUS, SAMPLE, Chunk, Gaps, Loss, Record, read_chunks
from labctl.trace.perf.head import (
    CPU,
    ID,
    IDENTIFIER,
    Field,
    Format,
    Head,
    broken,
    check_wanted,
    read_head,
)
from labctl.trace.perf.perf_threads import COMM_BYTES, MAX_TID, Threads
from labctl.trace.perf.switches import Missing, Switches, Told

# Gather the columns of one tracepoint from the samples of perf.data.


_LEAVES = ("prev_comm", "prev_pid")
_NAMED = (_LEAVES, ("next_comm", "next_pid"), ("comm", "pid"))
"""Fields of scheduler events with a thread's name, and the thread. A thread may change its name
while it runs, so the one that leaves a CPU has its newest."""

_PART = 1 << 18
"""Events sorted at a time, to bound the memory."""

_FEW = 1 << 16
"""Initial room for events: of eleven tracepoints most are rare, and the system may allocate
megabytes for a larger column."""

_RANGES: Final = tuple(
    (kind, np.iinfo(kind).min, np.iinfo(kind).max) for kind in (np.int16, np.int32, np.int64)
)
_TIME, _CPU, _TID = "(time)", "(cpu)", "(thread)"  # no field has such a name
_RAW_HEAD = 4  # the u32 with the number of bytes that follow


class Columns:
    """Hold a tracepoint's columns. `raw_words`: offset of the tracepoint's own bytes in samples;
    `data_bytes`: all records."""

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
        # Read each place once, whichever names it has.
        self.read = list(dict.fromkeys([*self.fields.values(), *(tid for _, tid, _ in self.named)]))
        self.places = {name: self.read.index(field) for name, field in self.fields.items()}
        self.named_places = [self.read.index(tid) for _, tid, _ in self.named]
        self.least_bytes = max((field.offset + field.size for field in used), default=0)
        shortest = min(8 * word + _RAW_HEAD for word in raw_words) + self.least_bytes
        self.most = data_bytes // shortest
        self.count = 0
        room = min(self.most, _FEW)
        # A column is as narrow as its values allow. Initially only the running thread is stored: a
        # sched_switch contains it twice, and equal columns are kept once.
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
        """Add the chunk's samples `own` of this tracepoint, whose own bytes, after their number,
        are at `raw_word`. Raises BrokenError if those are too few, or garbage."""
        starts = chunk.samples.take(own)
        self._check(chunk, starts, chunk.ends.take(own), raw_word)
        raw_at = 8 * raw_word + _RAW_HEAD
        tids = tids.take(own)
        if self.layout.common_pid is not None and tids.min(initial=0) < 0:
            # perf no longer knows the number of a thread that has died.
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
        """Return the stored values of a field so far."""
        return self.columns.get(name, self.columns[_TID])[: self.count]

    def _make_room_for(self, count: int) -> None:
        if self.count + count > len(self.columns[_TIME]):
            # Only the written part takes memory.
            for name, column in self.columns.items():
                self.columns[name] = _moved(column[: self.count], self.most, column.dtype.type)

    def _put(self, name: str, values: NDArray[Any]) -> None:
        column = self.columns.get(name)
        if column is None:  # it was the same as the running thread
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
        # Readers of the columns look threads up by number. As unsigned numbers, negative ones are
        # the largest.
        if tids.view(f"<u{tids.itemsize}").max(initial=0) > MAX_TID:
            first = int(np.argmax((tids < 0) | (tids > MAX_TID)))
            broken(
                self.where,
                f"{self.layout.name} names a thread {tids[first]}",
                chunk.byte(starts[first]),
            )

    def events(self, missing: Missing | None) -> Events:
        """Return the stored events, in order of time; for equal times, in the file's order.
        `missing`: events to insert. To be called once."""
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
    """Return the column, or a wider one that can hold such values; `count` are in it."""
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
    """Return the column with values inserted before these ascending places of the `count` in it. It
    is moved from its end on, a part at a time, so that it is not in memory twice."""
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
    """Sort `times`, and the columns with them, in place and stable.

    A file is almost in order: perf flushes one CPU's buffer after the other's. So it is sorted part
    by part; values of a part that are no later than anything after it are final. No column is in
    memory twice.
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
    unit = math.gcd(at, field.size)  # raw bytes begin within a word
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
        raise FileError(
            f"'{where}': '{name}' is {what} of {layout.name}",
            hint=f"The kernel that recorded it knows the integers {', '.join(integers)}.",
        )
    return field


def _is_name(field: Field | None) -> bool:
    return field is not None and field.size == COMM_BYTES and field.offset % 4 == 0


def _is_thread(field: Field | None) -> bool:
    return field is not None and field.thread


# Kinds of records: include/uapi/linux/perf_event.h; ID_INDEX is perf's own.
_MMAP, _LOST, _COMM, _FORK, _MMAP2, _LOST_SAMPLES, _ID_INDEX = 1, 2, 3, 7, 10, 13, 69
_OF_PROCESSES = {_MMAP: (2, 3), _MMAP2: (2, 3), _COMM: (2, 3), _FORK: (2, 4)}
"""Offsets of pid and tid in these records, in 4-byte words from their start."""

_LONGEST_NS = 24 * 3600 * 10**9
"""Limit on a trace's length, so that arithmetic on its times cannot overflow. A guest may write any
time."""

_BY_BPF = 1 << 15  # PERF_RECORD_MISC_LOST_SAMPLES_BPF: filtered out, not lost


def tracepoints(path: Path) -> tuple[str, ...]:
    """Return the tracepoints that a perf.data should contain: `("sched:sched_switch", ...)`. Raises
    BrokenError if it cannot be read."""
    with _opened(path) as file:
        return read_head(file, str(path), _size(file)).tracepoints


def read_trace(path: Path, wanted: Mapping[str, Sequence[str]]) -> Trace:
    """Return every event of the tracepoints in `wanted`, each with the integer fields named there:
    `{"sched:sched_switch": ("prev_pid", "next_pid")}`.

    Fields of threads are int32, the others int16, int32 or int64, as large as their values require
    (unsigned ones of 8 bytes in two's complement). A file that ends within a record is read up to
    there, and `problems` says so. Switches that the kernel hid from the tracepoint are included if
    perf recorded switches itself (`switches`). Raises BrokenError if it is not perf.data, is
    broken, contains too little, or was recorded without the wanted tracepoints.
    """
    problems: list[str] = []
    with _opened(path) as file:
        size = _size(file)
        reading = _Reading(read_head(file, str(path), size), wanted)
        for chunk in read_chunks(file, reading.head, size, problems):
            reading.take(chunk)
    return reading.trace(problems)


def _opened(path: Path) -> io.FileIO:
    try:
        return io.FileIO(path)
    except OSError as error:
        raise FileError(
            f"'{path}' can't be read: {error.strerror}",
            hint="Give the file that 'perf record -o FILE' wrote.",
        ) from error


def _size(file: io.FileIO) -> int:
    return file.seek(0, io.SEEK_END)


class _Reading:
    """Read a file in one pass."""

    def __init__(self, head: Head, wanted: Mapping[str, Sequence[str]]) -> None:
        self.head = head
        self.threads = Threads()
        self.gaps = Gaps()
        self.switches = Switches(head.where, head.trailer)
        self.cpus_of_ids: dict[int, int] = {}
        self.unknown_samples = 0
        self.start_ns, self.end_ns = 1 << 63, 0
        self.columns = {name: self._columns(name, fields) for name, fields in wanted.items()}
        self.wanted = [
            (index, self.columns[name], attr.raw_word)
            for index, attr in enumerate(head.attrs)
            if (name := head.name(attr)) in self.columns
        ]
        self.switch_attrs = [
            index for index, attr in enumerate(head.attrs) if head.name(attr) == SWITCH
        ]

    def _columns(self, name: str, fields: Sequence[str]) -> Columns:
        attrs = [attr for attr in self.head.attrs if self.head.name(attr) == name]
        if not attrs:
            raise FileError(
                f"'{self.head.where}' was recorded without {name}",
                hint=f"It has {', '.join(self.head.tracepoints) or 'no tracepoints'}.",
            )
        for attr in attrs:
            check_wanted(self.head, attr)
        return Columns(
            self.head.where,
            self.head.formats[attrs[0].config],
            fields,
            raw_words={attr.raw_word for attr in attrs},
            data_bytes=self.head.data_end - self.head.data_start,
        )

    def take(self, chunk: Chunk) -> None:
        halves = chunk.words.view("<u4")
        twice = 2 * chunk.samples
        pids = halves[2 * self.head.tid_word :].take(twice).view("<i4")
        tids = halves[2 * self.head.tid_word + 1 :].take(twice).view("<i4")
        times = chunk.words[self.head.time_word :].take(chunk.samples).view("<i8")
        cpus = halves[2 * self.head.cpu_word :].take(twice).view("<i4")
        if len(times):
            first_ns = int(times.min())
            most_cpus = int(cpus.view("<u4").max())  # negative ones are the largest
            if first_ns < 0 or most_cpus >= MAX_CPUS or int(tids.max()) > MAX_TID:
                self._check(chunk, tids, times, cpus)
            self.start_ns = min(self.start_ns, first_ns)
            self.end_ns = max(self.end_ns, int(times.max()))
        losses = []
        for record in chunk.others:
            if record.kind == _LOST:
                losses.append(self._loss(chunk, record))
            else:
                self._other(chunk, halves, record)
        self.threads.run_in(tids, pids)
        switches = self.columns.get(SWITCH)
        before = switches.count if switches is not None else 0
        counts = np.bincount(chunk.events, minlength=len(self.head.attrs)).tolist()
        for index, columns, raw_word in self.wanted:
            if counts[index]:
                own = np.flatnonzero(chunk.events == index)
                columns.take(chunk, own, raw_word, times, cpus, tids, self.threads)
        if self.head.has_switches:
            self.switches.take(chunk, self._told(chunk, cpus, before))
        self.gaps.take(losses, chunk.samples, times, cpus)

    def _told(self, chunk: Chunk, cpus: NDArray[np.int32], before: int) -> Told | None:
        """Return the chunk's sched_switch events, of which `before` are in the columns already from
        earlier ones; None if the caller did not request the threads that left and came."""
        columns = self.columns.get(SWITCH)
        if columns is None or not columns.fields.keys() >= {"prev_pid", "next_pid"}:
            return None
        is_own = chunk.events == self.switch_attrs[0]
        for index in self.switch_attrs[1:]:
            is_own |= chunk.events == index
        own = np.flatnonzero(is_own)
        left, came = columns.column("prev_pid")[before:], columns.column("next_pid")[before:]
        at, ends = chunk.samples.take(own), chunk.ends.take(own)
        return Told(at, ends, cpus.take(own), left, came, before)

    def _check(
        self,
        chunk: Chunk,
        tids: NDArray[np.int32],
        times: NDArray[np.int64],
        cpus: NDArray[np.int32],
    ) -> None:
        wrong = np.flatnonzero((tids > MAX_TID) | (times < 0) | (cpus < 0) | (cpus >= MAX_CPUS))
        if len(wrong):
            first = wrong[0]
            broken(
                self.head.where,
                f"no event is of thread {tids[first]} on CPU {cpus[first]} at {times[first]} ns",
                chunk.byte(chunk.samples[first]),
            )

    def _trailer(self, chunk: Chunk, record: Record, bit: int) -> int:
        back = self.head.trailer[bit]
        if back >= record.size:
            broken(self.head.where, "a record is too short", chunk.byte(record.at))
        return int(chunk.words[record.at + record.size - back])

    def _cpu(self, chunk: Chunk, record: Record) -> int:
        cpu = self._trailer(chunk, record, CPU) & 0xFFFFFFFF
        if cpu >= MAX_CPUS:
            broken(self.head.where, f"there is no CPU {cpu}", chunk.byte(record.at))
        return cpu

    def _loss(self, chunk: Chunk, record: Record) -> Loss:
        # struct { header, u64 id, u64 lost, sample_id }
        cpu = self._cpu(chunk, record)
        if record.size < 3 + len(self.head.trailer):
            broken(self.head.where, "a record is too short", chunk.byte(record.at))
        return Loss(at=record.at, cpu=cpu, count=int(chunk.words[record.at + 2]))

    def _other(self, chunk: Chunk, halves: NDArray[np.uint32], record: Record) -> None:
        at, end = 2 * record.at, 2 * (record.at + record.size)
        if record.kind == SAMPLE:
            self.unknown_samples += 1
        elif record.kind in _OF_PROCESSES:
            pid_at, tid_at = _OF_PROCESSES[record.kind]
            if at + tid_at >= end:
                broken(self.head.where, "a record is too short", chunk.byte(record.at))
            pid, tid = int(halves[at + pid_at]), int(halves[at + tid_at])
            self.threads.runs_in(tid, pid)
            if record.kind == _COMM:
                name = halves[at + 4 : end - 2 * len(self.head.trailer)].tobytes()
                self.threads.is_called(tid, chunk.byte(record.at), name.split(b"\0")[0])
        elif record.kind == _ID_INDEX:
            # struct { header, u64 nr, { u64 id, idx, cpu, tid }[nr] }
            entries = chunk.words[record.at + 2 : record.at + record.size]
            for first in range(0, len(entries) - 3, 4):
                self.cpus_of_ids[int(entries[first])] = int(entries[first + 2])
        elif record.kind == _LOST_SAMPLES and not record.misc & _BY_BPF:
            # struct { header, u64 lost, sample_id }; in one made by perf itself the CPU is
            # meaningless.
            bit = IDENTIFIER if IDENTIFIER in self.head.trailer else ID
            known = self.cpus_of_ids.get(self._trailer(chunk, record, bit), MAX_CPUS)
            cpu = known if known < MAX_CPUS else self._cpu(chunk, record)
            self.gaps.lost_in_all(cpu, int(chunk.words[record.at + 1]))

    def trace(self, problems: list[str]) -> Trace:
        if self.unknown_samples:
            problems.append(
                f"'{self.head.where}' has {self.unknown_samples:,} samples of unknown events."
            )
        start_ns = min(self.start_ns, self.end_ns)
        if self.end_ns - start_ns > _LONGEST_NS:
            broken(
                self.head.where,
                f"its events are {(self.end_ns - start_ns) / 1e9:,.0f} s apart, more than a day",
            )
        events = {}
        for name in [*self.columns]:
            columns = self.columns.pop(name)
            events[name] = columns.events(
                self.switches.missing(start_ns, self.end_ns) if name == SWITCH else None
            )
        return Trace(
            where=self.head.where,
            start_ns=start_ns,
            end_ns=self.end_ns,
            events=events,
            names=self.threads.names,
            processes=self.threads.processes,
            gaps=self.gaps.gaps(start_ns, self.end_ns),
            problems=tuple(problems),
            every_switch=self.switches.are_told,
        )
