"""Estimate how many of the wake-ups that a trace ought to tell of it does, and what that lets one
say.

Those that are missing are no random part of them: where a kernel keeps back what its idle tasks do,
the wake-ups that are left are those on CPUs that were busy.
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
"""Programs tell of latencies in whole microseconds."""

Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Hold what a program itself says: how many wake-ups it had, and the longest latency of
    them."""

    program: str
    wakeups: int
    worst_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Count wake-ups that a trace covers. `seen`: those with a known due and actual time,
    `inferred` among them, which have no event of their own. `unseen`: how many more there were; all
    together they waited for no longer than `unseen_ns`. Of those seen, `worst_ns` is the longest
    latency, and `until_ns` the longest from when the task was meant to run to when it slept again.
    """

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
        """Return whether the program tells of a latency that none of those can have given it: it
        looks at the clock when it has come, and before it sleeps again."""
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
        """Return why nothing is said of all late ones, as a clause; "" where something is."""
        if self.is_enough:
            return ""
        return f"the trace shows {self.text}, and the slowest may be among the others"


def is_narrow(bounds: Bounds) -> bool:
    """Return whether a share is known well enough for one number."""
    return bounds[1] - bounds[0] <= TENTH + 1e-9


def bounds_of(
    latency_ns: Nanoseconds, part_ns: Nanoseconds, unsure_ns: Nanoseconds, coverage: Coverage
) -> Bounds:
    """Return bounds on a part's share of all late wake-ups' time, whatever the unseen ones were.

    The columns are those of the late ones that were seen: of `unsure_ns` it isn't known whether it
    is the part's. Any unseen one may be late, in place of the least late of these, and its time may
    be all of the part or none of it.
    """
    order = np.argsort(-latency_ns, kind="stable")
    late = coverage.total - math.ceil(QUANTILE * coverage.total - 1e-9) + 1
    fewest = min(len(order), max(0, late - coverage.unseen))
    whole, part, unsure = (
        np.concatenate(([0], np.cumsum(column[order])))[fewest:]
        for column in (latency_ns, part_ns, unsure_ns)
    )
    # Of more wake-ups more are late: some that were seen and just not late.
    more = max(0, late - len(order))
    unseen_ns = coverage.unseen_ns + more * int(latency_ns.min() if len(latency_ns) else 0)
    if not whole[0] + unseen_ns:
        return 0.0, 1.0
    least = part / (whole + unseen_ns)
    most = (part + unsure + unseen_ns) / (whole + unseen_ns)
    return float(least.min()), min(1.0, float(most.max()))
