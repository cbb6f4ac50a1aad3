"""Read how this machine's clock is steered at the moment: what the kernel says to adjtimex(2)."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

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
    """Hold the clock's discipline. `ppm`: how much faster than by its hardware the clock is set to
    run. `pending_ns`: what the kernel is still about to add to it, or to take from it, besides: up
    to 500 ppm faster."""

    ppm: float
    pending_ns: int


def clock_discipline() -> ClockDiscipline | None:
    """Return None where the machine doesn't tell (a container may forbid the question)."""
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
