"""How many guests are tried next, until the number is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.run.planning.density import Search, bracket, next_count


def tried(fits: int, most: int, search: Search) -> dict[int, bool]:
    held: dict[int, bool] = {}
    while (count := next_count(held, most, search)) is not None:
        assert count not in held
        assert 1 <= count <= most
        held[count] = count <= fits
    return held


def test_up_tries_one_more_at_a_time() -> None:
    assert list(tried(3, 20, Search.UP)) == [1, 2, 3, 4]
    assert list(tried(0, 20, Search.UP)) == [1]
    assert list(tried(9, 3, Search.UP)) == [1, 2, 3]


def test_bisect_doubles_and_then_halves() -> None:
    assert list(tried(5, 20, Search.BISECT)) == [1, 2, 4, 8, 6, 5]
    assert list(tried(0, 20, Search.BISECT)) == [1]
    assert list(tried(20, 20, Search.BISECT)) == [1, 2, 4, 8, 16, 20]


@given(st.integers(0, 200), st.integers(1, 200), st.sampled_from(Search))
def test_either_search_finds_the_number(fits: int, most: int, search: Search) -> None:
    held = tried(fits, most, search)
    fitting, broken = bracket(held)
    assert fitting == min(fits, most)
    assert broken == (fits + 1 if fits < most else None)


@given(st.integers(2, 200))
def test_bisect_takes_about_twice_the_logarithm(fits: int) -> None:
    assert len(tried(fits, 1000, Search.BISECT)) <= 2 * math.log2(fits) + 3


@pytest.mark.parametrize("search", Search)
def test_a_step_that_broke_below_one_that_held_ends_at_the_first_break(search: Search) -> None:
    """Nothing is tried above a break: what held there by luck counts for nothing."""
    assert bracket({1: True, 2: False, 4: True}) == (1, 2)
    assert next_count({1: True, 2: False, 4: True}, 20, search) is None
