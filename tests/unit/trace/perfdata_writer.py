"""Writes perf.data files of two made-up tracepoints, as tools/perf/util/header.c does."""

from __future__ import annotations

import struct
from collections.abc import Sequence

FIXED, VARIABLE = "made:fixed", "made:variable"
FIXED_IDS, VARIABLE_IDS = (700, 701), (710, 711)
IDENTIFIER, IP, TID, TIME, CPU, PERIOD, RAW = 1 << 16, 1, 2, 4, 128, 256, 1024
SAMPLE_TYPE = IDENTIFIER | IP | TID | TIME | CPU | PERIOD | RAW
FLAGS = 1 << 18 | 1 << 25  # sample_id_all, use_clockid

_COMMON = """\
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

"""
_FIXED = """\
	field:char comm[16];	offset:8;	size:16;	signed:0;
	field:pid_t pid;	offset:24;	size:4;	signed:1;
	field:unsigned int plain;	offset:28;	size:4;	signed:0;
	field:long wide;	offset:32;	size:8;	signed:1;
	field:short small;	offset:40;	size:2;	signed:1;
	field:unsigned char tiny;	offset:42;	size:1;	signed:0;
	field:signed char least;	offset:43;	size:1;	signed:1;
"""
_VARIABLE = """\
	field:__data_loc char[] text;	offset:8;	size:4;	signed:0;
	field:int number;	offset:12;	size:4;	signed:1;
"""


def record(kind: int, body: bytes, misc: int = 0) -> bytes:
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


def trailer(*, tid: int = 1, time: int = 0, cpu: int = 0, identifier: int = FIXED_IDS[0]) -> bytes:
    return struct.pack("<IIQIIQ", tid, tid, time, cpu, 0, identifier)


def sample(identifier: int, *, tid: int, time: int, cpu: int, fields: bytes) -> bytes:
    """`fields`: behind the common ones."""
    config = 70 if identifier in FIXED_IDS else 71
    raw = struct.pack("<HBBi", config, 0, 0, tid) + fields
    raw += bytes(-(4 + len(raw)) % 8)
    head = struct.pack("<QQiiQIIQ", identifier, 0xFF, tid, tid, time, cpu, 0, 1)
    return record(9, head + struct.pack("<I", len(raw)) + raw, misc=1)


def fixed(
    *,
    tid: int,
    time: int,
    cpu: int,
    comm: bytes = b"",
    pid: int = 0,
    plain: int = 0,
    wide: int = 0,
    small: int = 0,
    tiny: int = 0,
    least: int = 0,
) -> bytes:
    values = (comm, pid, plain, wide, small, tiny, least)
    fields = struct.pack("<16siIqhBb", *values)
    return sample(FIXED_IDS[cpu % 2], tid=tid, time=time, cpu=cpu, fields=fields)


def variable(*, tid: int, time: int, cpu: int, number: int, text: bytes) -> bytes:
    fields = struct.pack("<HHi", 16, len(text), number) + text
    return sample(VARIABLE_IDS[cpu % 2], tid=tid, time=time, cpu=cpu, fields=fields)


def comm(tid: int, name: bytes) -> bytes:
    padded = name + bytes(8 - len(name) % 8)
    return record(3, struct.pack("<II", tid, tid) + padded + trailer())


def switched(
    *, own: int, other: int, time: int, cpu: int, is_out: bool = False, runnable: bool = False
) -> bytes:
    """A PERF_RECORD_SWITCH_CPU_WIDE."""
    body = struct.pack("<II", other, other) + trailer(tid=own, time=time, cpu=cpu)
    return record(15, body, misc=is_out << 13 | runnable << 14)


def lost(cpu: int, count: int, time: int = 0) -> bytes:
    body = struct.pack("<QQ", FIXED_IDS[0], count)
    return record(2, body + trailer(cpu=cpu, time=time))


def lost_samples(identifier: int, count: int, misc: int = 0) -> bytes:
    return record(13, struct.pack("<Q", count) + trailer(identifier=identifier), misc=misc)


def id_index(cpus: dict[int, int]) -> bytes:
    entries = (struct.pack("<4Q", identifier, cpu, cpu, 0) for identifier, cpu in cpus.items())
    return record(69, struct.pack("<Q", len(cpus)) + b"".join(entries))


FINISHED_ROUND = record(68, b"")


def attr(config: int, **changes: int) -> bytes:
    """A `struct perf_event_attr`; `changes` by field name."""
    values = {
        "kind": 2,
        "size": 128,
        "config": config,
        "period": 1,
        "sample_type": SAMPLE_TYPE,
        "read_format": 0,
        "flags": FLAGS,
        "clock": 1,
    } | changes
    clock = values.pop("clock")
    head = struct.pack("<IIQQQQQ", *values.values())
    return head.ljust(92, b"\0") + struct.pack("<i", clock) + bytes(32)


Event = tuple[str, int, str, tuple[int, ...]]
"""Name, number, fields as a format has them, ids."""
_MADE: tuple[Event, ...] = (
    ("fixed", 70, _FIXED, FIXED_IDS),
    ("variable", 71, _VARIABLE, VARIABLE_IDS),
)


def layouts(system: str = "made", events: Sequence[Event] = _MADE) -> bytes:
    """The section HEADER_TRACING_DATA (tools/perf/util/trace-event-info.c)."""
    parts = [b"\x17\x08\x44tracing0.6\0", bytes([0, 8]), struct.pack("<I", 4096)]
    for name in (b"header_page\0", b"header_event\0"):
        parts += [name, struct.pack("<Q", 4), b"text"]
    parts += [struct.pack("<I", 1), struct.pack("<Q", 3), b"ftr"]
    parts += [struct.pack("<I", 1), system.encode() + b"\0", struct.pack("<I", len(events))]
    for name, number, fields, _ in events:
        text = f'name: {name}\nID: {number}\nformat:\n{_COMMON}{fields}\nprint fmt: ""\n'.encode()
        parts += [struct.pack("<Q", len(text)), text]
    return b"".join(parts) + bytes(16)


def perfdata(
    records: Sequence[bytes],
    *,
    system: str = "made",
    events: Sequence[Event] = _MADE,
    features: int = 2,
    data_size: int | None = None,
    **changes: int,
) -> bytes:
    """A whole file. `changes`: of all events' attrs; `features`: those that the
    header announces; `data_size`: of the records, as it says."""
    ids, attrs = b"", b""
    for _, config, _, own in events:
        attrs += attr(config, **changes) + struct.pack("<QQ", 104 + len(ids), 8 * len(own))
        ids += struct.pack(f"<{len(own)}Q", *own)
    attrs_at = 104 + len(ids)
    data_at = attrs_at + len(attrs)
    data = b"".join(records)
    section = layouts(system, events)
    size = len(data) if data_size is None else data_size
    header = struct.pack(
        "<8s9Q", b"PERFILE2", 104, 144, attrs_at, len(attrs), data_at, size, 0, 0, features
    )
    table = struct.pack("<QQ", data_at + len(data) + 16, len(section))
    return header.ljust(104, b"\0") + ids + attrs + data + table + section
