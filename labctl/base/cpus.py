"""Read and write CPU sets: frozen sets of integers in the kernel's list format ("0-3,8")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CpuSet = frozenset[int]

MOST_CPUS: Final = 16384
"""Upper bound of CPU numbers: libvirt's own limit, and twice the kernel's largest (NR_CPUS)."""

_MOST_SHOWN = 60


def parse_cpus(text: str) -> CpuSet:
    """Parse the kernel's CPU list format (cpuset(7), "List format"); "" is the empty set.

    Raises ValueError on anything else, and on numbers from MOST_CPUS on.
    """
    ranges: list[tuple[int, int]] = []
    for part in text.strip().split(","):
        if not part.strip():
            continue
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"not a CPU list: {_shown(text)}")
        low = _number(first)
        high = _number(last) if dash else low
        if high < low:
            raise ValueError(f"not a CPU list: {_shown(text)} ({low} comes after {high})")
        ranges.append((low, high))
    cpus: set[int] = set()
    following = 0
    for low, high in sorted(ranges):  # sorted, so that overlapping ranges do not count a CPU twice
        cpus.update(range(max(low, following), high + 1))
        following = max(following, high + 1)
    return frozenset(cpus)


def _number(digits: str) -> int:
    # Check the length first: Python takes long over millions of digits.
    if len(digits) > len(str(MOST_CPUS)) or int(digits) >= MOST_CPUS:
        raise ValueError(
            f"not a CPU list: CPU {_shown(digits)} is above the limit of {MOST_CPUS - 1}"
        )
    return int(digits)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]!r}…"


def format_cpus(cpus: Iterable[int]) -> str:
    """Return the shortest list format of a set: {0,1,2,5} is "0-2,5"."""
    parts: list[str] = []
    run: list[int] = []
    for cpu in sorted(set(cpus)):
        if run and cpu != run[-1] + 1:
            parts.append(_format_run(run))
            run = []
        run.append(cpu)
    if run:
        parts.append(_format_run(run))
    return ",".join(parts)


def _format_run(run: list[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
