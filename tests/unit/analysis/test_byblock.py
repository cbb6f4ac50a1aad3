"""Numbers by block: a mapping like any other, on one array."""

from __future__ import annotations

import numpy as np
import pytest

from labctl.analysis.effects.intervals import ByBlock

PLAIN = {7: 0.5, 2: -1.0, 30: 4.0}


def test_it_is_the_mapping_that_it_was_made_of_in_the_order_of_the_blocks() -> None:
    found = ByBlock.of(PLAIN)
    assert found == PLAIN
    assert list(found) == list(found.keys()) == [2, 7, 30]
    assert list(found.values()) == [-1.0, 0.5, 4.0]
    assert dict(found.items()) == PLAIN
    assert (len(found), 7 in found, 8 in found, found.get(31)) == (3, True, False, None)
    assert repr(found) == "{2: -1.0, 7: 0.5, 30: 4.0}"
    assert {2, 3} - found.keys() == {3}
    assert ByBlock.of(found) is found


@pytest.mark.parametrize("block", [1, 3, 31])
def test_a_block_that_is_not_there_is_a_key_error(block: int) -> None:
    found = ByBlock.of(PLAIN)
    with pytest.raises(KeyError):
        found[block]
    with pytest.raises(KeyError):
        found.at((2, block))


def test_some_of_the_blocks_are_an_array_and_all_of_them_the_same_one() -> None:
    found = ByBlock.of(PLAIN)
    assert found.at((2, 30)).tolist() == [-1.0, 4.0]
    assert found.at((2, 7, 30)) is found.array


def test_none_at_all_is_empty() -> None:
    empty = ByBlock((), np.zeros(0))
    assert empty == {}
    assert list(empty.values()) == []
