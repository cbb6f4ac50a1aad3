from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.study.order import block_order, williams_rows

SIZES = st.integers(min_value=1, max_value=15)
SEEDS = st.integers(min_value=0, max_value=2**63)


def names(n: int) -> list[str]:
    return [f"tuning-{number}" for number in range(n)]


def orders(n: int, seed: int, blocks: range) -> list[tuple[str, ...]]:
    return [block_order(names(n), seed=seed, block=block, what="tunings") for block in blocks]


@pytest.mark.parametrize(("n", "rows"), [(2, 2), (4, 4), (8, 8), (3, 6), (13, 26)])
def test_an_even_design_has_n_rows_and_an_odd_one_twice_as_many(n: int, rows: int) -> None:
    assert len(williams_rows(n)) == rows


def test_the_design_for_four_is_the_one_of_the_paper_up_to_labels() -> None:
    assert williams_rows(4) == ((0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1))


@given(n=SIZES, seed=SEEDS, cycle=st.integers(min_value=0, max_value=3))
def test_every_item_comes_equally_often_at_every_position(n: int, seed: int, cycle: int) -> None:
    size = len(williams_rows(n))
    blocks = orders(n, seed, range(cycle * size + 1, (cycle + 1) * size + 1))
    seen = Counter((name, place) for order in blocks for place, name in enumerate(order))
    assert len(seen) == n * n
    assert set(seen.values()) == {size // n}


@given(n=SIZES, seed=SEEDS, cycle=st.integers(min_value=0, max_value=3))
def test_every_item_comes_equally_often_after_every_other(n: int, seed: int, cycle: int) -> None:
    size = len(williams_rows(n))
    blocks = orders(n, seed, range(cycle * size + 1, (cycle + 1) * size + 1))
    seen = Counter(pair for order in blocks for pair in pairwise(order))
    assert len(seen) == n * (n - 1)
    assert set(seen.values()) <= {size // n}


@given(n=SIZES, seed=SEEDS)
def test_positions_are_balanced_after_n_blocks_already(n: int, seed: int) -> None:
    blocks = orders(n, seed, range(1, n + 1))
    for place in range(n):
        assert {order[place] for order in blocks} == set(names(n))


@given(seed=SEEDS, block=st.integers(min_value=1, max_value=200))
def test_the_order_does_not_depend_on_how_the_items_are_listed(seed: int, block: int) -> None:
    forwards = block_order(names(5), seed=seed, block=block, what="tunings")
    backwards = block_order(reversed(names(5)), seed=seed, block=block, what="tunings")
    assert forwards == backwards


def test_seeds_streams_and_cycles_give_different_orders() -> None:
    first = orders(8, 1, range(1, 9))
    assert orders(8, 2, range(1, 9)) != first
    assert orders(8, 1, range(9, 17)) != first
    other = [block_order(names(8), seed=1, block=block, what="trials") for block in range(1, 9)]
    assert other != first


def test_an_order_is_the_same_on_every_machine_and_version() -> None:
    # A literal: a change here would reorder every recorded study, so it must be noticed.
    order = block_order(["a", "b", "c", "d"], seed=1, block=1, what="tunings")
    assert order == ("d", "c", "a", "b")


@pytest.mark.parametrize(
    ("items", "block", "said"),
    [(["a", "a"], 1, "duplicate"), (["a"], 0, "from 1"), ([], 1, "at least one")],
)
def test_an_order_that_cannot_be_is_refused(items: list[str], block: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        block_order(items, seed=1, block=block, what="tunings")
