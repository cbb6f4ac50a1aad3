"""Define how much a trial collects beside the workload's own output."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """Name the levels of collecting: each includes those before it, and costs the machine more."""

    COUNTERS = "counters"
    """Snapshots and hardware counters: nothing runs inside the measured window."""
    EXITS = "exits"
    """And VM exits by reason, counted in the kernel."""
    TRACE = "trace"
    """And every scheduling event of both sides."""

    def holds(self, other: Level) -> bool:
        order = list(Level)
        return order.index(self) >= order.index(other)
