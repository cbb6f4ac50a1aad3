"""Find who had a CPU while a thread waited for it, as far as switches tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import Events, Nanoseconds, Numbers
from labctl.trace.timeline.lane_spans import ranges

_Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Waits:
    """Hold spans of waiting, each part of one with the thread that ran meanwhile: `first`, and at
    its end `then`. They differ where switches between others weren't recorded; -1 is unknown.
    `row`: the wait that it is a part of."""

    row: _Rows
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    first: Numbers
    then: Numbers


@dataclass(frozen=True, slots=True)
class _Cpu:
    time_ns: Nanoseconds
    left: Numbers
    came: Numbers


@dataclass(frozen=True, slots=True)
class Runners:
    """Hold each CPU's switches, in order of time."""

    cpus: Mapping[int, _Cpu]

    @classmethod
    def of(cls, switches: Events | None) -> Runners:
        if switches is None:
            return cls({})
        found = {}
        for cpu in np.unique(switches.cpu):
            own = switches.cpu == cpu
            found[int(cpu)] = _Cpu(
                switches.time_ns[own],
                switches.fields["prev_pid"][own],
                switches.fields["next_pid"][own],
            )
        return cls(found)

    def during(self, start_ns: Nanoseconds, end_ns: Nanoseconds, cpu: NDArray[np.int32]) -> Waits:
        """Return waits for CPUs, cut wherever another thread was seen to take the CPU."""
        rows = np.arange(len(start_ns))
        parts = []
        for number in np.unique(cpu):
            own = rows[cpu == number]
            switches = self.cpus.get(int(number))
            if switches is None:
                nobody = np.full(len(own), -1)
                parts.append(Waits(own, start_ns[own], end_ns[own], nobody, nobody))
            else:
                parts.append(_during(switches, own, start_ns[own], end_ns[own]))
        if not parts:
            return Waits(rows, start_ns, end_ns, rows, rows)
        return Waits(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("row", "start_ns", "end_ns", "first", "then")
            )
        )


def _during(cpu: _Cpu, rows: _Rows, start_ns: Nanoseconds, end_ns: Nanoseconds) -> Waits:
    after = np.searchsorted(cpu.time_ns, start_ns, "right")
    before = np.searchsorted(cpu.time_ns, end_ns, "left")
    counts = np.maximum(before - after, 0) + 1
    # The switch with which each part begins, and whether it is the first of its wait.
    at = ranges(after - 1, counts)
    wait = np.repeat(np.arange(len(rows)), counts)
    is_first = np.concatenate(([True], wait[1:] != wait[:-1]))
    is_last = np.append(is_first[1:], True)
    last = len(cpu.time_ns) - 1
    begins, ends = np.maximum(at, 0), np.minimum(at + 1, last)
    start = np.where(is_first, start_ns[wait], cpu.time_ns[begins])
    end = np.where(is_last, end_ns[wait], cpu.time_ns[ends])
    came = np.where(at >= 0, cpu.came[begins], -1)
    left = np.where(at < last, cpu.left[ends], came)
    # A switch long before the wait says who ran at its beginning only if the next one agrees.
    is_near = (at >= 0) & (cpu.time_ns[begins] >= start)
    # And one after the wait says nothing of it if others ran in between.
    is_in = (at < last) & (cpu.time_ns[ends] <= end)
    agreed = came == left
    first = np.where(agreed | is_near, came, np.where(is_in, left, -1))
    then = np.where(agreed | ~is_in, first, left)
    return Waits(rows[wait], start, end, first, then)
