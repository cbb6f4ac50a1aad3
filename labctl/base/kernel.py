"""Read and hold kernel settings: clock discipline, latency QoS, tracefs, command line."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import HostError

# Read how this machine's clock is being adjusted: the kernel's answer to adjtimex(2).


# include/uapi/linux/timex.h
_ADJ_OFFSET_SS_READ = 0xA001
_STA_NANO = 0x2000

_FREQ_PER_PPM = 1 << 16
_PPM_PER_TICK_US = 100
"""A tick of 1/100 s (USER_HZ) is 10,000 us: one more or less is 100 ppm."""


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long),
        ("rest", ctypes.c_byte * 128),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDiscipline:
    """Hold the clock's discipline. `ppm`: how much faster than its hardware the clock is set to
    run. `pending_ns`: the correction that the kernel will still add or subtract: up to 500 ppm
    faster."""

    ppm: float
    pending_ns: int


def clock_discipline() -> ClockDiscipline | None:
    """Return the discipline, None if the machine does not report it (a container may forbid the
    call)."""
    discipline, slew = _asked(0), _asked(_ADJ_OFFSET_SS_READ)
    if discipline is None or slew is None:
        return None
    unit_ns = 1 if discipline.status & _STA_NANO else 1000
    nominal_us = 1_000_000 // os.sysconf("SC_CLK_TCK")
    return ClockDiscipline(
        ppm=discipline.freq / _FREQ_PER_PPM + (discipline.tick - nominal_us) * _PPM_PER_TICK_US,
        pending_ns=abs(discipline.offset) * unit_ns + abs(slew.offset) * 1000,
    )


def _asked(modes: int) -> _Timex | None:
    found = _Timex(modes=modes)
    return found if ctypes.CDLL(None).adjtimex(ctypes.byref(found)) >= 0 else None


# Hold the host's latency QoS: a limit on how long an idle CPU may take to wake up.
#
# Every process with /dev/cpu_dma_latency open has a request in the kernel's list, and the lowest is
# in force (Documentation/admin-guide/pm/cpuidle.rst, "Power Management Quality of Service for
# CPUs"; kernel/power/qos.c). A request ends with its descriptor, however its process ends, so
# nothing needs restoring, and it is not in the undo journal.


DEVICE = "dev/cpu_dma_latency"
"""Path below the root."""

NO_LIMIT_US = 2_000_000_000
"""Limit while no process requests less: PM_QOS_CPU_LATENCY_DEFAULT_VALUE of
include/linux/pm_qos.h."""

_VALUE = struct.Struct("=i")
"""Format of the device: an s32 in microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Hold a setting that labctl keeps in force: its old and its present value. `why_over` returns
    what ended it; None while it lasts."""

    name: str
    before: str
    now: str
    why_over: Callable[[], str | None] = lambda: None


def limit_us(root: Path = Path("/")) -> int:
    """Return the limit in force, whoever set it; NO_LIMIT_US without one. Raises OSError.

    Reading changes nothing: the request that comes with the descriptor is NO_LIMIT_US.
    """
    descriptor = os.open(root / DEVICE, os.O_RDONLY)
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def limit_or_reason() -> int | dict[str, str]:
    """Return the limit in force, or {"unavailable": why it is unknown}."""
    try:
        return limit_us()
    except OSError as error:
        return {"unavailable": f"/{DEVICE}: {error.strerror}"}


def in_words(us: int) -> str:
    return "no limit" if us >= NO_LIMIT_US else str(us)


@contextmanager
def limited(us: int, root: Path = Path("/")) -> Iterator[Held]:
    """Limit the wake-up latency of idle CPUs to `us` microseconds inside the block.

    Raises HostError if the device cannot be opened, or if another limit is read back because
    another process requests less.
    """
    path = root / DEVICE
    try:
        before = limit_us(root)
        descriptor = os.open(path, os.O_RDWR)
    except OSError as error:
        raise HostError(f"cannot open {path}: {error.strerror}") from error
    try:
        os.write(descriptor, _VALUE.pack(us))
        found = _read(descriptor)
        if found != us:
            raise HostError(
                f"{path} was set to {us} but reads {found}: another program requests less",
                hint=f"'fuser -v {path}' shows the program; stop it, or request {found}.",
            )
        yield Held(name=str(path), before=in_words(before), now=in_words(found))
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> int:
    # pread: the kernel advances the position with each read, and returns nothing beyond the first.
    data = os.pread(descriptor, _VALUE.size, 0)
    if len(data) != _VALUE.size:
        raise OSError(0, f"expected {_VALUE.size} bytes, got {len(data)}")
    (us,) = _VALUE.unpack(data)
    return int(us)


# Give a program the kernel's tracepoints, whether or not the host has tracefs mounted.


TRACEFS = "/sys/kernel/tracing"

LOCKED_DOWN = 'grep -qsF "[confidentiality]" /sys/kernel/security/lockdown'
"""Shell test that succeeds if the kernel hides its tracepoints (kernel_lockdown(7)). tracefs is
empty there, and on Linux 6.12 unmounting it never returns."""

_MOUNTED = f"""
[ -d {TRACEFS}/events ] || {{ ! {LOCKED_DOWN} && mount -t tracefs tracefs {TRACEFS}; }} || exit
exec "$@"
"""


def with_tracefs(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command in a mount namespace of its own, where tracefs is at TRACEFS.

    The mount ends with the command, and is invisible to others. The started process stays the
    command's: it can be signalled by its id.
    """
    return (
        *("unshare", "--mount", "--propagation", "private"),
        *("sh", "-c", _MOUNTED, "sh", *argv),
    )


# Expand the words of a kernel's command line that tunings request by name.


COMMAND_LINE = Path("/proc/cmdline")


def in_full(words: Iterable[str], isolated: CpuSet) -> list[str]:
    """Return `words` as a kernel gets them: those that need CPUs get `isolated`.

    Documentation/admin-guide/kernel-parameters.txt: isolcpus= with `managed_irq` also keeps
    devices' queues off, and `domain` is its default; nohz_full= without rcu_nocbs= would leave the
    kernel's deferred work on those CPUs.
    """
    cpus = format_cpus(isolated)
    given = {
        "isolcpus": [f"isolcpus=managed_irq,domain,{cpus}"],
        "nohz_full": [f"nohz_full={cpus}", f"rcu_nocbs={cpus}"],
    }
    return [word for asked in words for word in given.get(asked, [asked])]


def is_booted_with(word: str, line: Iterable[str]) -> bool:
    """Return whether a kernel was booted with a word: `isolcpus` matches any value, `isolcpus=1-3`
    only that one."""
    return any(w == word or ("=" not in word and w.startswith(f"{word}=")) for w in line)


def booted_with(path: Path = COMMAND_LINE) -> list[str]:
    """Return the words that the running kernel was booted with; [] if they are unknown."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []
