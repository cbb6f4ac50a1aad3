"""Write trace.dat, trace-cmd's own format (version 6), from what perf recorded.

A trace.dat holds what perf.data does: layouts of events, and of each event the very bytes that the
kernel made of it. Only what is around them differs. Sources: trace-cmd.dat.v6(5) for the file,
trace-cmd's lib/trace-cmd/trace-input.c for its options.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labctl.base.wording import printable
from labctl.store.jsonfile import replacing
from labctl.trace.model import Nanoseconds, Trace
from labctl.trace.perf.chain import Chunk, read_chunks
from labctl.trace.perf.formats import event_layouts
from labctl.trace.perf.head import Head, broken, check_wanted, read_head
from labctl.trace.perf.perfdata import read_trace, tracepoints
from labctl.trace.tracedat_pages import (
    HEADER_EVENT,
    HEADER_PAGE,
    MOST_BYTES,
    PAGE_BYTES,
    Batch,
    Pages,
)
from labctl.trace.tracepoints import SWITCH

_CPUSTAT, _TRACECLOCK, _TRACEID, _GUEST, _END = 2, 4, 11, 13, 0
_CLOCK = "[mono]"
"""Name of CLOCK_MONOTONIC in tracefs's trace_clock."""
_COMMON_BYTES = 8  # that every event begins with: its type, flags and thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """Hold what a host's trace.dat says of its guest's: `trace_id`, and the threads by vCPU."""

    trace_id: int
    vcpu_tids: Mapping[int, int]


def write_tracedat(
    source: Path,
    target: Path,
    *,
    to_host: Callable[[Nanoseconds], Nanoseconds] = lambda times: times,
    guest: Guest | None = None,
) -> int:
    """Write all tracepoints of a perf.data, and return the id that the file has for a host's.

    `to_host`: the host's CLOCK_MONOTONIC at times of the recorder's. Raises BrokenError where the
    perf.data can't be read, HostError where `target` can't be written.
    """
    # First for what is known at a recording's end only: names that threads had last, and losses.
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
    """Hold a perf.data's samples, with what `trace` knows of losses between them."""

    def __init__(self, trace: Trace, to_host: Callable[[Nanoseconds], Nanoseconds]) -> None:
        self._to_host = to_host
        self._gaps = defaultdict(list)
        self._lost: defaultdict[int, int] = defaultdict(int)
        for gap in trace.gaps:
            if gap.start_ns < gap.end_ns:  # and not after the last event of all
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
            broken(head.where, "an event was before the host was started", chunk.byte(starts[0]))
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
        """Return the statistics of each CPU that lost events, as tracefs's per_cpu/cpuN/stats has
        them. Those that it lost after its last one are nowhere else."""
        for cpu, count in sorted(self._lost.items()):
            yield _text(f"CPU: {cpu}\nentries: 0\noverrun: {count}\n")


def _head(
    head: Head,
    names: Mapping[int, str],
    options: list[tuple[int, bytes]],
    pages: NDArray[np.int64],
) -> bytes:
    """Return all that comes before the pages. `pages`: how many each CPU has."""
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
    trace-input.c).
    """
    count = max(guest.vcpu_tids, default=-1) + 1
    pairs = ((cpu, guest.vcpu_tids.get(cpu, 0)) for cpu in range(count))
    head = _text("guest") + struct.pack("<QI", guest.trace_id, count)
    return head + b"".join(struct.pack("<II", cpu, tid) for cpu, tid in pairs)


def _text(text: str) -> bytes:
    return text.encode() + b"\0"
