"""Read where a thread may run, and under which policy: what the kernel says of it, in /proc; and
read and set its time slice."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

from labctl.base.cpus import CpuSet, parse_cpus

# include/uapi/linux/sched.h
_POLICIES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline", 7: "ext"}

# Positions after the command's closing parenthesis; proc_pid_stat(5) counts from 1, and the first
# of these is its field 3.
_NICE, _RT_PRIORITY, _POLICY = 19 - 3, 40 - 3, 41 - 3


# arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h of other architectures.
_SETATTR, _GETATTR = (314, 315) if platform.machine() == "x86_64" else (274, 275)
# struct sched_attr of include/uapi/linux/sched/types.h: size, policy, flags, nice, priority,
# runtime, deadline, period, and the two clamps of utilization.
_ATTR = struct.Struct("=IIQiIQQQII")
_RUNTIME = 5
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Placed:
    """Hold a thread's placement. `policy` by chrt(1)'s names, `priority` the real-time one."""

    cpus: CpuSet
    policy: str
    priority: int
    nice: int


def name_of(stat: str) -> str:
    """Return a thread's name, from its `stat`: it may hold spaces and parentheses of its own."""
    return stat.rpartition(")")[0].partition("(")[2]


def parse_placed(stat: str, status: str) -> Placed | None:
    """Parse the texts of a thread's `stat` and `status`; None where they are cut off because the
    thread ended meanwhile. Raises ValueError for what no kernel writes."""
    # The command may hold parentheses: the last one closes it.
    fields = stat.rpartition(")")[2].split()
    cpus = [line for line in status.splitlines() if line.startswith("Cpus_allowed_list:")]
    if len(fields) <= _POLICY or not cpus:
        return None
    number = int(fields[_POLICY])
    return Placed(
        cpus=parse_cpus(cpus[0].partition(":")[2]),
        policy=_POLICIES.get(number, f"policy {number}"),
        priority=int(fields[_RT_PRIORITY]),
        nice=int(fields[_NICE]),
    )


def read_placed(folder: Path) -> tuple[str, Placed] | None:
    """Name and place of the thread whose folder in /proc that is; None when it has ended."""
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        status = (folder / "status").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    found = parse_placed(stat, status)
    return None if found is None else (name_of(stat), found)


def said(policy: str, priority: int) -> str:
    """Return a policy as people name it: "SCHED_FIFO at priority 1"."""
    return f"SCHED_{policy.upper()}" + (f" at priority {priority}" if priority else "")


def slice_ns(tid: int) -> int:
    """Return a thread's time slice in ns, 0 where the kernel tells none: under a real-time policy,
    and before Linux 6.12. Raises OSError for a thread that has ended."""
    return int(_attributes(tid)[_RUNTIME])


def known_slice_ns(tid: int) -> int | None:
    """Return a thread's time slice in ns; None where the kernel tells none, or it has ended."""
    try:
        return slice_ns(tid) or None
    except OSError:
        return None


def set_slice(tid: int, wanted_ns: int) -> None:
    """Set a thread's time slice, which what it starts inherits; the kernel takes 0.1 to 100 ms
    (kernel/sched/syscalls.c, __setparam_fair). Raises OSError for a thread that has ended."""
    attributes = _attributes(tid)
    attributes[_RUNTIME] = wanted_ns
    _call(_SETATTR, tid, ctypes.create_string_buffer(_ATTR.pack(*attributes)), 0)


def _attributes(tid: int) -> list[int]:
    """Return the fields of a thread's `struct sched_attr`."""
    buffer = ctypes.create_string_buffer(_ATTR.size)
    _call(_GETATTR, tid, buffer, _ATTR.size, 0)
    return list(_ATTR.unpack(buffer.raw[: _ATTR.size]))


def _call(number: int, *arguments: object) -> None:
    # glibc has functions for these since 2.41 alone.
    if _LIBC.syscall(number, *arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
