"""Estimate the error of a trial's own rate from the windows that its program reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from labctl.store.samples import Reading, sample

BATCHES = (8, 4)
"""Numbers of batches of neighbouring windows that a trial is divided into, the second time in
pairs.
"""

WANTED = 16
"""Number of windows to request from a program: two for each of the shorter batches."""


@dataclass(frozen=True, slots=True)
class RateWindow:
    seconds: float
    operations: float


def batch_errors(windows: Sequence[RateWindow], metric: str, source: str) -> Iterator[Reading]:
    """Return `batch_error{of=METRIC,batches=N}` for N of 8 and 4: the standard error of the trial's
    rate over that rate, by the method of batch means (R. W. Conway, Management Science 10, 1963; B.
    W. Schmeiser, Operations Research 30, 1982). Nothing for fewer than 8 windows.

    Neighbouring windows are correlated, so their own spread underestimates the error. Means of
    batches are less correlated the longer they are; analysis checks whether 4 batches give the same
    error as 8. Windows may differ in length: the rate R is a ratio of sums, and with e = operations
    - R * seconds of each of n batches its variance is n / (n - 1) * sum(e^2) / (sum of seconds)^2
    (W. G. Cochran, "Sampling Techniques", 1977, section 6.4).
    """
    if len(windows) < BATCHES[0] or any(not 0 < window.seconds < math.inf for window in windows):
        return
    batches = _joined(windows, BATCHES[0])
    rate = _sum(b.operations for b in batches) / _sum(b.seconds for b in batches)
    if not 0 < rate < math.inf:
        return
    for count in BATCHES:
        batches = _joined(batches, count)
        beyond = [b.operations - rate * b.seconds for b in batches]
        squares = _sum(b * b for b in beyond)
        operations = _sum(b.operations for b in batches)
        error = math.sqrt(count / (count - 1) * squares) / operations
        if error == math.inf:
            return
        yield sample(
            "batch_error", error, source=source, labels={"of": metric, "batches": str(count)}
        )


def _joined(windows: Sequence[RateWindow], count: int) -> list[RateWindow]:
    """Join neighbours into `count` batches of as equal size as possible."""
    ends = [len(windows) * number // count for number in range(count + 1)]
    groups = [windows[start:end] for start, end in pairwise(ends)]
    return [RateWindow(_sum(w.seconds for w in g), _sum(w.operations for w in g)) for g in groups]


def _sum(numbers: Iterable[float]) -> float:
    """Return the sum, rounded once: the same in every release of Python (from 3.12 on `sum`
    compensates rounding). A sum that overflows is infinite."""
    try:
        return math.fsum(numbers)
    except OverflowError:
        return math.inf
