"""Takes a trace.dat apart as trace-cmd.dat.v6(5) and linux/ring_buffer.h tell, without any of the
code that wrote it."""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

PADDING, TIME_EXTEND, TIME_STAMP = 29, 30, 31


@dataclass(frozen=True)
class Entry:
    """`lost`: before it."""

    cpu: int
    time_ns: int
    data: bytes
    lost: int

    @property
    def type(self) -> int:
        return int.from_bytes(self.data[:2], "little")

    @property
    def pid(self) -> int:
        return int.from_bytes(self.data[4:8], "little")


@dataclass(frozen=True)
class TraceDat:
    page_bytes: int
    header_page: str
    formats: list[str]
    names: dict[int, str]
    options: dict[int, list[bytes]]
    entries: list[Entry]


class _Parts:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        assert self.at + size <= len(self.data)
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def string(self) -> bytes:
        return self.take(self.data.index(0, self.at) + 1 - self.at)[:-1]


def parsed(data: bytes) -> TraceDat:
    parts = _Parts(data)
    assert parts.take(10) == b"\x17\x08\x44tracing"
    assert parts.string() == b"6"
    assert (parts.number(1), parts.number(1)) == (0, 8)
    page_bytes = parts.number(4)
    assert parts.string() == b"header_page"
    header_page = parts.take(parts.number(8)).decode()
    assert parts.string() == b"header_event"
    parts.take(parts.number(8))
    formats = [parts.take(parts.number(8)).decode() for _ in range(parts.number(4))]
    for _ in range(parts.number(4)):
        parts.string()
        formats += [
            parts.take(parts.number(8)).decode(errors="replace") for _ in range(parts.number(4))
        ]
    parts.take(parts.number(4))  # kallsyms
    parts.take(parts.number(4))  # printk
    lines = parts.take(parts.number(8)).rstrip(b"\0").decode().splitlines()
    names = {int(line.split(" ", 1)[0]): line.split(" ", 1)[1] for line in lines}
    cpus = parts.number(4)
    assert parts.take(10) == b"options  \0"
    options: dict[int, list[bytes]] = defaultdict(list)
    while number := parts.number(2):
        options[number].append(parts.take(parts.number(4)))
    assert parts.take(10) == b"flyrecord\0"
    table = [(parts.number(8), parts.number(8)) for _ in range(cpus)]
    entries = []
    expected_at = -(-parts.at // page_bytes) * page_bytes
    for cpu, (at, size) in enumerate(table):
        assert at == expected_at
        assert size % page_bytes == 0
        expected_at += size
        for page in range(at, at + size, page_bytes):
            entries += _page(cpu, data[page : page + page_bytes])
    assert expected_at == len(data)
    return TraceDat(page_bytes, header_page, formats, names, dict(options), entries)


def _page(cpu: int, page: bytes) -> list[Entry]:
    time_ns, commit = struct.unpack_from("<QQ", page)
    used = commit & 0xFFFFFFF
    lost = 0
    if commit & 1 << 31:
        assert commit & 1 << 30
        (lost,) = struct.unpack_from("<Q", page, 16 + used)
    entries: list[Any] = []
    at, end = 16, 16 + used
    assert 0 < used <= len(page) - 16
    while at < end:
        (head,) = struct.unpack_from("<I", page, at)
        kind, since = head & 31, head >> 5
        (more,) = struct.unpack_from("<I", page, at + 4)
        assert kind not in (PADDING, TIME_STAMP)
        time_ns += since
        if kind == TIME_EXTEND:
            time_ns += more << 27
            at += 8
            continue
        start, size = (at + 4, 4 * kind) if kind else (at + 8, more - 4)
        entries.append(Entry(cpu, time_ns, page[start : start + size], lost))
        at, lost = start + size, 0
    assert at == end
    return entries
