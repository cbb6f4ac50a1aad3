"""CPU sets as frozen sets of integers, in the kernel's list format ("0-3,8")."""

from __future__ import annotations

from collections.abc import Iterable

CpuSet = frozenset[int]


def parse_cpus(text: str) -> CpuSet:
    """Parse the kernel's CPU list format (cpuset(7), "List format"); "" is the empty set.

    Raises ValueError on anything else.
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part.strip():
            continue
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"not a CPU list: {text!r}")
        low, high = int(first), int(last) if dash else int(first)
        if high < low:
            raise ValueError(f"not a CPU list: {text!r} ({low} comes after {high})")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """The shortest list format of a set: {0,1,2,5} is "0-2,5"."""
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
