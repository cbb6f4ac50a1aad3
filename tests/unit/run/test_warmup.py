"""When a warm-up is over: no trend, or none that stands out of the scatter."""

from __future__ import annotations

import math

import pytest

from labctl.run.trials.warmup import (
    SLOPE_LIMIT,
    WINDOWS,
    is_flat,
    is_settled,
    slope,
    standard_error,
)


@pytest.mark.parametrize(
    ("rates", "settled"),
    [
        *(([100.0] * count, False) for count in range(WINDOWS)),
        ([100.0] * WINDOWS, True),
        # A steady fall, and climbs below and above the limit.
        ([100 * 0.95**number for number in range(10)], False),
        ([100 * (1 + 0.9 * SLOPE_LIMIT) ** number for number in range(5)], True),
        ([100 * (1 + 1.1 * SLOPE_LIMIT) ** number for number in range(5)], False),
        # A window in which nothing was done has no rate, and is no trend.
        ([0.0, 100.0, 100.0, 100.0], True),
        ([100.0, 100.0, 100.0, 0.0], False),
        ([100.0, 100.0, 0.0, 100.0, 100.0], False),
        ([100.0, 0.0, 100.0, 100.0], False),
        ([100.0, -1.0, 100.0, 100.0], False),
        # What a neighbour does to single windows: tens of percent, in no direction.
        ([100.0, 70.0, 105.0, 75.0], True),
        # A trend that stands out of its scatter.
        ([50.0, 61.0, 69.0, 80.5, 89.0, 100.0], False),
        # A slow start is forgotten once the last windows are flat; flat ones excuse no later climb.
        ([20.0, 40.0, 80.0], False),
        ([20.0, 40.0, 80.0, 100.0, 100.0, 100.0], True),
        ([100.0, 100.0, 100.0, 130.0, 170.0, 220.0], False),
    ],
)
def test_windows_without_a_trend_are_settled(rates: list[float], settled: bool) -> None:
    assert is_settled(rates) is settled


def test_a_steady_climb_is_not_settled_however_long_it_goes_on() -> None:
    rates = [100 * 1.05**number for number in range(30)]
    assert not any(is_settled(rates[:count]) for count in range(len(rates) + 1))


def test_the_slope_is_the_relative_change_per_window() -> None:
    assert slope([100 * math.exp(0.02 * number) for number in range(7)]) == pytest.approx(0.02)
    assert slope([100.0, 200.0, 100.0]) == pytest.approx(0.0)


def test_the_standard_error_is_that_of_a_least_squares_fit() -> None:
    # By hand: ln rates 0, 1, 0 around their mean leave 2/3 of squares, 1 degree, Sxx = 2.
    assert standard_error([1.0, math.e, 1.0]) == pytest.approx(math.sqrt(2 / 3 / 1 / 2))
    assert standard_error([1.0, 2.0, 4.0]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    "counts",
    [
        [0, 0, 0],
        [5000, 30, 28, 33],
        [1000, 990, 985],
        [5, 3, 1],  # no less than counts that come at random differ
        [3000, 200, 3, 0, 1],
    ],
)
def test_counts_of_faults_that_only_scatter_are_flat(counts: list[int]) -> None:
    assert is_flat(counts)


@pytest.mark.parametrize(
    "counts", [[], [0, 0], [3000, 200, 20], [3000, 200, 20, 3], [20, 3, 0], [10, 100, 1000]]
)
def test_counts_of_faults_that_still_fall_or_rise_are_not_flat(counts: list[int]) -> None:
    assert not is_flat(counts)
