"""When a warm-up is over (METHOD rule 6). Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

WINDOWS = 3
"""The least number of windows that the rule looks at."""

SLOPE_LIMIT = 0.01
"""Relative change of the rate per window."""

SCATTER_LIMIT = 2.0
"""Standard errors of the slope: a trend that doesn't stand out of the scatter is none that another
window would show. Under a neighbour single windows differ by tens of percent, and 1 % would be
reached by luck alone."""


def slope(rates: Sequence[float]) -> float:
    """Relative change per window: the least-squares slope of ln(rate) over the window number."""
    logs = [math.log(rate) for rate in rates]
    middle = (len(logs) - 1) / 2
    mean = sum(logs) / len(logs)
    above = sum((number - middle) * (value - mean) for number, value in enumerate(logs))
    below = sum((number - middle) ** 2 for number in range(len(logs)))
    return above / below


def standard_error(rates: Sequence[float]) -> float:
    """Standard error of `slope`, from the scatter around the fitted line (n - 2 degrees)."""
    logs = [math.log(rate) for rate in rates]
    middle = (len(logs) - 1) / 2
    mean = sum(logs) / len(logs)
    fitted = slope(rates)
    residual = sum(
        (value - mean - fitted * (number - middle)) ** 2 for number, value in enumerate(logs)
    )
    below = sum((number - middle) ** 2 for number in range(len(logs)))
    return math.sqrt(residual / (len(logs) - 2) / below)


def is_settled(rates: Sequence[float]) -> bool:
    """Whether the last windows, three or more of them, show no trend any more. Those up to one in
    which nothing was done at all (a stalled connection) tell nothing of what comes after it."""
    stalled = [number for number, rate in enumerate(rates) if rate <= 0]
    rates = rates[stalled[-1] + 1 :] if stalled else rates
    if len(rates) < WINDOWS:
        return False
    ends = (rates[-count:] for count in range(WINDOWS, len(rates) + 1))
    return any(
        abs(slope(end)) < max(SLOPE_LIMIT, SCATTER_LIMIT * standard_error(end)) for end in ends
    )


def is_flat(counts: Sequence[int]) -> bool:
    """Whether counts of faults, window by window, show no trend any more: by the same rule as
    rates, but for the scatter that a count has by itself (a variance as large as the count).

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
    middle = (len(larger) - 1) / 2
    below = sum((number - middle) ** 2 for number in range(len(larger)))
    above = sum((number - middle) ** 2 / value for number, value in enumerate(larger))
    return math.sqrt(above) / below
