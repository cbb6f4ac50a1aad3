"""Read the head of a perf.data file: its events, and the layout of their records.

Sources: tools/perf/Documentation/perf.data-file-format.txt and tools/perf/util/header.c for the
file, include/uapi/linux/perf_event.h for `struct perf_event_attr` and the records.
"""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from labctl.base.errors import FileError

# Read the layout of tracepoints' fields in their records, as the recording kernel reported it to
# perf.
#
# perf.data's section HEADER_TRACING_DATA is written by tools/perf/util/trace-event-info.c
# (read_tracing_data) and read by trace-event-read.c; a format's text is that of tracefs's
# `events/SYSTEM/EVENT/format` (Documentation/trace/events.rst).


_MAGIC = b"\x17\x08\x44tracing"
# A guest may write anything: neither expression may try a stretch of text twice.
_FIELD = re.compile(
    r"\s*field:(?P<declared>[^;]*);\s*offset:(?P<offset>\d+);"
    r"\s*size:(?P<size>\d+);(?:\s*signed:(?P<signed>\d+);)?"
)
_ID = re.compile(r"^ID:[ \t]*(\d+)", re.MULTILINE)
_NAME = re.compile(r"^name:[ \t]*(\S+)", re.MULTILINE)

_MOST = 4096
"""Limit on systems, or events of one: a kernel has some thousand, and perf writes the recorded
ones."""
_MOST_BYTES = 1 << 20
"""Limit on one format: the longest of Linux's have some thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Describe a field. `offset` and `size` in bytes, from the start of the tracepoint's own bytes.
    `array`: also one that only holds a place (`__data_loc`, `__rel_loc`). `thread`: its values are
    ids of threads."""

    offset: int
    size: int
    signed: bool
    array: bool
    thread: bool

    @property
    def is_integer(self) -> bool:
        return not self.array and self.size in (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Describe a tracepoint's format. `name`: `sched:sched_switch`. `fields`: the tracepoint's own,
    without `common_*`.
    """

    name: str
    id: int
    fields: Mapping[str, Field]
    common_pid: Field | None


class _Reader:
    """Parse the section from its start on; a ValueError means that it ends too early."""

    def __init__(self, text: bytes) -> None:
        self.text, self.at = text, 0

    def take(self, size: int) -> bytes:
        if size > len(self.text) - self.at:
            raise ValueError(f"expected {size} more bytes")
        self.at += size
        return self.text[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def count(self) -> int:
        found = self.number(4)
        if found > _MOST:
            raise ValueError(f"expected {found:,} more of them")
        return found

    def string(self) -> str:
        end = self.text.find(b"\0", self.at)
        if end < 0:
            raise ValueError("a string has no end")
        found = self.take(end + 1 - self.at)
        return found[:-1].decode(errors="replace")


def read_formats(section: bytes, where: str, at: int) -> list[Format]:
    """Return the formats of every tracepoint in the section, which lies at byte `at` of the file.
    Raises BrokenError if the section is invalid."""
    reader = _Reader(section)
    with _explained(reader, where, at):
        _skip_header(reader)
        return _formats(reader)


def event_layouts(section: bytes, where: str, at: int) -> bytes:
    """Return the part of the section between the ring-buffer header and the names of threads:
    layouts of ftrace's own events and of the others, symbols of the kernel, formats of
    trace_printk. trace.dat contains the same part (trace-cmd.dat.v6(5)). Raises BrokenError if the
    section ends too early."""
    reader = _Reader(section)
    with _explained(reader, where, at):
        _skip_header(reader)
        start = reader.at
        _formats(reader)
        for _ in ("kallsyms", "printk_formats"):
            reader.take(reader.number(4))
    return section[start : reader.at]


@contextmanager
def _explained(reader: _Reader, where: str, at: int) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise FileError(
            f"'{where}' can't be read as perf.data at byte {at + reader.at:,}, "
            f"among the layouts of its tracepoints: {error}",
            hint="Record the trace again, and let perf end by itself or by SIGINT.",
        ) from None


def _skip_header(reader: _Reader) -> None:
    if reader.take(len(_MAGIC)) != _MAGIC:
        raise ValueError("they don't begin with 'tracing'")
    reader.string()  # the version; all have the parts that are read here
    if reader.number(1) != 0:
        raise ValueError("they are of a big-endian machine")
    reader.take(5)  # size of a long, of a page
    for _ in ("header_page", "header_event"):
        reader.string()
        reader.take(reader.number(8))


def _formats(reader: _Reader) -> list[Format]:
    for _ in range(reader.count()):
        reader.take(reader.number(8))  # formats of ftrace's own events
    formats = []
    for _ in range(reader.count()):
        system = reader.string()
        for _ in range(reader.count()):
            text = reader.take(reader.number(8)).decode(errors="replace")
            formats.append(parse_format(system, text))
            if len(formats) > _MOST:
                raise ValueError(f"they are more than {_MOST:,}")
    return formats


def parse_format(system: str, text: str) -> Format:
    """Return the format of one tracepoint. Raises ValueError if it is invalid."""
    name, number = _NAME.search(text), _ID.search(text)
    if name is None or number is None:
        raise ValueError(f"an event of '{system}' has no name or no ID")
    if len(text) > _MOST_BYTES:
        raise ValueError(f"the format of '{name[1][:40]}' has {len(text):,} bytes")
    matches = (_FIELD.match(line) for line in text.splitlines())
    fields = dict(_field(system, match) for match in matches if match)
    return Format(
        name=f"{system}:{name[1]}",
        id=int(number[1]),
        fields={n: field for n, field in fields.items() if not n.startswith("common_")},
        common_pid=fields.get("common_pid"),
    )


def _field(system: str, match: re.Match[str]) -> tuple[str, Field]:
    """Return the field of a C declaration: `char comm[16]`, `__data_loc char[] text`."""
    declared = match["declared"].rstrip()
    is_array = declared.endswith("]")
    before = declared[: declared.rfind("[")] if is_array else declared
    name = re.split(r"\W", before)[-1]
    return name, Field(
        offset=int(match["offset"]),
        size=int(match["size"]),
        signed=match["signed"] == "1",
        array=is_array or "_loc " in before,
        # Fields of system calls have 8 bytes, and -1 among their values. A guest cannot redefine
        # the scheduler's fields that are used as look-up keys.
        thread=(before.split() == ["pid_t", name] and match["size"] == "4")
        or (system == "sched" and name.endswith("pid")),
    )


RECORD = (
    "Record with 'perf record -a -c 1 -k CLOCK_MONOTONIC -e EVENT... -o FILE', without -g, -z "
    "and --aux options, and end perf with SIGINT."
)
_ANOTHER = "Record the trace again: " + RECORD[0].lower() + RECORD[1:]

_HEADER = struct.Struct("<8s9Q")  # up to the first word of the feature flags
_HEADER_BYTES = 104
_PIPE_BYTES = 16
_SECTION = struct.Struct("<QQ")
_ATTR = struct.Struct("<IIQQQQQ")
_CLOCK = struct.Struct("<i")
_CLOCK_AT = 92
_ATTR_BYTES = 96
"""Size of the needed part of an attr; later kernels' additions don't matter here."""

_TRACING_DATA = 1
_COMPRESSED = 27
_MAX_ATTRS = 4096
_MAX_ID_BYTES = 1 << 24
"""Limit on the ids of all events together: 64 events on 32,768 CPUs. Attrs may share a place in the
file, so that its size does not bound them."""

_TRACEPOINT = 2  # PERF_TYPE_TRACEPOINT
_FREQUENCY, _ID_ALL, _USE_CLOCK, _SWITCHES = 1 << 10, 1 << 18, 1 << 25, 1 << 26
_CLOCK_MONOTONIC = 1
_READ_GROUP = 1 << 3

IP, TID, TIME, ADDR, READ, CALLCHAIN, ID, CPU, PERIOD, STREAM, RAW = (1 << n for n in range(11))
IDENTIFIER = 1 << 16
_ALIKE = (IDENTIFIER, IP, TID, TIME, ADDR, ID, STREAM, CPU)
"""Bits of `sample_type` for the start of samples, in this order (perf_event.h, PERF_RECORD_SAMPLE).
Each takes 8 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attr:
    """Hold one event of the file, from a `struct perf_event_attr`; `ids` as in its records."""

    kind: int
    config: int
    period: int
    sample_type: int
    read_format: int
    flags: int
    clock: int
    ids: tuple[int, ...]

    @property
    def is_tracepoint(self) -> bool:
        return self.kind == _TRACEPOINT

    @property
    def counts_each(self) -> bool:
        return self.period == 1 and not self.flags & _FREQUENCY

    @property
    def is_monotonic(self) -> bool:
        return bool(self.flags & _USE_CLOCK) and self.clock == _CLOCK_MONOTONIC

    @property
    def raw_word(self) -> int:
        """Return the offset, in 8-byte words, of the tracepoint's own bytes in a sample."""
        reads = 1 + sum(bool(self.read_format & 1 << bit) for bit in (0, 1, 2, 4))
        return (
            1
            + sum(bool(self.sample_type & bit) for bit in _ALIKE)
            + bool(self.sample_type & PERIOD)
            + (reads if self.sample_type & READ else 0)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Describe the file. `data_start` to `data_end`: the records, in bytes of the file. `formats`:
    by `config`. `layouts`: their source section, which lies at `layouts_at`."""

    where: str
    data_start: int
    data_end: int
    attrs: tuple[Attr, ...]
    formats: Mapping[int, Format]
    layouts: bytes
    layouts_at: int

    def name(self, attr: Attr) -> str | None:
        """Return `sched:sched_switch`; None for an event that is not a tracepoint or has no
        format."""
        found = self.formats.get(attr.config) if attr.is_tracepoint else None
        return found.name if found else None

    @property
    def tracepoints(self) -> tuple[str, ...]:
        names = (self.name(attr) for attr in self.attrs)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def has_switches(self) -> bool:
        """Return whether perf was told to write its own records of context switches."""
        return any(attr.flags & _SWITCHES for attr in self.attrs)

    @property
    def _sample_type(self) -> int:
        return self.attrs[0].sample_type

    @property
    def ids(self) -> tuple[NDArray[np.uint64], NDArray[np.int16]]:
        """Return the ids of all events, ascending, and for each the index of its attr."""
        pairs = sorted((id_, index) for index, a in enumerate(self.attrs) for id_ in a.ids)
        return (
            np.array([id_ for id_, _ in pairs], dtype=np.uint64),
            np.array([index for _, index in pairs], dtype=np.int16),
        )

    def _word(self, bit: int) -> int:
        before = _ALIKE[: _ALIKE.index(bit)]
        return 1 + sum(bool(self._sample_type & one) for one in before)

    @property
    def id_word(self) -> int | None:
        """Return the offset of the event's id in a sample; None if there is only one event and no
        id."""
        for bit in (IDENTIFIER, ID):
            if self._sample_type & bit:
                return self._word(bit)
        return None

    @property
    def tid_word(self) -> int:
        return self._word(TID)

    @property
    def time_word(self) -> int:
        return self._word(TIME)

    @property
    def cpu_word(self) -> int:
        return self._word(CPU)

    @property
    def trailer(self) -> Mapping[int, int]:
        """Return the end of other records (`struct sample_id`): the bit of each word to its place,
        counted from the record's end. perf_event.h, "sample_id_all"."""
        order = (IDENTIFIER, CPU, STREAM, ID, TIME, TID)
        present = [bit for bit in order if self._sample_type & bit]
        return {bit: back for back, bit in enumerate(present, start=1)}


def broken(where: str, what: str, at: int | None = None) -> NoReturn:
    """Raise BrokenError: the file is not valid perf.data."""
    place = "" if at is None else f" at byte {at:,}"
    raise FileError(f"'{where}' can't be read as perf.data{place}: {what}", hint=_ANOTHER)


def refused(where: str, what: str) -> NoReturn:
    """Raise BrokenError: it was recorded in a way that is not supported here."""
    raise FileError(f"'{where}' {what}", hint=RECORD)


def read_head(file: io.FileIO, where: str, file_bytes: int) -> Head:
    """Return the file's description of its records. Raises BrokenError with the reason and a
    remedy."""
    data_start, data_bytes, attrs_at, attrs_bytes, attr_bytes, flags = _header(
        file, where, file_bytes
    )
    attrs = _attrs(file, where, attrs_at, attrs_bytes, attr_bytes)
    if flags & 1 << _COMPRESSED:
        refused(where, "holds compressed records, which labctl doesn't support")
    if data_bytes == 0:
        broken(where, "perf was ended before it could finish the file", 40)
    features_at = data_start + data_bytes
    if features_at + _SECTION.size > file_bytes:
        broken(where, "it is truncated: names and layouts of its events come last", file_bytes)
    if not flags & 1 << _TRACING_DATA:
        refused(where, "holds no tracepoints")
    # The first of the sections that the flags announce; bit 0 announces none.
    at, size = _SECTION.unpack(_read(file, where, features_at, _SECTION.size))
    layouts = _read(file, where, at, min(size, file_bytes))
    head = Head(
        where=where,
        data_start=data_start,
        data_end=features_at,
        attrs=attrs,
        formats={found.id: found for found in read_formats(layouts, where, at)},
        layouts=layouts,
        layouts_at=at,
    )
    _check(head)
    return head


def _header(file: io.FileIO, where: str, file_bytes: int) -> tuple[int, int, int, int, int, int]:
    if file_bytes == 0:
        broken(where, "it is empty")
    start = _read(file, where, 0, min(file_bytes, _HEADER_BYTES))
    if start[:8] == b"2ELIFREP":
        refused(where, "was recorded on a big-endian machine, which labctl doesn't support")
    if start[:8] != b"PERFILE2":
        broken(where, "it doesn't begin with 'PERFILE2'", 0)
    if len(start) >= _PIPE_BYTES and start[8:16] == _PIPE_BYTES.to_bytes(8, "little"):
        refused(where, "was written to a pipe, a format that labctl doesn't support")
    if len(start) < _HEADER_BYTES:
        broken(where, "it is truncated within its header", file_bytes)
    _, size, attr_bytes, attrs_at, attrs_bytes, data_at, data_bytes, _, _, flags = _HEADER.unpack(
        start[: _HEADER.size]
    )
    if size != _HEADER_BYTES:
        broken(where, f"its header has {size} bytes instead of {_HEADER_BYTES}", 8)
    if data_at < _HEADER_BYTES or data_at > file_bytes:
        broken(where, f"its records begin at byte {data_at:,}, outside of it", 40)
    return data_at, data_bytes, attrs_at, attrs_bytes, attr_bytes, flags


def _attrs(
    file: io.FileIO, where: str, at: int, total_bytes: int, each_bytes: int
) -> tuple[Attr, ...]:
    if each_bytes < _ATTR_BYTES + _SECTION.size or total_bytes % each_bytes:
        broken(where, f"its {total_bytes} bytes of attrs don't hold attrs of {each_bytes}", at)
    if not 0 < total_bytes // each_bytes <= _MAX_ATTRS:
        broken(where, f"it says that it has {total_bytes // each_bytes} events", at)
    attrs = []
    left = _MAX_ID_BYTES
    for start in range(at, at + total_bytes, each_bytes):
        attr = _read(file, where, start, each_bytes)
        kind, _, config, period, sample_type, read_format, flags = _ATTR.unpack_from(attr)
        ids_at, ids_bytes = _SECTION.unpack(attr[-_SECTION.size :])
        if ids_bytes % 8 or ids_bytes > left:
            broken(where, f"an event has {ids_bytes} bytes of ids", start)
        left -= ids_bytes
        attrs.append(
            Attr(
                kind=kind,
                config=config,
                period=period,
                sample_type=sample_type,
                read_format=read_format,
                flags=flags,
                clock=_CLOCK.unpack_from(attr, _CLOCK_AT)[0],
                ids=tuple(np.frombuffer(_read(file, where, ids_at, ids_bytes), "<u8").tolist()),
            )
        )
    return tuple(attrs)


def _check(head: Head) -> None:
    """Check that every event has its id, thread, time and CPU in the same places."""
    if len({attr.sample_type & sum(_ALIKE) for attr in head.attrs}) > 1:
        refused(head.where, "holds events whose records are laid out in different ways")
    for bit, what, option in (
        (TID, "thread", "no option that leaves it out"),
        (TIME, "time", "-T"),
        (CPU, "CPU", "--sample-cpu"),
    ):
        if not head._sample_type & bit:
            refused(head.where, f"has records without their {what} ('perf record' with {option})")
    if head.id_word is None and len(head.attrs) > 1:
        refused(head.where, "has records without their event's id")
    if head.id_word is not None and not len(head.ids[0]):
        broken(head.where, "its events have no ids")
    if not all(attr.flags & _ID_ALL for attr in head.attrs):
        refused(head.where, "has records without times (recorded with 'sample_id_all' off)")


def check_wanted(head: Head, attr: Attr) -> None:
    """Raise BrokenError if this tracepoint was recorded with too little data."""
    name = head.name(attr)
    if not attr.sample_type & RAW:
        refused(head.where, f"has no fields of {name}: 'perf record -R' records them")
    if attr.sample_type & CALLCHAIN or (attr.sample_type & READ and attr.read_format & _READ_GROUP):
        refused(head.where, f"has call chains or counters of groups with {name}")
    if not attr.counts_each:
        refused(head.where, f"has only a part of {name}'s events")
    if not attr.is_monotonic:
        refused(head.where, f"has times of {name} that aren't CLOCK_MONOTONIC's")


def _read(file: io.FileIO, where: str, at: int, size: int) -> bytes:
    # A garbage offset may be beyond the range of seek(2).
    if at > os.fstat(file.fileno()).st_size:
        broken(where, f"it points to byte {at:,}, beyond its end")
    file.seek(at)
    found = file.read(size)
    if len(found) != size:
        broken(where, f"it is truncated: expected {size} bytes there", at)
    return found
