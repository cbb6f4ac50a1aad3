"""Made-up recordings of guests under KVM, as perf writes them, and the table that perf makes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.unit.trace.perfdata_writer import Event, perfdata, record

ENTRY, EXIT, TO_QEMU = 80, 81, 82
VMX = 1

_EVENTS: list[Event] = [
    ("kvm_entry", ENTRY, "\tfield:unsigned int vcpu_id;\toffset:8;\tsize:4;\tsigned:0;\n", (800,)),
    (
        "kvm_exit",
        EXIT,
        "\tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n"
        "\tfield:u32 isa;\toffset:12;\tsize:4;\tsigned:0;\n",
        (810,),
    ),
    (
        "kvm_userspace_exit",
        TO_QEMU,
        "\tfield:__u32 reason;\toffset:8;\tsize:4;\tsigned:0;\n"
        "\tfield:int errno;\toffset:12;\tsize:4;\tsigned:1;\n",
        (820,),
    ),
]


def entry(tid: int, time_ns: int) -> bytes:
    return _sample(ENTRY, tid, time_ns, struct.pack("<I", tid % 2))


def left(tid: int, time_ns: int, code: int, isa: int = VMX) -> bytes:
    return _sample(EXIT, tid, time_ns, struct.pack("<II", code, isa))


def to_qemu(tid: int, time_ns: int, reason: int, errno: int = 0) -> bytes:
    return _sample(TO_QEMU, tid, time_ns, struct.pack("<Ii", reason, errno))


def recording(records: Sequence[bytes]) -> bytes:
    return perfdata(records, system="kvm", events=_EVENTS)


def table(*rows: tuple[str, int, float], lost: int = 0) -> str:
    """Of names, exits and their mean time in us, as perf 6.1 prints them."""
    samples = sum(count for _, count, _ in rows)
    total_us = sum(count * mean for _, count, mean in rows)
    lines = ["", "Analyze events for all VMs, all VCPUs:", ""]
    lines += ["  VM-EXIT  Samples  Samples%  Time%  Min Time  Max Time  Avg time", ""]
    for name, count, mean in rows:
        shares = f"{100 * count / samples:.2f}%  {100 * count * mean / total_us:.2f}%"
        lines.append(f"  {name}  {count}  {shares}  1.00us  9.00us  {mean:.2f}us ( +-   0.00% )")
    lines += ["", f"Total Samples:{samples}, Total events handled time:{total_us:.2f}us.", ""]
    return "\n".join(lines) + (f"\nLost events: {lost}\n" if lost else "")


def _sample(number: int, tid: int, time_ns: int, fields: bytes) -> bytes:
    raw = struct.pack("<HBBi", number, 0, 0, tid) + fields
    raw += bytes(-(4 + len(raw)) % 8)
    head = struct.pack("<QQiiQIIQ", number * 10, 0xFF, tid, tid, time_ns, 0, 0, 1)
    return record(9, head + struct.pack("<I", len(raw)) + raw, misc=1)
