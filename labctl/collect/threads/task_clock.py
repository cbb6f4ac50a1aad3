"""Measure how long threads ran on which CPU with the kernel's task clock, an event per thread and
CPU.

perf_event_open(2) with a software event needs no PMU, no BPF and no cgroup. Children that a thread
starts later are counted with it (`inherit`). An attached clock costs a little at each switch of the
thread (docs/collectors.md), so only threads whose affinity does not show where they ran get one.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from labctl.base.cpus import CpuSet
from labctl.base.errors import BrokenError
from labctl.collect.collector import ThreadRef

KEY = "task_clock"
"""Key of a snapshot: a list of the threads' run times, or {"unavailable": reason}."""

# The system call's number (arch/*/syscall.tbl, include/uapi/asm-generic/unistd.h).
_NUMBERS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}

# include/uapi/linux/perf_event.h
_TYPE_SOFTWARE, _TASK_CLOCK = 1, 1
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 1, 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8
_ANY_CPU = -1


class _Attributes(ctypes.Structure):
    """Fields of struct perf_event_attr up to PERF_ATTR_SIZE_VER0."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("bp_addr", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class _Clock:
    """Hold the events on one thread and its children: `everywhere`, and one on each of some
    CPUs."""

    thread: ThreadRef
    everywhere: int
    on: Mapping[int, int]


class Clocks:
    """Hold running task clocks; `problem`: why there are none, a sentence."""

    def __init__(self, clocks: Sequence[_Clock] = (), problem: str | None = None) -> None:
        self._clocks = clocks
        self._problem = problem

    def read(self) -> dict[str, object]:
        """Return the counts so far, in ns, in the form of a snapshot.

        A thread that has ended keeps its count.
        """
        if self._problem is not None:
            return {KEY: {"unavailable": self._problem}}
        rows = [
            {
                "pid": clock.thread.pid,
                "tid": clock.thread.tid,
                "role": clock.thread.role,
                "on": {str(cpu): _count(event) for cpu, event in clock.on.items()},
                "everywhere": _count(clock.everywhere),
            }
            for clock in self._clocks
        ]
        return {KEY: rows}


Open = Callable[[int, int], int]
"""Open an event: a thread on a CPU (-1: on any); returns a descriptor. Raises OSError."""


@contextmanager
def counting(
    threads: Sequence[ThreadRef], cpus: CpuSet, open_event: Open | None = None
) -> Iterator[Clocks]:
    """Count with clocks on those threads that may run both on and off these CPUs.

    Each counts on the smaller of the two sets. If the kernel refuses one clock there are none,
    because a sum without some of them would be wrong.
    """
    roaming = list(_roaming(threads, cpus))
    with ExitStack() as stack:
        try:
            with _room_for(sum(1 + len(fewer) for _, fewer in roaming)):
                clocks = Clocks(list(_opened(stack, roaming, open_event or _open)))
        except OSError as error:
            stack.close()
            clocks = Clocks(problem=_refusal(error))
        yield clocks


def why_unavailable() -> str | None:
    """Return why this kernel refuses labctl task clocks, tried on a thread of its own."""
    try:
        os.close(_open(0, min(os.sched_getaffinity(0))))
    except OSError as error:
        return _refusal(error)
    return None


def _roaming(
    threads: Sequence[ThreadRef], cpus: CpuSet
) -> Iterator[tuple[ThreadRef, Sequence[int]]]:
    """Yield the threads that may run on and off these CPUs, each with the smaller set of its
    CPUs."""
    for thread in threads:
        try:
            allowed = os.sched_getaffinity(thread.tid)
        except ProcessLookupError:
            continue
        on, off = allowed & cpus, allowed - cpus
        if on and off:
            yield thread, sorted(on if len(on) <= len(off) else off)


def _opened(
    stack: ExitStack, roaming: Sequence[tuple[ThreadRef, Sequence[int]]], open_event: Open
) -> Iterator[_Clock]:
    def opened(tid: int, cpu: int) -> int:
        event = open_event(tid, cpu)
        stack.callback(os.close, event)
        return event

    for thread, fewer in roaming:
        try:
            everywhere = opened(thread.tid, _ANY_CPU)
            yield _Clock(thread, everywhere, {cpu: opened(thread.tid, cpu) for cpu in fewer})
        except ProcessLookupError:
            continue  # it has ended since


@contextmanager
def _room_for(descriptors: int) -> Iterator[None]:
    """Raise the limit on open files by so many while they are opened: programs that labctl starts
    later must get the limit that it was started with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        yield
        return
    wanted = soft + descriptors
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _open(tid: int, cpu: int) -> int:
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(f"labctl doesn't know its number on {platform.machine()}")
    attributes = _Attributes(
        type=_TYPE_SOFTWARE,
        size=ctypes.sizeof(_Attributes),
        config=_TASK_CLOCK,
        # The clock still counts in the kernel; the flag lets it be opened without privileges.
        flags=_INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HV,
    )
    no_group = -1
    event: int = ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(number),
        ctypes.byref(attributes),
        *map(ctypes.c_long, (tid, cpu, no_group, _CLOSE_ON_EXEC)),
    )
    if event < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return event


def _count(event: int) -> int:
    """Count a thread and its children, including those that have ended."""
    data = os.read(event, 8)
    if len(data) != 8:
        raise BrokenError("the kernel stopped a task clock: reading it gave nothing")
    return int.from_bytes(data, sys.byteorder)


def _refusal(error: OSError) -> str:
    return f"perf_event_open is refused ({error.strerror or error})."
