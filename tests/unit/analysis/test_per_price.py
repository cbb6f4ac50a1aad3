"""Performance per price of two runs, as a value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.analysis.compare.two_runs import Difference, Prices, per_price
from labctl.analysis.model import EffectKind
from labctl.base.units import Better, Unit

LOWER = Difference(
    tuning="baseline",
    workload="ticks",
    condition="quiet",
    metric="tick_p99",
    unit=Unit.SECONDS,
    better=Better.LOWER,
    of_effect=False,
    kind=EffectKind.RATIO,
    in_a=980e-6,
    in_b=657e-6,
    estimate=0.5,
    low=0.4,
    high=0.8,
    confidence=0.99,
    margin=0.05,
    blocks_a=10,
    blocks_b=10,
    before_look=False,
)
PRICES = Prices(a=0.30, b=0.60)


def test_the_ends_of_the_interval_change_places_where_less_is_better() -> None:
    (found,) = per_price([LOWER], PRICES)
    assert (found.low, found.estimate, found.high) == pytest.approx((0.625, 1.0, 1.25))


def test_they_stay_where_more_is_better() -> None:
    (found,) = per_price([replace(LOWER, better=Better.HIGHER)], PRICES)
    assert (found.low, found.estimate, found.high) == pytest.approx((0.2, 0.25, 0.4))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (replace(LOWER, better=Better.NEITHER), "no better direction"),
        (replace(LOWER, kind=EffectKind.DIFFERENCE), "compared by difference"),
        (replace(LOWER, estimate=0.0, low=None, high=None), "compared by difference"),
    ],
)
def test_what_has_no_ratio_has_no_performance_per_price(row: Difference, why: str) -> None:
    (found,) = per_price([row], PRICES)
    assert (found.estimate, found.low, found.high) == (None, None, None)
    assert why in found.why


def test_a_ratio_without_an_interval_has_none_here() -> None:
    (found,) = per_price([replace(LOWER, low=None, high=None)], PRICES)
    assert (found.low, found.estimate, found.high) == (None, pytest.approx(1.0), None)
