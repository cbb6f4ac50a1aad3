"""Estimate which share of the wake-ups a trace shows, and what conclusions that allows.

Missing wake-ups are not a random part: if a kernel hides the actions of its idle tasks, the visible
wake-ups are those on CPUs that were busy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from labctl.base.units import TENTH, bears_unseen
from labctl.trace.model import Nanoseconds

QUANTILE = 0.95
"""Quantile of all latencies from which wake-ups count as late."""
_WHOLE_NS = 1_000
"""Resolution: programs report latencies in whole microseconds."""

Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Hold a program's own report: its number of wake-ups, and their longest latency."""

    program: str
    wakeups: int
    worst_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Count wake-ups that a trace covers. `seen`: those with a known due and actual time, including
    `inferred` ones, which have no event of their own. `unseen`: how many more there were; their
    waits add up to at most `unseen_ns`. Of those seen, `worst_ns` is the longest latency, and
    `until_ns` the longest time from when the task was due to when it slept again."""

    seen: int
    inferred: int
    unseen: int
    unseen_ns: int
    worst_ns: int
    until_ns: int
    own: Own | None = None

    @property
    def total(self) -> int:
        return self.seen + self.unseen

    @property
    def is_enough(self) -> bool:
        """Return whether the latest seen wake-ups may represent the latest of all."""
        return bears_unseen(QUANTILE, self.seen, self.unseen)

    @property
    def lacks_worst(self) -> bool:
        """Return whether the program reports a latency that none of the seen ones can explain: it
        reads the clock after waking, and before it sleeps again."""
        return self.own is not None and self.own.worst_ns >= self.until_ns + _WHOLE_NS

    @property
    def text(self) -> str:
        """Return "5,987 of 5,987 wake-ups", "2,453 of 5,987 wake-ups (40.9 %)": rounded down, so
        that 100 % are all of them."""
        told = f"{self.seen:,} of {self.total:,} wake-ups"
        share = math.floor(1000 * self.seen / self.total) / 10 if self.unseen else None
        return told if share is None else f"{told} ({share:.1f} %)"

    @property
    def why_unknown(self) -> str:
        """Return why the late ones as a whole are unknown, as a clause; "" if they are known."""
        if self.is_enough:
            return ""
        return f"the trace shows {self.text}, and the slowest may be among the others"


def is_narrow(bounds: Bounds) -> bool:
    """Return whether a share is known well enough for a single number."""
    return bounds[1] - bounds[0] <= TENTH + 1e-9


def bounds_of(
    latency_ns: Nanoseconds, part_ns: Nanoseconds, unsure_ns: Nanoseconds, coverage: Coverage
) -> Bounds:
    """Return bounds on a part's share of all late wake-ups' time, whatever the unseen ones were.

    The columns are those of the seen late ones: `unsure_ns` may or may not belong to the part. Any
    unseen one may be late, in place of the least late of these, and its time may belong to the part
    completely or not at all.
    """
    order = np.argsort(-latency_ns, kind="stable")
    late = coverage.total - math.ceil(QUANTILE * coverage.total - 1e-9) + 1
    fewest = min(len(order), max(0, late - coverage.unseen))
    whole, part, unsure = (
        np.concatenate(([0], np.cumsum(column[order])))[fewest:]
        for column in (latency_ns, part_ns, unsure_ns)
    )
    # With more wake-ups, more are late: some that were seen just below the limit.
    more = max(0, late - len(order))
    unseen_ns = coverage.unseen_ns + more * int(latency_ns.min() if len(latency_ns) else 0)
    if not whole[0] + unseen_ns:
        return 0.0, 1.0
    least = part / (whole + unseen_ns)
    most = (part + unsure + unseen_ns) / (whole + unseen_ns)
    return float(least.min()), min(1.0, float(most.max()))
