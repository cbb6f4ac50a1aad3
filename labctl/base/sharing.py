"""Work out how two flows share a link, and how soon one of them settles."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

SETTLED = 0.1
"""Share of the steady value within which a bitrate has settled."""


def jain_index(rates: Sequence[float]) -> float | None:
    """Return Jain's index of fairness, (Σ x)² / (n Σ x²), from 1/n to 1; None where nothing flows.

    R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems, DEC-TR-301, 1984.
    """
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares > 0 else None


def bitrate_difference(ours: float, others: float, capacity: float) -> float:
    """Return the normalised difference of two bitrates: 1 where ours has the whole capacity, -1
    where the other has."""
    return (ours - others) / capacity


def steady(rates: Sequence[float]) -> float:
    """Return the mean of the second half of a phase's bins."""
    return fmean(rates[len(rates) // 2 :])


def settling_s(rates: Sequence[float], bin_s: float) -> float | None:
    """Return when the first bin ends whose rate is within a tenth of the phase's steady value, in
    seconds from the phase's begin; None where nothing flows.

    A definition of labctl's own: studies of streams define it each in their way.
    """
    aim = steady(rates)
    for number, rate in enumerate(rates, start=1):
        if abs(rate - aim) <= SETTLED * aim and aim > 0:
            return number * bin_s
    return None
