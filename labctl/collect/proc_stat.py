"""Parse CPU times in /proc/stat (proc_stat(5)), in clock ticks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from labctl.base.cpus import CpuSet
from labctl.base.errors import BrokenError


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Hold one line. `total` is its sum; guest time is inside user time and not counted twice."""

    idle: int
    steal: int
    total: int


def cpu_ticks(text: str, name: str, where: str) -> CpuTicks:
    """Return the line of "cpu" (all) or "cpu1"; raises BrokenError when it isn't there or isn't
    whole.
    """
    for line in text.splitlines():
        fields = line.split()
        if fields and fields[0] == name:
            return _ticks(fields[1:], name, where)
    raise BrokenError(f"{where}: expected a line '{name}' of /proc/stat, found none")


def cpus(text: str) -> CpuSet:
    """Return the CPUs with a line of their own: those that are online."""
    return frozenset(int(number) for number in re.findall(r"^cpu(\d+) ", text, re.M))


def _ticks(fields: Sequence[str], name: str, where: str) -> CpuTicks:
    # user nice system idle iowait irq softirq steal guest guest_nice
    if len(fields) < 8 or not all(field.isdecimal() for field in fields):
        raise BrokenError(
            f"{where}: expected eight tick counts or more in line '{name}' of /proc/stat, "
            f"found '{' '.join(fields)}'"
        )
    ticks = [int(field) for field in fields[:8]]
    return CpuTicks(idle=ticks[3] + ticks[4], steal=ticks[7], total=sum(ticks))
