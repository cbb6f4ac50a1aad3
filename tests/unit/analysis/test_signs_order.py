"""What the order of a block does, against plain least squares and planted effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.signs.order import Layout, OrderEffect, layout, order_effects
from labctl.study.williams import block_order

ARMS = ("a", "b", "c", "d", "e", "f")


def orders(blocks: int = 12, arms: Sequence[str] = ARMS, seed: int = 1) -> dict[int, list[str]]:
    return {
        block: list(block_order(arms, seed=seed, block=block, what="tunings"))
        for block in range(1, blocks + 1)
    }


def measured(
    ran: Mapping[int, Sequence[str]],
    *,
    seed: int = 1,
    slope: float = 0.0,
    after: Mapping[str, float] | None = None,
    noise: Mapping[str, float] | None = None,
    missing: float = 0.0,
) -> Layout:
    rng = np.random.default_rng(seed)
    values: dict[str, dict[int, float]] = {arm: {} for arm in ARMS}
    for block, order in ran.items():
        level, before = rng.normal(0, 5), ""
        for position, arm in enumerate(order, start=1):
            value = level + ARMS.index(arm) + slope * position + (after or {}).get(before, 0.0)
            value += rng.normal(0, (noise or {}).get(arm, 1.0))
            if rng.random() >= missing:
                values[arm][block] = value
            before = arm
    return layout(values, ran)


def position(of: Layout) -> OrderEffect:
    found, _ = order_effects(of)
    assert found is not None
    return found


def test_the_slope_is_that_of_least_squares_with_a_dummy_for_each_block_and_arm() -> None:
    of = measured(orders(), slope=0.3, missing=0.15)
    rows, ys = [], []
    blocks, arms = of.values.shape
    for block, arm in zip(*np.nonzero(~np.isnan(of.values)), strict=True):
        row = np.zeros(blocks + arms + 1)
        row[block] = row[blocks + arm] = 1
        row[-1] = of.positions[block, arm]
        rows.append(row)
        ys.append(of.values[block, arm])
    expected = np.linalg.lstsq(np.array(rows), np.array(ys), rcond=None)[0][-1]
    assert position(of).effect == pytest.approx(expected)


def test_its_error_is_the_jackknifes_over_blocks() -> None:
    ran = orders()
    of = measured(ran, slope=0.3)
    without = []
    for left_out in range(len(ran)):
        keep = np.arange(len(ran)) != left_out
        less = Layout(of.arms, of.values[keep], of.positions[keep], of.before[keep])
        without.append(position(less).effect)
    n = len(ran)
    error = np.sqrt((n - 1) / n * np.square(np.array(without) - np.mean(without)).sum())
    found = position(of)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(found.effect) / error, n - 1))


def test_a_planted_slope_is_found_through_blocks_and_tunings_that_differ_far_more() -> None:
    found = [position(measured(orders(), seed=seed, slope=0.5)) for seed in range(40)]
    assert sum(one.p < 0.01 for one in found) >= 36
    assert np.mean([one.effect for one in found]) == pytest.approx(0.5, abs=0.05)


def test_a_planted_carry_over_is_found_and_named() -> None:
    named = 0
    for seed in range(40):
        _, after = order_effects(measured(orders(), seed=seed, after={"c": 4.0}))
        named += {arm for arm, one in after.items() if one.p < 0.01 / len(ARMS)} == {"c"}
    assert named >= 34


@pytest.mark.parametrize("noise", [{}, {"a": 10.0}, dict.fromkeys("abc", 0.1)])
def test_order_is_rarely_blamed_for_noise_even_of_unequal_arms(noise: Mapping[str, float]) -> None:
    """One in a hundred is asked for; of 400 a rate of 0.01 gives ten or fewer nearly always."""
    slopes = carries = 0
    for seed in range(400):
        by_position, after = order_effects(measured(orders(10, seed=seed), seed=seed, noise=noise))
        slopes += by_position is not None and by_position.p < 0.01
        carries += any(one.p < 0.01 / len(ARMS) for one in after.values())
    assert slopes <= 10
    assert carries <= 12


def test_whole_designs_load_no_arm_with_the_order() -> None:
    by_position, after = order_effects(measured(orders(12)))
    assert by_position is not None
    assert set(by_position.shares.values()) == {3.5}
    for arm, found in after.items():
        assert len({round(found.shares[other], 9) for other in ARMS if other != arm}) == 1


def test_an_arm_that_ran_but_has_no_values_keeps_its_position() -> None:
    found = layout({"a": {1: 1.0}, "c": {1: 2.0}}, {1: ["a", "b", "c"]})
    assert found.positions.tolist() == [[1, 3]]
    assert found.before.tolist() == [[-1, -1]]


def test_where_an_arm_hangs_on_a_single_block_nothing_is_said() -> None:
    ran = orders(10)
    of = measured(ran)
    of.values[1:, 0] = np.nan
    assert order_effects(of) == (None, {})


def test_an_order_that_never_changes_can_not_be_told_from_the_arms() -> None:
    ran = dict.fromkeys(range(1, 11), ARMS)
    assert order_effects(measured(ran)) == (None, {})
