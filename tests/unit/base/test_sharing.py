"""How two flows share a link, against values worked out by hand."""

from __future__ import annotations

import pytest

from labctl.base.link import bitrate_difference, jain_index, settling_s, steady


@pytest.mark.parametrize(
    ("rates", "index"),
    [
        ([5.0, 5.0], 1.0),
        ([7.0, 0.0], 0.5),
        # (10 + 5)² / 2 (100 + 25) = 225 / 250
        ([10.0, 5.0], 0.9),
        # (1 + 2 + 3)² / 3 (1 + 4 + 9) = 36 / 42
        ([1.0, 2.0, 3.0], 36 / 42),
    ],
)
def test_jains_index_is_the_one_worked_out_by_hand(rates: list[float], index: float) -> None:
    assert jain_index(rates) == pytest.approx(index)


def test_nothing_that_flows_has_no_index() -> None:
    assert jain_index([0.0, 0.0]) is None


@pytest.mark.parametrize(
    ("ours", "others", "difference"), [(10e6, 5e6, 1 / 3), (0, 15e6, -1), (7e6, 7e6, 0)]
)
def test_the_difference_is_over_the_capacity(ours: float, others: float, difference: float) -> None:
    assert bitrate_difference(ours, others, 15e6) == pytest.approx(difference)


def test_a_rate_settles_at_the_end_of_its_first_bin_within_a_tenth() -> None:
    rates = [20.0, 15.0, 10.9, 8.0, 10.0, 10.0, 10.0, 10.0]
    assert steady(rates) == 10.0
    assert settling_s(rates, 0.5) == 1.5
    assert settling_s([10.0, 10.0], 0.5) == 0.5


def test_a_rate_that_is_never_near_its_mean_does_not_settle() -> None:
    assert settling_s([0.0, 0.0, 5.0, 20.0], 0.5) is None
    assert settling_s([0.0, 0.0], 0.5) is None
