"""Changes are found where they are, and seldom where there are none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from labctl.analysis.compare import history
from labctl.analysis.compare.history import Floats, autocorrelation, search
from tools.calibrate import levels


def normal(seed: int, *steps: tuple[float, int]) -> list[float]:
    """Return levels with their numbers of values, and noise of standard deviation 1."""
    rng = np.random.default_rng(seed)
    return [float(level + rng.normal()) for level, count in steps for _ in range(count)]


def indices(values: list[float], alpha: float = 0.05) -> list[int]:
    return [point.index for point in search(values, alpha).changes]


def left_over(values: Floats, r: float, *columns: Floats) -> float:
    """Return the squares that generalized least squares leaves, by the covariance of noise of
    autocorrelation r written out."""
    n = len(values)
    covariance = np.array([[r ** abs(i - j) for j in range(n)] for i in range(n)]) / (1 - r * r)
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    rows, y = root @ np.column_stack(columns), root @ values
    rest = y - rows @ np.linalg.lstsq(rows, y, rcond=None)[0]
    return float(rest @ rest)


@pytest.mark.parametrize("r", [0.0, 0.6])
def test_a_steps_ratio_is_that_of_the_likelihoods_written_out(r: float) -> None:
    values = np.array(normal(1, (0.0, 6), (2.0, 6)))
    n = len(values)
    (ratios,) = history._ratios(history._whitened(values[np.newaxis], r), r)
    starts, ends = history._places(n)
    pairs = [(a, b) for a in range(3, n) for b in range(a + 3, n + 1) if b == n or b <= n - 3]
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == pairs
    level, at = np.ones(n), np.arange(n)
    for (start, end), ratio in zip(pairs, ratios, strict=True):
        step = ((at >= start) & (at < end)).astype(float)
        share = left_over(values, r, level, step) / left_over(values, r, level)
        cost = 2 * math.log(n) if end < n else 0
        assert ratio == pytest.approx(-n * math.log(share) - cost)


def test_a_lines_ratio_is_that_of_the_likelihoods_written_out() -> None:
    values = np.array(normal(1, (0.0, 6), (2.0, 6)))
    (ratio,) = history._trend_ratio(history._whitened(values[np.newaxis], 0.6), 0.6)
    level, at = np.ones(12), np.arange(12.0)
    share = left_over(values, 0.6, level, at) / left_over(values, 0.6, level)
    assert ratio == pytest.approx(-12 * math.log(share) + math.log(12))


def test_a_slide_without_a_clear_step_is_a_trend() -> None:
    """16 % over 40 runs in noise of 6 %: of six in ten a step is clear."""
    slides = []
    for seed in range(16):
        noise = np.random.default_rng(seed).normal(0, 0.06, 40)
        slides.append(search((np.linspace(0, math.log(0.84), 40) + noise).tolist(), 0.05))
    trends = [one.trend.last - one.trend.first for one in slides if one.trend]
    assert len(trends) >= 3
    assert all(abs(change - math.log(0.84)) < 0.1 for change in trends)
    assert sum(bool(one.changes) for one in slides) + len(trends) >= 14
    assert not any(one.changes and one.trend for one in slides)


def test_each_of_several_changes_is_found_where_it_is() -> None:
    assert indices(normal(2, (0.0, 12), (5.0, 10), (0.0, 11), (9.0, 8))) == [12, 22, 33]


def test_steps_that_are_still_to_be_found_hide_none() -> None:
    """Two steps up look like strong autocorrelation, unless both are taken out."""
    stairs = [indices(normal(seed, (0.0, 10), (6.0, 10), (12.0, 10))) for seed in range(10)]
    assert sum(len(places) == 2 for places in stairs) >= 9


def test_a_level_that_comes_back_hides_no_change() -> None:
    assert indices(normal(5, (0.0, 9), (5.0, 9), (0.0, 9))) == [9, 18]


def test_one_step_is_not_told_as_two() -> None:
    found = [indices(normal(seed, (0.0, 15), (6.0, 15))) for seed in range(20)]
    assert sum(places == [15] for places in found) >= 18


@pytest.mark.parametrize("r", levels.RECALLED)
def test_of_series_that_never_change_few_get_a_mark_however_runs_resemble_each_other(
    r: float,
) -> None:
    """A test of which all orders of the values were equally likely marked four in ten at 0.5."""
    found = levels.marked("normal", r, 30, 150, seed=1)
    assert found.lower_limit(0.999) <= 0.05


@pytest.mark.parametrize("noise", ["skewed", "heavy-tailed"])
def test_other_noise_makes_few_marks_more(noise: str) -> None:
    assert levels.marked(noise, 0.5, 20, 150, seed=1).lower_limit(0.999) <= 0.05


@pytest.mark.parametrize(
    ("shape", "size", "r", "least"),
    [
        ("halfway", 3, 0.0, 0.8),
        ("halfway", 6, 0.0, 0.95),
        ("halfway", 6, 0.5, 0.6),
        (levels.SLIDE, 4, 0.0, 0.8),
        (levels.SLIDE, 6, 0.5, 0.5),
    ],
)
def test_a_real_change_is_found_all_the_same(
    shape: str, size: float, r: float, least: float
) -> None:
    assert levels.found(shape, size, r, 30, 60, seed=1).share >= least


def test_an_autocorrelation_is_that_around_the_levels() -> None:
    (noise,) = levels.series("normal", 0.7, 400, 1, np.random.default_rng(1))
    shifted = noise + 10 * (np.arange(400) >= 150)
    assert 0.5 < autocorrelation(shifted, [0, 150]) < 0.8
    assert 0.5 < autocorrelation(shifted, [0]) < 0.8
    assert autocorrelation(np.array(normal(1, (0.0, 400))), [0]) == history._LEAST


def test_a_smaller_alpha_takes_a_clearer_change() -> None:
    values = normal(7, (0.0, 12), (3.0, 12))
    assert indices(values, 0.05) == [12]
    assert indices(values, 0.0005) == []


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 5, [1.0] * 30, [0.0, 9.0] * 2])
def test_what_is_too_short_or_never_moves_has_no_change(values: list[float]) -> None:
    assert indices(values) == []


def test_the_same_values_get_the_same_answer_each_time() -> None:
    values = normal(7, (0.0, 10), (1.5, 10))
    assert search(values, 0.05) == search(values, 0.05)


def test_a_step_without_any_noise_is_found() -> None:
    assert indices([1.0] * 6 + [2.0] * 6) == [6]


@pytest.mark.parametrize("scale", [1e-9, 1e12])
def test_the_unit_decides_nothing(scale: float) -> None:
    values = normal(2, (0.0, 12), (5.0, 10), (0.0, 11))
    assert indices([scale * (value + 100) for value in values]) == indices(values) == [12, 22]


def test_a_large_change_is_found_among_many_series_too() -> None:
    """Of 600 series each has a 600th of alpha, which takes more orders than one alone."""
    values = [1.0 + 0.01 * (k % 3) for k in range(10)] + [5.0 + 0.01 * (k % 3) for k in range(10)]
    assert [point.index for point in search(values, 0.05 / 600, seed=1).changes] == [10]
