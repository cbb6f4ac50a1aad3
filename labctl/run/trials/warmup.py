"""Decide when a warm-up is over (METHOD rule 6). Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WINDOWS = 3
"""The least number of windows that the rule looks at."""

SLOPE_LIMIT = 0.01
"""Relative change of the rate per window."""

SCATTER_LIMIT = 2.0
"""Standard errors of the slope: a trend that doesn't stand out of the scatter is none that another
window would show. Under a neighbour single windows differ by tens of percent, and 1 % would be
reached by luck alone."""


def slope(rates: Sequence[float]) -> float:
    """Return the relative change per window: the least-squares slope of ln(rate) over the window
    number.
    """
    number, logs = _centred(rates)
    return float(number @ logs / (number @ number))


def standard_error(rates: Sequence[float]) -> float:
    """Return the standard error of `slope`, from the scatter around the fitted line (n - 2
    degrees).
    """
    number, logs = _centred(rates)
    residual = logs - slope(rates) * number
    return math.sqrt(residual @ residual / (len(rates) - 2) / (number @ number))


def _centred(rates: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Numbers of the windows and logarithms of their rates, each less its mean."""
    number, logs = np.arange(len(rates), dtype=np.float64), np.log(rates)
    return number - number.mean(), logs - logs.mean()


def is_settled(rates: Sequence[float]) -> bool:
    """Return whether the last windows, three or more of them, show no trend any more. Those up to
    one in which nothing was done at all (a stalled connection) tell nothing of what comes after
    it."""
    stalled = [number for number, rate in enumerate(rates) if rate <= 0]
    rates = rates[stalled[-1] + 1 :] if stalled else rates
    if len(rates) < WINDOWS:
        return False
    ends = (rates[-count:] for count in range(WINDOWS, len(rates) + 1))
    return any(
        abs(slope(end)) < max(SLOPE_LIMIT, SCATTER_LIMIT * standard_error(end)) for end in ends
    )


def is_flat(counts: Sequence[int]) -> bool:
    """Return whether counts of faults, window by window, show no trend any more: by the same rule
    as rates, but for the scatter that a count has by itself (a variance as large as the count).

    0 is a usual count and has no logarithm, so all are taken as one larger.
    """
    if len(counts) < WINDOWS:
        return False
    larger = [1.0 + count for count in counts]
    ends = (larger[-count:] for count in range(WINDOWS, len(larger) + 1))
    return any(
        abs(slope(end))
        < max(SLOPE_LIMIT, SCATTER_LIMIT * max(standard_error(end), _counting_error(end)))
        for end in ends
    )


def _counting_error(larger: Sequence[float]) -> float:
    """Standard error of `slope` of counts that come at random: the variance of ln(count) is
    1 / count."""
    number, _ = _centred(larger)
    return math.sqrt(number * number @ (1 / np.asarray(larger))) / float(number @ number)
