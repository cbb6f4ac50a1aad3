"""Makes a recorded perf.data fit to be a fixture: `python -m tests.unit.trace.scrub FROM TO`.

What tells of the machine that recorded it is left out: every feature section but the layouts of
tracepoints (host name, command line), the files that processes map, and the names of processes
other than those of perf, its benchmarks, cyclictest, QEMU and the kernel; and threads that never
ran. perf reads the result as before.
"""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

from labctl.trace.perf.head import read_formats

SAMPLE, LOST, COMM, FORK, ROUND, LOST_SAMPLES, ID_INDEX = 9, 2, 3, 7, 68, 13, 69
SWITCHED = 15
KEPT = {SAMPLE, LOST, COMM, FORK, ROUND, LOST_SAMPLES, ID_INDEX, SWITCHED}
HARMLESS = re.compile(
    rb"(perf|perf-exec|cyclictest|sched-.*|sleep|swapper|fw|(CPU|IO|TCG).*|qemu.*|call_rcu"
    rb"|(migration|ksoftirqd|kworker|cpuhp|idle_inject|rcu|kthreadd|khugepaged|kcompactd|kswapd|swapper).*)\Z"
)


def scrubbed(data: bytes) -> bytes:
    head = list(struct.unpack("<8s9Q", data[:80]))
    attrs_at, start, size, flags = head[3], head[5], head[6], head[9]
    at, length = struct.unpack_from("<QQ", data, start + size)  # the layouts: the first feature
    tracing = layouts(data[at : at + length]) if flags & 2 else b""
    names = {
        found.id: [
            (f.offset, f.size) for f in found.fields.values() if f.array and f.size in (4, 16)
        ]
        for found in (read_formats(tracing, "the recording", at) if tracing else [])
    }
    (sample_type,) = struct.unpack_from("<Q", data, attrs_at + 24)
    # IDENTIFIER, IP, TID, TIME, ID, CPU, PERIOD, size: each but the first and the fifth always.
    tid_at = 28 if sample_type & 1 << 16 else 20
    raw_at = tid_at + (40 if sample_type & 1 << 6 else 32)
    records = b"".join(kept_records(data[start : start + size], names, tid_at, raw_at))
    head[6] = len(records)
    head[9] = 2 if tracing else 0
    table = struct.pack("<QQ", start + len(records) + 16, len(tracing))
    return struct.pack("<8s9Q", *head) + bytes(24) + data[104:start] + records + table + tracing


def kept_records(
    records: bytes, names: dict[int, list[tuple[int, int]]], tid_at: int, raw_at: int
) -> list[bytes]:
    kept, at = [], 0
    ran = set()
    while at < len(records):
        kind, _, size = struct.unpack_from("<IHH", records, at)
        if kind == SAMPLE:
            ran.add(struct.unpack_from("<I", records, at + tid_at)[0])
        at += size
    at = 0
    while at < len(records):
        kind, _, size = struct.unpack_from("<IHH", records, at)
        record = bytearray(records[at : at + size])
        at += size
        if kind == COMM:
            end = record.index(0, 16)
            record[16:end] = harmless(record[16:end])
        if kind == SAMPLE and names:
            (event,) = struct.unpack_from("<H", record, raw_at)
            for offset, length in names[event]:
                name_at = raw_at + offset
                if length == 4:  # __data_loc: where in the record it is, and how long
                    offset, length = struct.unpack_from("<HH", record, name_at)
                    name_at = raw_at + offset
                name = bytes(record[name_at : name_at + length]).split(b"\0")[0]
                record[name_at : name_at + length] = harmless(name).ljust(length, b"\0")
        of_thread = {COMM: 12, FORK: 16}.get(kind)
        if of_thread and struct.unpack_from("<I", record, of_thread)[0] not in ran:
            continue
        if kind in KEPT:
            kept.append(bytes(record))
    return kept


def harmless(name: bytes) -> bytes:
    """The name, or another one of its length."""
    return bytes(name) if HARMLESS.match(name) else b"other"[: len(name)].ljust(len(name), b"-")


def layouts(section: bytes) -> bytes:
    """The section without symbols, formats of printk and names of processes, which come last."""
    at = section.index(b"\0", 10) + 1 + 6
    for _ in range(2):
        at = section.index(b"\0", at) + 1
        at += 8 + int.from_bytes(section[at : at + 8], "little")
    count, at = int.from_bytes(section[at : at + 4], "little"), at + 4
    for _ in range(count):
        at += 8 + int.from_bytes(section[at : at + 8], "little")
    systems, at = int.from_bytes(section[at : at + 4], "little"), at + 4
    for _ in range(systems):
        at = section.index(b"\0", at) + 1
        count, at = int.from_bytes(section[at : at + 4], "little"), at + 4
        for _ in range(count):
            at += 8 + int.from_bytes(section[at : at + 8], "little")
    return section[:at] + bytes(4 + 4 + 8)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_bytes(scrubbed(source.read_bytes()))
