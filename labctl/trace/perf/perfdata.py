"""Read perf.data, the file that `perf record` writes, into columns.

Its caller says in advance which tracepoints and which of their fields it is read for, so that ten
million events fit into memory. What the file's parts are, and by which sources, is told in
`perfdata_head` (which events), `perfdata_formats` (their fields) and `perfdata_chain` (records).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labctl.base.errors import BrokenError
from labctl.trace.model import Trace
from labctl.trace.perf.chain import SAMPLE, Chunk, Record, read_chunks
from labctl.trace.perf.gaps import MAX_CPUS, Gaps, Loss
from labctl.trace.perf.head import CPU, ID, IDENTIFIER, Head, broken, check_wanted, read_head
from labctl.trace.perf.perf_columns import Columns
from labctl.trace.perf.perf_threads import MAX_TID, Threads
from labctl.trace.perf.switches import Switches, Told
from labctl.trace.tracepoints import SWITCH

# Kinds of records: include/uapi/linux/perf_event.h; ID_INDEX is perf's own.
_MMAP, _LOST, _COMM, _FORK, _MMAP2, _LOST_SAMPLES, _ID_INDEX = 1, 2, 3, 7, 10, 13, 69
_OF_PROCESSES = {_MMAP: (2, 3), _MMAP2: (2, 3), _COMM: (2, 3), _FORK: (2, 4)}
"""Places of pid and tid in these records, in 4-byte words from their start."""

_LONGEST_NS = 24 * 3600 * 10**9
"""Limit on a trace's length, so that arithmetic on its times can't overflow. A guest may write
any.
"""

_BY_BPF = 1 << 15  # PERF_RECORD_MISC_LOST_SAMPLES_BPF: filtered out, not lost


def tracepoints(path: Path) -> tuple[str, ...]:
    """Return the tracepoints that a perf.data was to record: `("sched:sched_switch", ...)`. Raises
    BrokenError where it can't be read."""
    with _opened(path) as file:
        return read_head(file, str(path), _size(file)).tracepoints


def read_trace(path: Path, wanted: Mapping[str, Sequence[str]]) -> Trace:
    """Return every event of the tracepoints in `wanted`, each with the integer fields that are
    named there: `{"sched:sched_switch": ("prev_pid", "next_pid")}`.

    Fields of threads are int32, the others int16, int32 or int64, as all values need (of unsigned
    ones of 8 bytes, two's complement). A file that ends within a record is
    read up to there, and `problems` says so. Switches that the kernel kept from the tracepoint are
    among its events where perf recorded switches itself (`perfdata_switches`). Raises BrokenError
    where it is no perf.data, is broken, tells too little, or wasn't to record what is wanted.
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
        raise BrokenError(
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
            raise BrokenError(
                f"'{self.head.where}' was not to record {name}",
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
            most_cpus = int(cpus.view("<u4").max())  # of these, negative ones are the largest
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
        earlier ones; None where they weren't asked who left and came."""
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
            # struct { header, u64 lost, sample_id }; where perf made it, its CPU says nothing.
            bit = IDENTIFIER if IDENTIFIER in self.head.trailer else ID
            known = self.cpus_of_ids.get(self._trailer(chunk, record, bit), MAX_CPUS)
            cpu = known if known < MAX_CPUS else self._cpu(chunk, record)
            self.gaps.lost_in_all(cpu, int(chunk.words[record.at + 1]))

    def trace(self, problems: list[str]) -> Trace:
        if self.unknown_samples:
            problems.append(
                f"'{self.head.where}' has {self.unknown_samples:,} samples of events that it "
                "doesn't name."
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
