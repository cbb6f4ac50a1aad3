"""What a trace that doesn't tell of all wake-ups lets one say of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.base.units import bears_unseen
from labctl.trace.coverage import QUANTILE, Coverage, Own, bounds_of, is_narrow

WHOLE = Coverage(seen=1000, inferred=0, unseen=0, unseen_ns=0, worst_ns=90_000, until_ns=95_000)


def test_one_unseen_in_two_hundred_is_the_most_that_a_95th_percentile_bears() -> None:
    assert bears_unseen(0.95, 199, 1)
    assert bears_unseen(0.95, 1990, 10)
    assert not bears_unseen(0.95, 1989, 11)
    assert not bears_unseen(0.95, 2453, 3534)
    assert not bears_unseen(0.95, 0, 1)


def test_the_percentile_of_those_seen_is_half_a_point_off_at_most() -> None:
    """Of so few unseen ones, wherever they are."""
    seen = np.arange(1, 1991)
    told = np.quantile(seen, QUANTILE, method="inverted_cdf")
    for unseen in (np.zeros(10), np.full(10, 1e9)):
        ranks = np.sort(np.concatenate((seen, unseen)))
        assert 0.945 <= np.searchsorted(ranks, told, "right") / len(ranks) <= 0.9551


def test_the_coverage_is_never_said_to_be_whole_where_one_is_missing() -> None:
    assert WHOLE.text == "1,000 of 1,000 wake-ups"
    assert replace(WHOLE, seen=99_999, unseen=1).text == "99,999 of 100,000 wake-ups (99.9 %)"
    assert replace(WHOLE, seen=2453, unseen=3534).text == "2,453 of 5,987 wake-ups (40.9 %)"
    assert "2,453 of 5,987" in replace(WHOLE, seen=2453, unseen=3534).why_unknown
    assert WHOLE.why_unknown == ""


@pytest.mark.parametrize(("worst_us", "lacks"), [(90, False), (95, False), (96, True)])
def test_a_latency_that_no_wake_up_can_have_given_is_told_from_one_that_may(
    worst_us: int, lacks: bool
) -> None:
    """Programs look at the clock after they came, and cut to whole microseconds."""
    own = Own(program="cyclictest", wakeups=1000, worst_ns=worst_us * 1000)
    assert replace(WHOLE, own=own).lacks_worst is lacks


def test_with_all_of_them_seen_a_share_is_what_it_is() -> None:
    latency, part = np.array([10, 30, 60]), np.array([10, 0, 40])
    assert bounds_of(latency, part, np.zeros(3, int), replace(WHOLE, seen=50)) == (0.5, 0.5)


def test_what_is_unsure_may_be_the_parts() -> None:
    latency, part, unsure = np.array([40, 60]), np.array([10, 20]), np.array([5, 0])
    found = bounds_of(latency, part, unsure, replace(WHOLE, seen=30))
    assert found == (0.3, pytest.approx(0.35))


def test_a_share_is_narrow_up_to_a_tenth() -> None:
    assert is_narrow((0.3, 0.4))
    assert not is_narrow((0.3, 0.41))


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.integers(1, 10**6), min_size=40, max_size=300, unique=True),
    st.sets(st.integers(0, 299), max_size=40),
)
def test_the_true_share_lies_between_the_bounds_whatever_was_not_seen(
    latencies: list[int], hidden: set[int]
) -> None:
    rng = np.random.default_rng(len(latencies) + 1000 * len(hidden))
    latency = np.array(latencies)
    part = np.floor(latency * rng.random(len(latency))).astype(np.int64)
    unsure = np.floor((latency - part) * rng.random(len(latency))).astype(np.int64)
    true_part = part + np.floor(unsure * rng.random(len(latency))).astype(np.int64)
    is_seen = np.array([at not in hidden for at in range(len(latency))])
    if not is_seen.any():
        return
    late = latency >= np.quantile(latency, QUANTILE, method="inverted_cdf")
    truth = true_part[late].sum() / latency[late].sum()
    told = latency[is_seen]
    row = np.flatnonzero(is_seen)[told >= np.quantile(told, QUANTILE, method="inverted_cdf")]
    coverage = replace(
        WHOLE,
        seen=int(is_seen.sum()),
        unseen=int((~is_seen).sum()),
        unseen_ns=int(latency[~is_seen].sum()),
    )
    least, most = bounds_of(latency[row], part[row], unsure[row], coverage)
    assert least - 1e-9 <= truth <= most + 1e-9
