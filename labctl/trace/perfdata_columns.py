"""The columns of one tracepoint, gathered from the samples of perf.data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labctl.base.errors import BrokenError
from labctl.trace.model import Events, Nanoseconds, Numbers
from labctl.trace.perfdata_chain import Chunk
from labctl.trace.perfdata_formats import Field, Format
from labctl.trace.perfdata_head import broken
from labctl.trace.perfdata_threads import COMM_BYTES, Threads

_NAMED = (("prev_comm", "prev_pid"), ("next_comm", "next_pid"), ("comm", "pid"))
"""Fields of scheduler events that tell a thread's name, and whose it is."""

_RAW_HEAD = 4  # the u32 that says how many bytes follow


class Columns:
    def __init__(self, where: str, layout: Format, fields: Sequence[str]) -> None:
        self.where = where
        self.layout = layout
        self.fields = {name: _integer(where, layout, name) for name in fields}
        self.named = [
            (layout.fields[comm], layout.fields[tid])
            for comm, tid in _NAMED
            if _is_name(layout.fields.get(comm)) and _is_tid(layout.fields.get(tid))
        ]
        used = [*self.fields.values(), *(field for pair in self.named for field in pair)]
        if layout.common_pid is not None:
            used.append(layout.common_pid)
        self.least_bytes = max((field.offset + field.size for field in used), default=0)
        self.times: list[Nanoseconds] = []
        self.cpus: list[NDArray[np.int32]] = []
        self.tids: list[NDArray[np.int32]] = []
        self.columns: dict[str, list[Numbers]] = {name: [] for name in self.fields}

    def take(
        self,
        chunk: Chunk,
        starts: NDArray[np.int64],
        raw_word: int,
        times: Nanoseconds,
        cpus: NDArray[np.int32],
        tids: NDArray[np.int32],
        threads: Threads,
    ) -> None:
        """Samples of this tracepoint that begin at these words of the chunk and have its own
        bytes, after their number, at `raw_word`. Raises BrokenError where those are too few."""
        self._check(chunk, starts, raw_word)
        raw_at = 8 * raw_word + _RAW_HEAD
        if self.layout.common_pid is not None and len(tids) and tids.min() < 0:
            # A thread that has died has no number any more, by which perf would know it.
            current = gathered(chunk, starts, raw_at, self.layout.common_pid)
            tids = np.where(tids < 0, current, tids).astype(np.int32)
        self.times.append(times)
        self.cpus.append(cpus)
        self.tids.append(tids)
        read = {
            field: gathered(chunk, starts, raw_at, field)
            for field in {*self.fields.values(), *(tid for _, tid in self.named)}
        }
        for name, field in self.fields.items():
            self.columns[name].append(read[field])
        halves = chunk.words.view("<u4")
        places = chunk.offset + 8 * starts
        for comm, tid in reversed(self.named):
            threads.are_called(read[tid], places, halves, 2 * starts + (raw_at + comm.offset) // 4)

    def _check(self, chunk: Chunk, starts: NDArray[np.int64], raw_word: int) -> None:
        raw_bytes = chunk.words.view("<u4")[2 * raw_word :][2 * starts].astype(np.int64)
        room = (chunk.words[starts] >> np.uint64(48)).astype(np.int64) - 8 * raw_word - _RAW_HEAD
        wrong = np.flatnonzero((raw_bytes < self.least_bytes) | (raw_bytes > room))
        if len(wrong):
            first = wrong[0]
            broken(
                self.where,
                f"{self.layout.name} has {raw_bytes[first]} bytes of fields, "
                f"of which {self.least_bytes} are needed and {room[first]} recorded",
                chunk.byte(starts[first]),
            )

    def events(self) -> Events:
        """What was taken, in order of time; of equal times, in the file's. Gives up its own."""
        times = _joined(self.times, np.dtype(np.int64))
        order = None
        if np.any(times[1:] < times[:-1]):
            # Timsort: a file is runs in order, one per CPU and flush.
            order = np.argsort(times, kind="stable")
            times = times[order]

        def column(parts: list[Any], kind: np.dtype[Any]) -> NDArray[Any]:
            joined = _joined(parts, kind)
            return joined if order is None else joined[order]

        return Events(
            time_ns=times,
            cpu=column(self.cpus, np.dtype(np.int32)),
            tid=column(self.tids, np.dtype(np.int32)),
            fields={
                name: column(parts, _kind(self.fields[name]))
                for name, parts in self.columns.items()
            },
        )


def gathered(chunk: Chunk, starts: NDArray[np.int64], raw_at: int, field: Field) -> Numbers:
    """A field of all these samples, whose own bytes begin `raw_at` bytes after their start."""
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


def _kind(field: Field) -> np.dtype[Any]:
    return np.dtype(np.int32 if field.size < 4 or (field.size == 4 and field.signed) else np.int64)


def _joined(parts: list[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    # One column at a time is in memory twice.
    joined = np.concatenate(parts) if parts else np.empty(0, dtype=kind)
    parts.clear()
    return joined


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


def _is_tid(field: Field | None) -> bool:
    return field is not None and field.is_integer and field.size == 4 and field.signed
