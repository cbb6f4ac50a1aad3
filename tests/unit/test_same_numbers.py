"""The comparison of two versions' reports finds what may not change, and lets the rest be."""

from __future__ import annotations

from typing import Any

import pytest

from tools.same_numbers import RENAMED, differences

REPORT = {"schema": 1, "verdicts": [{"code": "improves", "ratio": 1.5, "low": None}]}


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"code": "improves", "ratio": 1.4, "low": None}, "verdicts[0].ratio is 1.4 for 1.5"),
        ({"code": "worsens", "ratio": 1.5, "low": None}, "verdicts[0].code is 'worsens'"),
        ({"code": "improves", "ratio": 1.5, "low": 0}, "verdicts[0].low is 0 for None"),
        ({"code": "improves", "ratio": 1.5}, "verdicts[0].low is gone"),
        ({"ratio": 1.5, "code": "improves", "low": None}, "verdicts[0]: its keys have another"),
        ({"code": "improves", "ratio": True, "low": None}, "verdicts[0].ratio is True for 1.5"),
    ],
)
def test_a_changed_number_code_order_or_missing_value_is_a_difference(
    changed: dict[str, Any], place: str
) -> None:
    ((found, added),) = differences(REPORT, {"schema": 2, "verdicts": [changed]})
    assert found.startswith(place)
    assert not added


def test_a_lost_row_is_a_difference_and_a_new_key_or_sentence_is_an_addition() -> None:
    assert list(differences([1, 2], [1])) == [(" has 1 items for 2", False)]
    assert list(differences({"a": 1}, {"a": 1, "b": 2})) == [("b is new", True)]
    assert list(differences(["One word."], ["Two words.", "More."])) == [
        (" has 2 items for 1", False)
    ]
    assert list(differences(["One word."], ["Two words.", "Three words."])) == [
        (" has 2 items for 1", True)
    ]


def test_sentences_may_change_and_keys_that_are_listed_may_be_renamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(RENAMED, "bill", "side_costs")
    first = {"bill": 3, "why": "the host was busy"}
    assert list(differences(first, {"side_costs": 3, "why": "others ran on the host"})) == []
