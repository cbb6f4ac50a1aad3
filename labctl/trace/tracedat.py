"""Write trace.dat, trace-cmd's own format (version 6), from perf's recordings.

A trace.dat contains the same as perf.data: layouts of events, and for each event the kernel's own
bytes. Only the container differs. Sources: trace-cmd.dat.v6(5) for the file, trace-cmd's
lib/trace-cmd/trace-input.c for its options.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from labctl.base.wording import printable
from labctl.store.jsonfile import replacing
from labctl.trace.model import SWITCH, Nanoseconds, Trace
from labctl.trace.perf.chain import Chunk, read_chunks
from labctl.trace.perf.head import Head, broken, check_wanted, event_layouts, read_head
from labctl.trace.perf.perfdata import read_trace, tracepoints

# Pack events into pages of the kernel's ring buffer, which make up a trace.dat.
#
# A page holds one CPU's events: a head (the time of its first event, and the number of bytes that
# follow), then each event with the time since the previous one. Sources:
# include/linux/ring_buffer.h (`struct ring_buffer_event`), kernel/trace/ring_buffer.c (`struct
# buffer_data_page`, RB_MISSED_EVENTS), and libtraceevent's kbuffer-parse.c, with which trace-cmd
# and KernelShark read them.


PAGE_BYTES = 4096
HEADER_PAGE = (
    "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n"
    "\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n"
    "\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n"
    f"\tfield: char data;\toffset:16;\tsize:{PAGE_BYTES - 16};\tsigned:1;\n"
)
"""Layout of these pages, in the words of tracefs's events/header_page."""
HEADER_EVENT = (
    "# compressed entry header\n"
    "\ttype_len    :    5 bits\n"
    "\ttime_delta  :   27 bits\n"
    "\tarray       :   32 bits\n"
    "\n"
    "\tpadding     : type == 29\n"
    "\ttime_extend : type == 30\n"
    "\ttime_stamp : type == 31\n"
    "\tdata max type_len  == 28\n"
)

_WORDS = PAGE_BYTES // 4
_HEAD_WORDS = 4
_ROOM = _WORDS - _HEAD_WORDS - 2  # the events may be followed by the number of those lost before
_TYPE_BITS, _DELTA_BITS = 5, 27
_SHORT = 28
"""Largest size, in words, that an event's first word can hold."""
MOST_BYTES = 4 * (_ROOM - 4)
"""Limit on an event's own bytes, with room for its time and its size."""
_TIME_EXTEND = 30
_EXTENDED_WORDS = 2
_MISSED, _MISSED_STORED = 1 << 31, 1 << 30

_HELD_BACK = 2
_TOGETHER = 1 << 16
"""Events packed at a time."""
_COPIED = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Hold events in the order in which they were recorded. `start`, `words`: where in `data` the
    bytes of each are, in words of 4 bytes. `lost`: how many its CPU lost before it."""

    cpu: NDArray[np.int32]
    time_ns: Nanoseconds
    lost: NDArray[np.int64]
    start: NDArray[np.int64]
    words: NDArray[np.int64]
    data: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.cpu)

    def only(self, chosen: NDArray[np.bool_]) -> Batch:
        """Return some of them, without the others' bytes."""
        start, words = self.start[chosen], self.words[chosen]
        end = np.cumsum(words)
        within = np.arange(end[-1] if len(end) else 0) - np.repeat(end - words, words)
        return Batch(
            cpu=self.cpu[chosen],
            time_ns=self.time_ns[chosen],
            lost=self.lost[chosen],
            start=end - words,
            words=words,
            data=self.data[np.repeat(start, words) + within],
        )


class Pages:
    """Process events in the file's order, and return pages by CPU. `spool`: a temporary file for
    pages; only a few of each CPU's are in memory.

    An interrupt's event may have been recorded before the one that it interrupted. So each CPU's
    last two pages are held back, and their events are sorted with the next ones.
    """

    def __init__(self, spool: IO[bytes]) -> None:
        self._spool = spool
        self._cpus: list[NDArray[np.int32]] = [np.zeros(0, dtype=np.int32)]  # of written pages
        self._waiting: list[Batch] = []
        self._new = 0

    def take(self, batch: Batch) -> None:
        self._waiting.append(batch)
        self._new += len(batch)
        if self._new >= _TOGETHER:
            self._pack(held_back=_HELD_BACK)

    def by_cpu(self) -> tuple[NDArray[np.int64], Iterator[NDArray[np.uint8]]]:
        """Return how many pages each CPU has, and all of them, some at a time: CPU 0's, CPU 1's,
        and so on. To be called once, at the end."""
        self._pack(held_back=0)
        self._spool.flush()
        cpus = np.concatenate(self._cpus)
        return np.bincount(cpus, minlength=1), self._in_order(np.argsort(cpus, kind="stable"))

    def _in_order(self, order: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
        if len(order):
            shape = (len(order), PAGE_BYTES)
            pages = np.memmap(self._spool, dtype=np.uint8, mode="r", shape=shape)
            for first in range(0, len(order), _COPIED):
                yield pages[order[first : first + _COPIED]]

    def _pack(self, *, held_back: int) -> None:
        events = _in_time(self._waiting)
        self._waiting, self._new = [], 0
        if not len(events):
            return
        layout = _Layout.of(events)
        first_cpu = events.cpu[layout.firsts]
        is_written = np.ones(len(first_cpu), dtype=bool)
        if held_back:
            is_written[-held_back:] = False
            is_written[:-held_back] = first_cpu[held_back:] == first_cpu[:-held_back]
            rest = events.only(~is_written[layout.page])
            self._waiting.append(rest)
        self._cpus.append(first_cpu[is_written])
        self._spool.write(_filled(events, layout, is_written).data)


def _in_time(batches: list[Batch]) -> Batch:
    """Return all of them, by CPU and time; with equal times in the order of recording."""
    offsets = np.cumsum([0, *(len(batch.data) for batch in batches)])
    none = [np.zeros(0, dtype=np.int64)]
    cpu, time_ns, lost, words = (
        np.concatenate([*none, *(getattr(batch, name) for batch in batches)])
        for name in ("cpu", "time_ns", "lost", "words")
    )
    starts = [b.start + offset for b, offset in zip(batches, offsets[:-1], strict=True)]
    order = np.lexsort((time_ns, cpu))
    return Batch(
        cpu=cpu[order].astype(np.int32),
        time_ns=time_ns[order],
        lost=lost[order],
        start=np.concatenate([*none, *starts])[order],
        words=words[order],
        data=np.concatenate([np.zeros(0, "<u4"), *(batch.data for batch in batches)]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Hold the layout of events in pages. `firsts`: those that begin a page. For each event: the
    number of its page; its end if all were in one row, and its size, in words; the time since the
    previous one in its page, and whether that takes words of its own."""

    firsts: NDArray[np.int64]
    page: NDArray[np.int64]
    end: NDArray[np.int64]
    size: NDArray[np.int64]
    since_ns: Nanoseconds
    is_extended: NDArray[np.bool_]

    @classmethod
    def of(cls, events: Batch) -> _Layout:
        is_next = events.cpu[1:] == events.cpu[:-1]
        since_ns = np.zeros(len(events), dtype=np.int64)
        since_ns[1:] = np.where(is_next, np.diff(events.time_ns), 0)
        is_extended = since_ns >> _DELTA_BITS > 0
        size = 1 + events.words + (events.words > _SHORT) + _EXTENDED_WORDS * is_extended
        end = np.cumsum(size)
        begins_anew = np.flatnonzero(~is_next | (events.lost[1:] > 0)) + 1
        firsts = _firsts(end.tolist(), [*begins_anew.tolist(), len(events)])
        # The head of a page holds the time of its first event.
        since_ns[firsts] = 0
        return cls(
            firsts=firsts,
            page=np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(events))),
            end=end,
            size=size,
            since_ns=since_ns,
            is_extended=is_extended,
        )


def _firsts(ends: list[int], stops: list[int]) -> NDArray[np.int64]:
    """Put as many events into each page as fit; none continues across a stop."""
    firsts = []
    at = 0
    for stop in stops:
        while at < stop:
            firsts.append(at)
            begin = ends[at - 1] if at else 0
            at = min(stop, bisect_right(ends, begin + _ROOM, at))
    return np.array(firsts, dtype=np.int64)


def _filled(events: Batch, layout: _Layout, is_written: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Return the pages to write."""
    last = np.append(layout.firsts[1:], len(events)) - 1
    begin = layout.end[layout.firsts] - layout.size[layout.firsts]
    used = (layout.end[last] - begin)[is_written]
    pages = np.zeros((len(used), _WORDS), dtype="<u4")
    _put_heads(pages, used, events, layout.firsts[is_written])

    own = np.flatnonzero(is_written[layout.page])
    page = layout.page[own]
    place = np.cumsum(is_written)[page] - 1
    at = place * _WORDS + _HEAD_WORDS + layout.end[own] - layout.size[own] - begin[page]
    words, since_ns = events.words[own], layout.since_ns[own]
    flat = pages.reshape(-1)
    extended = layout.is_extended[own]
    flat[at[extended]] = _event_head(_TIME_EXTEND, since_ns[extended])
    flat[at[extended] + 1] = since_ns[extended] >> _DELTA_BITS
    at += _EXTENDED_WORDS * extended
    is_long = words > _SHORT
    flat[at] = _event_head(np.where(is_long, 0, words), np.where(extended, 0, since_ns))
    flat[at[is_long] + 1] = 4 * (1 + words[is_long])
    at += 1 + is_long
    for count in np.unique(words).tolist():
        alike = words == count
        source = sliding_window_view(events.data, count)
        target = sliding_window_view(flat, count, writeable=True)
        target[at[alike]] = source[events.start[own[alike]]]
    return pages


def _put_heads(
    pages: NDArray[np.uint32], used: NDArray[np.int64], events: Batch, firsts: NDArray[np.int64]
) -> None:
    lost = events.lost[firsts]
    heads = pages[:, :_HEAD_WORDS].view("<u8")
    heads[:, 0] = events.time_ns[firsts]
    heads[:, 1] = 4 * used + np.where(lost > 0, _MISSED | _MISSED_STORED, 0)
    missed = np.flatnonzero(lost)
    for half in range(2):
        pages[missed, _HEAD_WORDS + used[missed] + half] = lost[missed] >> 32 * half & 0xFFFFFFFF


def _event_head(kind: int | NDArray[np.int64], since_ns: Nanoseconds) -> NDArray[np.int64]:
    return kind | (since_ns & ((1 << _DELTA_BITS) - 1)) << _TYPE_BITS


_CPUSTAT, _TRACECLOCK, _TRACEID, _GUEST, _END = 2, 4, 11, 13, 0
_CLOCK = "[mono]"
"""Name of CLOCK_MONOTONIC in tracefs's trace_clock."""
_COMMON_BYTES = 8  # at the start of every event: its type, flags and thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """Hold a guest's entry in its host's trace.dat: `trace_id`, and the threads by vCPU."""

    trace_id: int
    vcpu_tids: Mapping[int, int]


def write_tracedat(
    source: Path,
    target: Path,
    *,
    to_host: Callable[[Nanoseconds], Nanoseconds] = lambda times: times,
    guest: Guest | None = None,
) -> int:
    """Write all tracepoints of a perf.data, and return the file's id for a host's.

    `to_host`: function from the recorder's times to the host's CLOCK_MONOTONIC. Raises BrokenError
    if the perf.data cannot be read, HostError if `target` cannot be written.
    """
    # First read what is known only at a recording's end: threads' last names, and losses.
    named = {SWITCH: ()} if SWITCH in tracepoints(source) else {}
    trace = read_trace(source, named)
    trace_id = _id(f"{source.name} {trace.start_ns}")
    with replacing(target) as file, tempfile.TemporaryFile(dir=target.parent) as spool:
        events = _Events(trace, to_host)
        pages = Pages(spool)
        with io.FileIO(source) as recorded:
            size = os.fstat(recorded.fileno()).st_size
            head = read_head(recorded, str(source), size)
            for batch in events.batches(recorded, head, size):
                pages.take(batch)
        counts, blocks = pages.by_cpu()
        options = [
            *((_CPUSTAT, text) for text in events.statistics()),
            (_TRACECLOCK, _text(_CLOCK)),
            (_TRACEID, struct.pack("<Q", trace_id)),
        ]
        if guest is not None:
            options.append((_GUEST, _guest(guest)))
        file.write(_head(head, trace.names, options, counts))
        for block in blocks:
            file.write(block.data)
    return trace_id


class _Events:
    """Hold a perf.data's samples, with the losses between them from `trace`."""

    def __init__(self, trace: Trace, to_host: Callable[[Nanoseconds], Nanoseconds]) -> None:
        self._to_host = to_host
        self._gaps = defaultdict(list)
        self._lost: defaultdict[int, int] = defaultdict(int)
        for gap in trace.gaps:
            if gap.start_ns < gap.end_ns:  # and not after the last event
                self._gaps[gap.cpu].append((gap.end_ns, gap.count))
            self._lost[gap.cpu] += gap.count

    def batches(self, file: io.FileIO, head: Head, file_bytes: int) -> Iterator[Batch]:
        for attr in head.attrs:
            if head.name(attr) is not None:
                check_wanted(head, attr)
        has_bytes = np.array([head.name(attr) is not None for attr in head.attrs])
        raw_words = np.array([attr.raw_word for attr in head.attrs])
        for chunk in read_chunks(file, head, file_bytes, []):
            own = np.flatnonzero(has_bytes[chunk.events])
            if len(own):
                yield self._batch(chunk, head, own, raw_words[chunk.events[own]])

    def _batch(
        self, chunk: Chunk, head: Head, own: NDArray[np.int64], raw_word: NDArray[np.int64]
    ) -> Batch:
        halves = chunk.words.view("<u4")
        starts = chunk.samples[own]
        size_at = 2 * (starts + raw_word)
        size = halves[size_at].astype(np.int64)
        room = 4 * (2 * chunk.ends[own] - size_at - 1)
        most = np.minimum(room, MOST_BYTES)
        wrong = np.flatnonzero((size < _COMMON_BYTES) | (size > most) | (size % 4 != 0))
        if len(wrong):
            first = wrong[0]
            broken(
                head.where,
                f"an event has {size[first]} bytes of its own, instead of {_COMMON_BYTES} to "
                f"{most[first]}",
                chunk.byte(starts[first]),
            )
        cpu = halves[2 * head.cpu_word :][2 * starts].view("<i4")
        own_ns = chunk.words[head.time_word :][starts].view("<i8")
        time_ns = self._to_host(own_ns)
        if np.any(time_ns < 0):
            broken(head.where, "an event precedes the host's boot", chunk.byte(starts[0]))
        return Batch(
            cpu=cpu,
            time_ns=time_ns,
            lost=self._lost_before(cpu, own_ns),
            start=size_at + 1,
            words=size // 4,
            data=halves.copy(),
        )

    def _lost_before(self, cpu: NDArray[np.int32], time_ns: Nanoseconds) -> NDArray[np.int64]:
        lost = np.zeros(len(cpu), dtype=np.int64)
        for number in np.unique(cpu).tolist():
            gaps = self._gaps.get(number, [])
            own = np.flatnonzero(cpu == number) if gaps else ()
            while gaps and len(own):
                end_ns, count = gaps[0]
                after = np.flatnonzero(time_ns[own] >= end_ns)
                if not len(after):
                    break
                lost[own[after[0]]] += count
                gaps.pop(0)
        return lost

    def statistics(self) -> Iterator[bytes]:
        """Return the statistics of each CPU that lost events, in the form of tracefs's
        per_cpu/cpuN/stats. Events lost after a CPU's last one are only there."""
        for cpu, count in sorted(self._lost.items()):
            yield _text(f"CPU: {cpu}\nentries: 0\noverrun: {count}\n")


def _head(
    head: Head,
    names: Mapping[int, str],
    options: list[tuple[int, bytes]],
    pages: NDArray[np.int64],
) -> bytes:
    """Return everything before the pages. `pages`: how many each CPU has."""
    known = {tid: " ".join(printable(name).split()) for tid, name in names.items()}
    lines = "".join(f"{tid} {name}\n" for tid, name in known.items() if tid and name)
    parts = [
        b"\x17\x08\x44tracing6\0",
        struct.pack("<BBI", 0, 8, PAGE_BYTES),  # little-endian, the size of a long
        _file("header_page", HEADER_PAGE),
        _file("header_event", HEADER_EVENT),
        event_layouts(head.layouts, head.where, head.layouts_at),
        struct.pack("<Q", len(_text(lines))),
        _text(lines),
        struct.pack("<I", len(pages)),
        b"options  \0",
        *(struct.pack("<HI", number, len(data)) + data for number, data in options),
        struct.pack("<H", _END),
        b"flyrecord\0",
    ]
    size = sum(map(len, parts)) + 16 * len(pages)
    data_at = -(-size // PAGE_BYTES) * PAGE_BYTES
    ends = data_at + PAGE_BYTES * np.cumsum(pages)
    table = np.stack([ends - PAGE_BYTES * pages, PAGE_BYTES * pages], axis=1)
    return b"".join([*parts, table.astype("<u8").tobytes(), bytes(data_at - size)])


def _id(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _file(name: str, content: str) -> bytes:
    return _text(name) + struct.pack("<Q", len(content)) + content.encode()


def _guest(guest: Guest) -> bytes:
    """Write the option by which KernelShark finds the thread of each vCPU (trace_guest_load of
    trace-input.c)."""
    count = max(guest.vcpu_tids, default=-1) + 1
    pairs = ((cpu, guest.vcpu_tids.get(cpu, 0)) for cpu in range(count))
    head = _text("guest") + struct.pack("<QI", guest.trace_id, count)
    return head + b"".join(struct.pack("<II", cpu, tid) for cpu, tid in pairs)


def _text(text: str) -> bytes:
    return text.encode() + b"\0"
