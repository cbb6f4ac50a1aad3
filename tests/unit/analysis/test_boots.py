"""Boots as the upper level of variance."""

import math
import random
from collections.abc import Mapping
from statistics import median

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.effects.intervals import (
    blocks_needed,
    mean_squares,
    p_value,
    sharing,
    smallest_visible,
    spread_over,
    t_interval,
)
from labctl.analysis.judge import judge
from tests.unit.analysis.alter import only
from tests.unit.synthetic import WORKLOADS, synthetic_run

ONE = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}

WORKED_EXAMPLE = [[9.0, 5.0, 8.0, 3.0], [10.0, 6.0, 7.0, 11.0], [1.0, 12.0, 2.0, 4.0]]
"""Kalibera and Jones (2013): three executions of four iterations each."""


def by_block(groups: list[list[float]]) -> tuple[Mapping[int, float], Mapping[int, int]]:
    """Effects and boots by block."""
    rows = [(value, boot) for boot, group in enumerate(groups, start=1) for value in group]
    return (
        {block: value for block, (value, _) in enumerate(rows)},
        {block: boot for block, (_, boot) in enumerate(rows)},
    )


def test_mean_squares_are_those_of_the_published_example() -> None:
    """S_1^2 is 12.7 and S_2^2, the variance of the means, 3.6: the mean square is 4 times that."""
    found = mean_squares(WORKED_EXAMPLE)
    assert found.within == pytest.approx(12.7, abs=0.05)
    assert found.between / 4 == pytest.approx(3.6, abs=0.05)
    assert found.blocks_per_boot == pytest.approx(4)


def test_the_interval_of_shared_boots_is_the_t_interval_of_their_means() -> None:
    effects, boots = by_block(WORKED_EXAMPLE)
    interval = t_interval(spread_over(effects, [boots], 1e-9), 0.05)
    means = [float(np.mean(group)) for group in WORKED_EXAMPLE]
    expected = stats.ttest_1samp(means, 0.0)
    assert interval is not None
    assert interval.low == pytest.approx(expected.confidence_interval(0.95).low)
    assert interval.high == pytest.approx(expected.confidence_interval(0.95).high)
    assert p_value(spread_over(effects, [boots], 1e-9)) == pytest.approx(expected.pvalue)


def test_a_boot_per_block_and_one_boot_for_all_leave_the_interval_of_blocks() -> None:
    effects, boots = by_block(WORKED_EXAMPLE)
    alone = spread_over(effects, [dict.fromkeys(effects, 7)], 1e-9)
    each = spread_over(effects, [{block: block for block in effects}], 1e-9)
    unknown = spread_over(effects, [], 1e-9)
    assert t_interval(alone, 0.05) == t_interval(each, 0.05) == t_interval(unknown, 0.05)
    assert (alone.boots, each.boots, unknown.boots) == (1, 12, 1)
    assert spread_over(effects, [boots], 1e-9).boots == 3


def test_unequal_boots_are_taken_to_be_wider_rather_than_narrower() -> None:
    """By hand, for 3 + 1 blocks in two boots: n_0 = (4 - 10/4) / 1 = 1.5, so the mean square is
    multiplied by (10/16) / 1.5 = 5/12 instead of 1/4."""
    found = mean_squares([[1.0, 2.0, 3.0], [6.0]])
    assert found.between == pytest.approx(3 * 1.0 + 1 * 9.0)
    assert found.standard_error**2 == pytest.approx(12 * 5 / 12)


def test_blocks_share_a_boot_if_any_of_their_arms_do() -> None:
    """The tuning boots for itself in each block (11, 12, ...); the baseline doesn't."""
    own = {1: 11, 2: 12, 3: 13, 4: 14}
    restored = {1: 1, 2: 1, 3: 2, 4: 2}
    assert sharing([1, 2, 3, 4], [own, restored]) == [[1, 2], [3, 4]]
    assert sharing([1, 2, 3, 4], [own]) == [[1], [2], [3], [4]]


def test_a_block_that_an_interruption_split_joins_the_boots_of_both_halves() -> None:
    baseline, tuning = {1: 1, 2: 1, 3: 3}, {1: 1, 2: 2, 3: 3}
    assert sharing([1, 2, 3], [baseline, tuning]) == [[1, 2], [3]]
    joined = {1: 1, 2: 2, 3: 2}
    assert sharing([1, 2, 3], [baseline, joined]) == [[1, 2, 3]]


def test_ties_in_a_coarse_histogram_are_no_certainty_over_boots_either() -> None:
    effects, boots = by_block([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    tied = spread_over(effects, [boots], 1e-9, floor=0.1)
    assert tied.error == pytest.approx(0.1 / math.sqrt(6))
    assert t_interval(spread_over(effects, [boots], 1e-9), 0.05) is None


def test_blocks_needed_keeps_as_many_blocks_to_a_boot() -> None:
    effects, boots = by_block([[0.02, 0.04], [-0.03, 0.01], [0.05, 0.0], [0.01, 0.02], [0.0, 0.03]])
    of = spread_over(effects, [boots], 1e-9)
    needed = blocks_needed(of, 0.05, 0.01)
    assert needed is not None
    now = smallest_visible(of, 0.05)
    assert now == pytest.approx((stats.t.ppf(0.975, 4) + stats.t.ppf(0.8, 4)) * of.error)
    degrees = needed / 2 - 1
    quantiles = stats.t.ppf(0.975, degrees) + stats.t.ppf(0.8, degrees)
    assert quantiles * of.error * math.sqrt(10 / needed) <= 0.01


def test_a_judgement_says_how_many_boots_its_blocks_shared() -> None:
    judged = judge(synthetic_run(boots=5, primary_only=True, workloads=ONE))
    assert only(judged, "pinned", "baseline", "events_per_s").boots == 5
    assert only(judged, "native+fifo", "native", "events_per_s").boots == 1


def test_what_differs_from_boot_to_boot_widens_the_interval_of_its_tuning() -> None:
    """One tuning is 30 % faster in every other boot: over blocks alone that looks certain."""

    def width(boots: int) -> float:
        run = synthetic_run(
            boots=boots,
            primary_only=True,
            workloads=ONE,
            boot_noise={"pinned": 0.2},
            noise=0.005,
        )
        found = only(judge(run), "pinned", "baseline", "events_per_s")
        assert found.low is not None
        assert found.high is not None
        return math.log(found.high / found.low)

    assert width(5) > 5 * width(1)


@pytest.mark.parametrize("deviation", [0.0, 0.5, 2.0])
def test_the_interval_covers_what_it_promises_whatever_boots_add(deviation: float) -> None:
    """2,000 runs of five boots of two blocks: 95 % give or take 1.5 (three standard errors). Over
    blocks alone coverage is 93 % at 0.5 and 84 % at 2 (commit 282cf693,
    `python -m tools.boot_coverage`)."""
    generator = np.random.default_rng(11)
    effects = generator.normal(size=(2000, 5, 2)) + deviation * generator.normal(size=(2000, 5, 1))
    side = {block: block // 2 for block in range(10)}
    covered = 0
    for run in effects.reshape(2000, 10):
        interval = t_interval(spread_over(dict(enumerate(run.tolist())), [side], 0.0), 0.05)
        assert interval is not None
        covered += interval.low <= 0 <= interval.high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


def test_the_interval_still_covers_when_invalid_trials_leave_boots_unequal() -> None:
    """Boots of 4, 4, 4, 4 and 1 blocks: too wide is allowed, too narrow isn't."""
    generator = np.random.default_rng(12)
    side = {block: block // 4 for block in range(17)}
    for deviation in (0.0, 1.0):
        covered = 0
        for _ in range(2000):
            boots = deviation * generator.normal(size=5)
            run = {block: float(boots[side[block]] + generator.normal()) for block in side}
            interval = t_interval(spread_over(run, [side], 0.0), 0.05)
            assert interval is not None
            covered += interval.low <= 0 <= interval.high
        assert covered / 2000 > 0.935


def test_boots_that_tie_are_no_certainty() -> None:
    """As equal blocks have no interval: within each boot the effects differ, the means don't."""
    of_boot = {block: 1 + block // 2 for block in range(10)}
    values = {block: math.log(1.013 if block % 4 in (0, 3) else 1.049) for block in range(10)}
    found = spread_over(values, [of_boot], 1e-9)
    assert found.sd > 0.01
    assert t_interval(found, 0.05) is None
    assert t_interval(spread_over(values, [of_boot], 1e-9, floor=0.01), 0.05) is not None


@pytest.mark.parametrize("between", [0.0, 1.0])
def test_five_blocks_added_to_a_boot_of_ten_say_more_from_a_boot_each(between: float) -> None:
    """And keep the promise of 95 %: unequal boots make an interval too wide, not too narrow."""
    rng = random.Random(8)
    one_more = {block: 1 if block <= 10 else 2 for block in range(1, 16)}
    one_each = {block: max(1, block - 9) for block in range(1, 16)}
    widths: dict[str, list[float]] = {"one more": [], "one each": []}
    held = 0
    for _ in range(600):
        for name, boots in (("one more", one_more), ("one each", one_each)):
            drawn = {boot: rng.gauss(0, between) for boot in boots.values()}
            effects = {block: drawn[boot] + rng.gauss(0, 1) for block, boot in boots.items()}
            found = t_interval(spread_over(effects, [boots], 1e-9), 0.05)
            assert found is not None
            widths[name].append(found.high - found.low)
            held += name == "one each" and found.low <= 0 <= found.high
    assert median(widths["one each"]) < 0.5 * median(widths["one more"])
    assert held / 600 > 0.94
