"""Change points: where they are, that they aren't where nothing changed, and the formula."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from labctl.analysis import changepoints
from labctl.analysis.changepoints import change_points, smallest_p


def normal(seed: int, *levels: tuple[float, int]) -> list[float]:
    """Levels with their numbers of values, and noise of standard deviation 1."""
    rng = np.random.default_rng(seed)
    return [float(level + rng.normal()) for level, count in levels for _ in range(count)]


def indices(values: list[float], alpha: float = 0.05) -> list[int]:
    return [point.index for point in change_points(values, alpha)]


def test_the_largest_statistic_is_that_of_the_formula() -> None:
    values = np.array(normal(1, (0.0, 6), (2.0, 5)))

    def mean_distance(pairs: list[tuple[float, float]]) -> float:
        return float(np.mean([abs(x - y) for x, y in pairs]))

    def q(left: list[float], right: list[float]) -> float:
        n, m = len(left), len(right)
        energy = (
            2 * mean_distance(list(itertools.product(left, right)))
            - mean_distance(list(itertools.combinations(left, 2)))
            - mean_distance(list(itertools.combinations(right, 2)))
        )
        return n * m / (n + m) * energy

    every = {
        (split, end): q(list(values[:split]), list(values[split:end]))
        for split in range(3, len(values) - 2)
        for end in range(split + 3, len(values) + 1)
    }
    (split, _), best = max(every.items(), key=lambda item: item[1])
    found, at = changepoints._largest(values, 100)
    assert found == pytest.approx(best)
    assert at == 100 + split


def test_each_of_several_changes_is_found_where_it_is() -> None:
    assert indices(normal(2, (0.0, 12), (5.0, 10), (0.0, 11), (9.0, 8))) == [12, 22, 33]


def test_a_level_that_comes_back_hides_no_change() -> None:
    assert indices(normal(5, (0.0, 9), (5.0, 9), (0.0, 9))) == [9, 18]


def test_a_change_of_the_spread_alone_is_one() -> None:
    rng = np.random.default_rng(4)
    values = [*rng.normal(0, 0.1, 40), *rng.normal(0, 5, 40)]
    (found,) = indices([float(value) for value in values])
    assert 35 <= found <= 45


@pytest.mark.parametrize("n", [8, 20])
def test_of_series_that_never_change_few_get_a_mark(n: int) -> None:
    marked = sum(bool(indices(normal(seed, (0.0, n)))) for seed in range(200))
    # 95 % of binomials of 200 and 0.05 are at most 15.
    assert marked <= 15


def test_a_smaller_alpha_takes_a_clearer_change() -> None:
    values = normal(6, (0.0, 7), (3.0, 7))
    assert indices(values, 0.05) == [7]
    assert indices(values, 0.0005) == []  # 2 of 3,432 orders look like this


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 5, [1.0] * 30, [0.0, 9.0] * 2])
def test_what_is_too_short_or_never_moves_has_no_change(values: list[float]) -> None:
    assert indices(values) == []


def test_the_same_values_get_the_same_answer_each_time() -> None:
    values = normal(7, (0.0, 10), (1.5, 10))
    assert change_points(values, 0.05) == change_points(values, 0.05)


def test_the_smallest_p_is_reached_by_the_clearest_change() -> None:
    n = 8
    (point,) = change_points([*([0.0, 0.1] * 2), *([100.0, 100.1] * 2)], 0.05)
    assert point.p == pytest.approx(smallest_p(n), abs=0.02)
    assert indices([0.0, 0.1, 0.0, 100.0, 100.1, 100.0]) == []  # 2 of 20 orders look like this


def test_a_large_change_is_found_among_many_series_too() -> None:
    """Of 600 series each has a 600th of alpha, which takes more permutations than one alone."""
    values = [1.0 + 0.01 * (k % 3) for k in range(10)] + [5.0 + 0.01 * (k % 3) for k in range(10)]
    assert [point.index for point in change_points(values, 0.05 / 600, seed=1)] == [10]
