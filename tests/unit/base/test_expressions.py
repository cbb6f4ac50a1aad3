"""What users write between `{{ }}` is an expression, and nothing but."""

from __future__ import annotations

import pytest

from labctl.base.errors import UsageError
from labctl.base.templates import evaluate, fill_in, floor_pow2, names_in


def test_a_text_is_filled_in_with_values_and_filters():
    assert fill_in("--size={{ (set // n) | floor_pow2 }}k", {"set": 300, "n": 2}, "x") == (
        "--size=128k"
    )
    assert fill_in("no braces", {}, "x") == "no braces"


def test_an_expression_has_a_value():
    assert evaluate("engine == 'psync' and depth > 1", {"engine": "psync", "depth": 2}, "x") is True
    assert evaluate("[a, 5] | min", {"a": 7}, "x") == 5


@pytest.mark.parametrize(
    "expression",
    [
        "missing",
        "lipsum()",
        "'a' * 10**9",
        "a.__class__",
        "range(3)",
        "2 ** 99999999",
        "1 // 0",
        "a +",
    ],
)
def test_what_has_no_value_or_would_make_too_much_is_an_error_that_names_its_place(expression):
    with pytest.raises(UsageError, match="w.yaml: item 3"):
        evaluate(expression, {"a": 1}, "w.yaml: item 3")


def test_statements_are_text():
    assert fill_in("{% for x in y %}", {}, "x") == "{% for x in y %}"


def test_names_are_those_that_a_text_uses():
    assert names_in("{{ a }} {{ b | int }}") == {"a", "b"}
    assert names_in("a == 'x' and c", bare=True) == {"a", "c"}


def test_a_power_of_two_is_never_above_the_number():
    assert [floor_pow2(number) for number in (0, 1, 3, 64, 100.5)] == [1, 1, 2, 64, 64]
