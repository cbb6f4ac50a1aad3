from __future__ import annotations

import json
import math
import unicodedata
from dataclasses import dataclass

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.base import json as jsontext
from labctl.base.json import MOST_DEEP, fields_of, parse_json, without_controls

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@dataclass(frozen=True, slots=True)
class _Inner:
    left: float | None


@dataclass(frozen=True, slots=True)
class _Outer:
    zeta: str
    alpha: tuple[_Inner, ...]
    note: str = ""


def test_a_record_s_fields_keep_their_order_and_lack_those_that_are_left_out() -> None:
    record = _Outer("z", (_Inner(None),), "n")
    found = fields_of(record, without=("note",))
    assert json.dumps(found) == '{"zeta": "z", "alpha": [{"left": null}]}'


@given(VALUES)
def test_what_was_written_is_read_back(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


def test_a_number_that_is_none_is_taken_as_some_tools_write_it() -> None:
    assert math.isnan(parse_json('{"a": NaN}')["a"])


@pytest.mark.parametrize("text", ["", "{", "nothing", '{"a": 1', b"\xff", "[1] 2", "\ud800"])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # whatever it says
        parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1500,
        "[" * 100_000,
        '{"a":' * 1500 + "1" + "}" * 1500,
        "[" * (MOST_DEEP + 1) + "]" * (MOST_DEEP + 1),
        '["]",' * 100 + "1" + "]" * 100,
        '["\\"]",' * 100 + "1" + "]" * 100,
        '["\\\\",' * 100 + "1" + "]" * 100,
    ],
    ids=lambda value: value[:10],
)
def test_more_levels_than_the_limit_are_refused_by_its_number(text: str) -> None:
    with pytest.raises(ValueError, match=f"deeper than {MOST_DEEP} levels"):
        parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * MOST_DEEP + "]" * MOST_DEEP,
        f"[{','.join(['[1]'] * 1000)}]",
        json.dumps(["[" * 1000, '"[[' * 100, "\\"]),
    ],
)
def test_brackets_in_words_and_beside_each_other_are_no_levels(text: str) -> None:
    assert parse_json(text) == json.loads(text)


@given(st.text('[]{}",a'))
def test_brackets_are_those_outside_of_strings(text: str) -> None:
    outside = "".join(text.split('"')[::2])
    found = jsontext._brackets(text.encode()).decode()
    assert found == "".join(char for char in outside if char in "[]{}")


def test_a_text_beyond_the_sizes_is_refused_by_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jsontext, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(jsontext, "MOST_GROUPS", 1000)
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        parse_json(" " * ((1 << 20) + 1))
    with pytest.raises(ValueError, match="more than 1000 lists and objects"):
        parse_json(f"[{','.join(['[]'] * 1000)}]")


@given(st.text())
def test_no_control_character_of_a_text_stands_in_json_as_itself(text: str) -> None:
    data = without_controls(orjson.dumps([text, "\x7f\x80\x9b31m\x9fä"]))
    assert parse_json(data) == [text, "\x7f\x80\x9b31m\x9fä"]
    assert not any(unicodedata.category(char) == "Cc" for char in data.decode())
