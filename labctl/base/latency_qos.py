"""Hold the host's latency QoS: a limit on how long an idle CPU may take to wake up.

Whoever has /dev/cpu_dma_latency open has a request in the kernel's list, and the least of them is
in force (Documentation/admin-guide/pm/cpuidle.rst, "Power Management Quality of Service for CPUs";
kernel/power/qos.c). A request ends with its descriptor, however its process ends: nothing is to be
put back, and the undo journal knows nothing of it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import HostError

DEVICE = "dev/cpu_dma_latency"
"""Below the root."""

NO_LIMIT_US = 2_000_000_000
"""Limit while no process requests less: PM_QOS_CPU_LATENCY_DEFAULT_VALUE of
include/linux/pm_qos.h."""

_VALUE = struct.Struct("=i")
"""The device takes and gives an s32 in microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Hold a setting that is in force while something of labctl's is there: its old and its
    present value. `why_over` tells what ended it; None while it lasts."""

    name: str
    before: str
    now: str
    why_over: Callable[[], str | None] = lambda: None


def limit_us(root: Path = Path("/")) -> int:
    """Return the limit in force, whoever set it; NO_LIMIT_US without one. Raises OSError.

    Reading changes nothing: the request that comes with the descriptor asks for NO_LIMIT_US.
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

    Raises HostError when the device can't be opened, or when another limit is read back: somebody
    else asks for less.
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
                f"{path} was set to {us} but reads {found}: another program asks for less",
                hint=f"'fuser -v {path}' names who has it open; end that, or ask for {found}.",
            )
        yield Held(name=str(path), before=in_words(before), now=in_words(found))
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> int:
    # pread: the kernel moves the position with each read, and reads nothing beyond the first.
    data = os.pread(descriptor, _VALUE.size, 0)
    if len(data) != _VALUE.size:
        raise OSError(0, f"{len(data)} bytes where a limit of {_VALUE.size} belongs")
    (us,) = _VALUE.unpack(data)
    return int(us)
