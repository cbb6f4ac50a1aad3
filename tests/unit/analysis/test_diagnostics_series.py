"""Tests on one series of numbers, held against enumeration and against what is planted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.caveats import assumptions

Draw = Callable[[np.random.Generator], assumptions.Values]

ALL = [range(10)]


def of(*values: float) -> assumptions.Values:
    return np.array(values)


def test_a_trend_is_as_rare_as_an_enumeration_of_all_orders_has_it() -> None:
    orders = [np.array(p, dtype=float) for p in itertools.permutations(range(6))]
    found = [assumptions.trend(order, [range(6)]) for order in orders]
    rank = Counter(found)
    for p in rank:
        share = sum(other <= p + 1e-12 for other in found) / len(found)
        assert min(1.0, p) == pytest.approx(share)


def test_a_trend_within_boots_is_as_rare_as_an_enumeration_of_both_has_it() -> None:
    three = list(itertools.permutations(range(3)))
    found = [
        assumptions.trend(np.array([*a, *b], dtype=float), [range(3), range(3, 6)])
        for a in three
        for b in three
    ]
    for p in set(found):
        assert p == pytest.approx(sum(other <= p + 1e-12 for other in found) / len(found))


def test_what_boots_differ_by_is_no_trend_within_them() -> None:
    steps = of(1, 3, 2, 5, 4, 101, 103, 102, 105, 104)
    assert assumptions.trend(steps, ALL) < 0.01
    assert assumptions.trend(steps, [range(5), range(5, 10)]) > 0.01


def test_the_exact_and_the_normal_distribution_of_a_trend_meet() -> None:
    values = np.random.default_rng(1).normal(size=100) + np.arange(100) / 150
    exact = assumptions.trend(values, [range(100)])
    assert exact == pytest.approx(stats.kendalltau(range(100), values).pvalue, rel=0.05)


def test_a_trend_over_thousands_of_blocks_is_seen_in_no_time() -> None:
    values = np.random.default_rng(1).normal(size=20_000) + np.arange(20_000) / 100_000
    assert assumptions.trend(values, [range(20_000)]) < 1e-4
    assert assumptions.slope(values, range(20_000), [range(20_000)]) == pytest.approx(1e-5, rel=0.5)


def test_a_slope_is_that_of_the_pairs_within_boots() -> None:
    values = of(0, 2, 4, 100, 102, 104)
    assert assumptions.slope(values, [1, 2, 3, 4, 5, 6], [range(3), range(3, 6)]) == 2


def test_one_wild_value_makes_no_trend() -> None:
    values = of(0.1, -0.3, 0.4, -0.2, 0.0, 0.3, -0.4, 0.2, -0.1, 1e6)
    assert assumptions.trend(values, ALL) > 0.05


def test_rosners_own_example_has_three_outliers() -> None:
    """B. Rosner (1983), data of his table 1: 54 values, of which the three largest are found."""
    values = of(
        *(-0.25, 0.68, 0.94, 1.15, 1.20, 1.26, 1.26, 1.34, 1.38, 1.43, 1.49, 1.49, 1.55, 1.56),
        *(1.58, 1.65, 1.69, 1.70, 1.76, 1.77, 1.81, 1.91, 1.94, 1.96, 1.99, 2.06, 2.09, 2.10),
        *(2.14, 2.15, 2.23, 2.24, 2.26, 2.35, 2.37, 2.40, 2.47, 2.54, 2.62, 2.64, 2.90, 2.92),
        *(2.92, 2.93, 3.21, 3.26, 3.30, 3.59, 3.68, 4.30, 4.64, 5.34, 5.42, 6.01),
    )
    assert assumptions.outliers(values, 0.05) == (53, 52, 51)


def test_two_outliers_that_hide_each_other_are_both_found() -> None:
    values = of(0.1, -0.3, 0.4, -0.2, 0.0, 0.3, -0.4, 0.2, 20.0, 21.0)
    assert set(assumptions.outliers(values, 0.01)) == {8, 9}


def test_values_that_tie_have_no_outlier() -> None:
    assert assumptions.outliers(of(*[0.0] * 9, 1.0), 0.01) == ()
    assert assumptions.outliers(np.zeros(10), 0.01) == ()


def test_a_value_within_the_bins_of_its_histogram_is_no_outlier() -> None:
    values = of(0.001, -0.003, 0.004, -0.002, 0.0, 0.003, -0.004, 0.002, -0.001, 0.1)
    assert assumptions.outliers(values, 0.01) == (9,)
    assert assumptions.outliers(values, 0.01, floor=0.05) == ()


def rate(flagged: Callable[[assumptions.Values], bool], draw: Draw, n: int = 4000) -> float:
    rng = np.random.default_rng(11)
    return float(np.mean([flagged(draw(rng)) for _ in range(n)]))


def normal(blocks: int) -> Draw:
    return lambda rng: rng.normal(size=blocks)


@pytest.mark.parametrize("blocks", [10, 20, 30])
def test_outliers_are_as_rare_in_normal_values_as_asked(blocks: int) -> None:
    found = rate(lambda values: bool(assumptions.outliers(values, 0.01)), normal(blocks))
    assert 0.003 <= found <= 0.015
