"""How many guests fit: order statistics and the sign test against scipy, bounds taken as bounds."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labctl.analysis.density import (
    Number,
    compared,
    coverage,
    interval_of,
    judged,
    median_of,
    sequential_level,
    sign_p,
    why_ended,
)
from labctl.analysis.verdicts.family import rejected_at
from tests.unit.density_records import Numbers, record


def exact(*values: int) -> list[Number]:
    return [Number(value) for value in values]


@pytest.mark.parametrize("n", range(1, 41))
def test_the_coverage_is_scipys_binomial(n: int) -> None:
    for k in range(1, n // 2 + 1):
        assert coverage(n, k) == pytest.approx(1 - 2 * stats.binom.cdf(k - 1, n, 0.5))


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_sign_test_is_scipys(more: int, fewer: int) -> None:
    if more + fewer == 0:
        assert sign_p(0, 0) == 1
        return
    expected = stats.binomtest(more, more + fewer, 0.5).pvalue
    assert sign_p(more, fewer) == pytest.approx(expected)


@pytest.mark.parametrize("n", range(6, 41))
def test_the_interval_is_scipys_of_the_median(n: int) -> None:
    """scipy's confidence interval of a quantile, on values that are all different."""
    values = list(range(100, 100 + n))
    found = interval_of(exact(*values))
    assert found is not None
    expected = stats.quantile_test(values, q=101, p=0.5).confidence_interval(0.95)
    assert (found.low.value, found.high.value) == (expected.low, expected.high)


def test_five_blocks_show_no_interval_and_six_show_one() -> None:
    """1 - 2/32 = 0.9375 and 1 - 2/64 = 0.96875."""
    assert interval_of(exact(3, 3, 3, 3, 3)) is None
    found = interval_of(exact(3, 4, 2, 3, 3, 3))
    assert found is not None
    assert str(found) == "2 to 4"
    assert found.coverage == 0.96875


def test_of_ten_blocks_it_lies_between_the_second_and_the_ninth() -> None:
    found = interval_of(exact(1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
    assert found is not None
    assert (found.low.value, found.high.value, found.coverage) == (2, 9, 1 - 22 / 1024)


def test_the_typical_number_is_what_more_than_half_of_the_blocks_reached() -> None:
    assert median_of(exact(2, 4, 3)) == Number(3)
    assert median_of(exact(2, 3)) == Number(2)
    assert median_of(exact(4, 2, 3, 5)) == Number(3)
    assert median_of([]) is None


def test_a_bound_makes_what_lies_at_or_above_it_a_lower_bound() -> None:
    bounded = [Number(2), Number(4, at_least=True), Number(4, at_least=True)]
    assert str(median_of(bounded)) == "at least 4"
    # One bound at 3 may in truth be 5, above the others.
    low = [Number(3, at_least=True), Number(4), Number(4)]
    assert str(median_of(low)) == "at least 4"
    # Whatever the bounded one is, the median is 2.
    assert str(median_of([Number(1), Number(2), Number(4, at_least=True)])) == "2"


def test_an_interval_that_reaches_a_bound_is_open() -> None:
    found = interval_of([*exact(2, 3, 3, 3, 3), Number(4, at_least=True)])
    assert str(found) == "2 to 4 or more"


@pytest.mark.parametrize(
    ("one", "other", "sign"),
    [
        (Number(3), Number(2), 1),
        (Number(2), Number(3), -1),
        (Number(2), Number(2), 0),
        (Number(4, True), Number(3), 1),
        (Number(3), Number(4, True), -1),
        (Number(4, True), Number(4), None),
        (Number(4, True), Number(5), None),
        (Number(4, True), Number(4, True), None),
        (Number(4, True), Number(2, True), None),
    ],
)
def test_a_bound_decides_where_it_can(one: Number, other: Number, sign: int | None) -> None:
    assert compared(one, other) == sign


def test_tunings_are_compared_block_by_block_and_ties_are_dropped() -> None:
    found = judged(record({"baseline": [2] * 8, "vcpupin": [3, 3, 3, 3, 3, 3, 3, 2]}))
    (test,) = found.tests
    assert (test.more, test.fewer, test.alike) == (7, 0, 1)
    assert test.p == pytest.approx(2 / 2**7)
    assert test.shows_more is True


def test_five_blocks_that_differ_show_nothing_however_they_differ() -> None:
    (test,) = judged(record({"baseline": [2] * 5, "vcpupin": [9] * 5})).tests
    assert (test.p, test.shows_more, test.fewest) == (0.0625, None, 6)


def test_holm_asks_more_of_each_of_several() -> None:
    """2/2^6 = 0.031 is above 0.05/2, and below 0.05/1 once the other is shown."""
    counts = {"baseline": [2] * 8, "six": [3] * 6 + [2] * 2, "eight": [3] * 8}
    six, eight = judged(record(counts)).tests
    assert (eight.level, six.level) == (0.025, 0.05)
    assert six.fewest == 7
    alone = judged(record({**counts, "eight": [2] * 8})).tests[0]
    assert alone.shows_more is None


@pytest.mark.parametrize("most", [5, 6, 10, 13])
@pytest.mark.parametrize("alpha", [0.05, 0.025, 0.05 / 3])
def test_looks_after_every_block_keep_the_level_over_all_walks(most: int, alpha: float) -> None:
    """By enumeration of every walk: the level found keeps alpha, and the next larger doesn't."""

    def rejected(level: float) -> float:
        walks = product((0, 1), repeat=most)
        return sum(
            any(sign_p(sum(walk[:n]), n - sum(walk[:n])) <= level for n in range(1, most + 1))
            for walk in walks
        ) / (2**most)

    found = sequential_level(most, alpha)
    attainable = {sign_p(i, n - i) for n in range(1, most + 1) for i in range(n + 1)}
    assert rejected(found) <= alpha
    assert rejected(min(p for p in attainable if p > found)) > alpha


def test_a_run_with_looks_ends_when_every_tuning_is_decided() -> None:
    counts: dict[str, Numbers] = {"baseline": [2] * 5, "vcpupin": [3] * 5}
    assert why_ended(record(counts, looks=True, blocks=10)) is None
    counts = {"baseline": [2] * 6, "vcpupin": [3] * 6}
    assert why_ended(record(counts, looks=True, blocks=10)) == (
        "whether more guests fit than under baseline was decided for every tuning after 6 of 10 "
        "blocks"
    )
    assert why_ended(record(counts, blocks=10)) is None
    assert why_ended(record({**counts, "alike": [2] * 6}, looks=True, blocks=10)) is None
    assert why_ended(record({"baseline": [2] * 6}, looks=True, blocks=10)) is None


def test_a_test_after_each_block_asks_more_than_one_at_the_end() -> None:
    counts: dict[str, Numbers] = {"baseline": [2] * 9, "vcpupin": [1, *[3] * 8]}
    (at_end,) = judged(record(counts)).tests
    (after_each,) = judged(record(counts, looks=True, blocks=10)).tests
    assert at_end.p == after_each.p == pytest.approx(0.0390625)
    assert (at_end.shows_more, after_each.shows_more) == (True, None)
    assert after_each.fewest == 6


def test_a_block_without_a_number_is_left_out_and_said() -> None:
    found = judged(record({"baseline": [2, None], "vcpupin": [3, 3]}))
    assert found.fitting[0].lacking == {2: "the guest labctl-noisy-1 is gone"}
    assert (found.tests[0].more, found.fitting[0].typical) == (1, Number(2))


def test_each_guest_costs_those_that_were_there_before() -> None:
    found = judged(record({"baseline": [2, 2, 1]}))
    points = {point.count: point for point in found.curves["baseline"]}
    assert points[1].cost is None
    assert points[2].cost == pytest.approx(0.002)
    assert (points[2].blocks, points[2].held) == (3, 2)
    # The worst guest is the last one; the median guest is between.
    assert points[2].worst == pytest.approx(0.0072)
    assert points[2].middle == pytest.approx(0.00715)


def test_an_unfinished_run_says_what_there_is() -> None:
    found = judged(record({"baseline": [2], "vcpupin": [3]}, counts=(), steps=()))
    assert found.fitting[0].typical is None
    assert found.tests[0].p == 1


def test_whole_numbers_that_tie_make_the_interval_and_the_test_only_more_careful() -> None:
    """2,000 runs of ten blocks of three tunings that fit alike: 1 to 5 guests, 3 the median."""
    draw = Random(1)
    outside = false = 0
    runs = 2000
    for _ in range(runs):
        blocks = [
            [draw.choices((1, 2, 3, 4, 5), (1, 2, 4, 2, 1))[0] for _ in range(10)] for _ in range(3)
        ]
        found = interval_of(exact(*blocks[0]))
        assert found is not None
        outside += not found.low.value <= 3 <= found.high.value
        pairs = [list(zip(other, blocks[0], strict=True)) for other in blocks[1:]]
        p_values = [sign_p(sum(a > b for a, b in p), sum(a < b for a, b in p)) for p in pairs]
        false += any(level is not None for level in rejected_at(p_values, 0.05, 2))
    assert outside / runs <= 0.05
    assert false / runs <= 0.05
