"""Read how the fields of tracepoints lie in their records, as the recording kernel told perf.

perf.data's section HEADER_TRACING_DATA is what tools/perf/util/trace-event-info.c writes
(read_tracing_data) and trace-event-read.c reads; a format's text is that of tracefs's
`events/SYSTEM/EVENT/format` (Documentation/trace/events.rst).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from labctl.base.errors import BrokenError

_MAGIC = b"\x17\x08\x44tracing"
# What a guest wrote may be anything: neither expression may try a stretch of text twice.
_FIELD = re.compile(
    r"\s*field:(?P<declared>[^;]*);\s*offset:(?P<offset>\d+);"
    r"\s*size:(?P<size>\d+);(?:\s*signed:(?P<signed>\d+);)?"
)
_ID = re.compile(r"^ID:[ \t]*(\d+)", re.MULTILINE)
_NAME = re.compile(r"^name:[ \t]*(\S+)", re.MULTILINE)

_MOST = 4096
"""Systems, or events of one: a kernel has some thousand, and perf writes those it recorded."""
_MOST_BYTES = 1 << 20
"""Limit on one format: the longest of Linux's have some thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Describe a field. `offset` and `size` in bytes, from the start of the tracepoint's own bytes.
    `array`: also one of which only the place is there (`__data_loc`, `__rel_loc`). `thread`: its
    values are ids of threads."""

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
    """Takes the section apart from its start on; a ValueError is where it ends too early."""

    def __init__(self, text: bytes) -> None:
        self.text, self.at = text, 0

    def take(self, size: int) -> bytes:
        if size > len(self.text) - self.at:
            raise ValueError(f"{size} bytes were to follow")
        self.at += size
        return self.text[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def count(self) -> int:
        found = self.number(4)
        if found > _MOST:
            raise ValueError(f"{found:,} of them were to follow")
        return found

    def string(self) -> str:
        end = self.text.find(b"\0", self.at)
        if end < 0:
            raise ValueError("a string has no end")
        found = self.take(end + 1 - self.at)
        return found[:-1].decode(errors="replace")


def read_formats(section: bytes, where: str, at: int) -> list[Format]:
    """Return the formats of every tracepoint in the section, which lies at byte `at` of the file.
    Raises BrokenError where it isn't what perf writes."""
    reader = _Reader(section)
    with _explained(reader, where, at):
        _skip_header(reader)
        return _formats(reader)


def event_layouts(section: bytes, where: str, at: int) -> bytes:
    """Return what of a section that was read lies between the header of the ring buffer and the
    names of threads: layouts of ftrace's own events and of the others, symbols of the kernel,
    formats of trace_printk. trace.dat has the very same there (trace-cmd.dat.v6(5)). Raises
    BrokenError where the section ends too early."""
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
        raise BrokenError(
            f"'{where}' can't be read as perf.data at byte {at + reader.at:,}, "
            f"among the layouts of its tracepoints: {error}",
            hint="Record the trace anew, and let perf end by itself or by SIGINT.",
        ) from None


def _skip_header(reader: _Reader) -> None:
    if reader.take(len(_MAGIC)) != _MAGIC:
        raise ValueError("they don't begin with 'tracing'")
    reader.string()  # the version, of which all have what we read
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
    """Return the format of one tracepoint. Raises ValueError where it isn't one."""
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
    """Declared as in C: `char comm[16]`, `__data_loc char[] text`."""
    declared = match["declared"].rstrip()
    is_array = declared.endswith("]")
    before = declared[: declared.rfind("[")] if is_array else declared
    name = re.split(r"\W", before)[-1]
    return name, Field(
        offset=int(match["offset"]),
        size=int(match["size"]),
        signed=match["signed"] == "1",
        array=is_array or "_loc " in before,
        # System calls' own have 8 bytes, and -1 among their values. What the scheduler's are looked
        # up by isn't for a guest to declare as something else.
        thread=(before.split() == ["pid_t", name] and match["size"] == "4")
        or (system == "sched" and name.endswith("pid")),
    )
