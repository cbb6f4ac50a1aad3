import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labctl.analysis.effects.intervals import (
    Interval,
    Spread,
    blocks_needed,
    smallest_visible,
    spread,
    t_interval,
    unpaired,
)

EFFECTS = [0.02, 0.05, -0.01, 0.04, 0.03, 0.06, 0.00, 0.05, 0.02, 0.04]
"""Sum 0.30, mean 0.03; squared deviations sum to 0.0046, sd = sqrt(0.0046 / 9) = 0.0226078."""


def test_mean_and_sd_are_those_computed_by_hand() -> None:
    found = spread(EFFECTS, 1e-9)
    assert found.n == 10
    assert found.mean == pytest.approx(0.03)
    assert found.sd == pytest.approx(math.sqrt(0.0046 / 9))


def test_a_95_percent_interval_of_ten_blocks_uses_2_262_standard_errors() -> None:
    """2.262157 is t(0.975, 9) in every printed table."""
    found = t_interval(spread(EFFECTS, 1e-9), 0.05)
    half = 2.262157 * math.sqrt(0.0046 / 9) / math.sqrt(10)
    assert found is not None
    assert found.low == pytest.approx(0.03 - half, abs=1e-7)
    assert found.high == pytest.approx(0.03 + half, abs=1e-7)


@given(
    effects=st.lists(st.floats(-5, 5), min_size=2, max_size=40).filter(
        lambda values: max(values) - min(values) > 1e-3
    ),
    alpha=st.sampled_from([0.05, 0.05 / 4, 0.05 / 36]),
)
def test_intervals_are_those_of_scipys_one_sample_t_test(
    effects: list[float], alpha: float
) -> None:
    found = t_interval(spread(effects, 1e-9), alpha)
    expected = stats.ttest_1samp(effects, 0.0).confidence_interval(1 - alpha)
    assert found is not None
    assert found.low == pytest.approx(expected.low, rel=1e-6, abs=1e-9)
    assert found.high == pytest.approx(expected.high, rel=1e-6, abs=1e-9)


def test_one_block_has_no_interval() -> None:
    assert t_interval(spread([0.5], 1e-9), 0.05) is None
    assert smallest_visible(spread([0.5], 1e-9), 0.05) is None


def test_tied_effects_have_no_interval_rather_than_one_of_no_width() -> None:
    tied = spread([0.1, 0.1 + 1e-12, 0.1], 1e-9)
    assert t_interval(tied, 0.05) is None
    assert blocks_needed(tied, 0.05, 0.05) is None


def test_no_effects_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="no effects"):
        spread([], 1e-9)


def test_the_smallest_visible_effect_is_the_sum_of_two_quantiles_in_standard_errors() -> None:
    found = smallest_visible(Spread(10, 0.0, 0.2), 0.05 / 4)
    quantiles = stats.t.ppf(1 - 0.05 / 8, 9) + stats.t.ppf(0.8, 9)
    assert found == pytest.approx(quantiles * 0.2 / math.sqrt(10))


@pytest.mark.parametrize("sd", [0.06, 0.2, 1.1])
def test_blocks_needed_is_the_first_number_of_blocks_that_shows_the_margin(sd: float) -> None:
    alpha, margin = 0.05 / 4, 0.05
    needed = blocks_needed(Spread(10, 0.0, sd), alpha, margin)
    assert needed is not None
    at, before = (smallest_visible(Spread(n, 0.0, sd), alpha) for n in (needed, needed - 1))
    assert at is not None
    assert before is not None
    assert at <= margin < before


def test_blocks_are_not_needed_or_too_many_to_be_given() -> None:
    assert blocks_needed(Spread(10, 0.0, 0.001), 0.0125, 0.05) is None
    assert blocks_needed(Spread(10, 0.0, 1000.0), 0.0125, 0.001) is None


def test_within_is_open_at_both_ends() -> None:
    assert Interval(-0.04, 0.04).within(0.05)
    assert not Interval(-0.05, 0.04).within(0.05)
    assert not Interval(-0.04, 0.05).within(0.05)


def test_reach_is_the_farther_end() -> None:
    assert Interval(-0.3, 0.1).reach == 0.3
    assert Interval(-0.1, 0.3).mirrored() == Interval(-0.3, 0.1)


def test_one_against_two_unpaired_has_the_error_and_degrees_of_welch_and_satterthwaite() -> None:
    rng = np.random.default_rng(3)
    t, b, c = (rng.normal(0, sd, n) for sd, n in ((3.0, 12), (1.0, 10), (0.5, 15)))
    one, *others = (spread(values, 1e-9) for values in (t, b, c))
    found = unpaired(one, others)
    shares = [t.var(ddof=1) / 12, b.var(ddof=1) / 10 / 4, c.var(ddof=1) / 15 / 4]
    assert found.mean == pytest.approx(t.mean() - (b.mean() + c.mean()) / 2)
    assert found.error == pytest.approx(math.sqrt(sum(shares)))
    degrees = sum(shares) ** 2 / sum(s * s / f for s, f in zip(shares, (11, 9, 14), strict=True))
    assert found.degrees == pytest.approx(degrees)
    assert found.n == 10


def test_unpaired_intervals_of_unequal_arms_hold_the_truth() -> None:
    """2,000 intervals of 95 % hold it in 93.5 to 96.5 % nearly always (3 sigma)."""
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(2000):
        arms = [spread(rng.normal(0, sd, 10), 1e-9) for sd in (3.0, 1.0, 1.0)]
        interval = t_interval(unpaired(arms[0], arms[1:]), 0.05)
        assert interval is not None
        hits += interval.low <= 0 <= interval.high
    assert 0.935 <= hits / 2000 <= 0.965
