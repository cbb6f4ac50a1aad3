from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from labctl.base.yamltext import (
    MOST_BYTES,
    MOST_DEEP,
    MOST_DIGITS,
    MOST_ENTRIES,
    MOST_VALUES,
    YamlError,
    YamlList,
    YamlMapping,
    parse_yaml,
)

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Some 300 bytes that stand for 400 million values."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: 1", {"a": 1}),
        ("[1, -2, +3, 0o17, 0x1f, 0b11, 017, 1_000]", [1, -2, 3, 15, 31, 3, 17, 1000]),
        ("[1.5, -.5, 1e3, 1.e-2, .inf]", [1.5, -0.5, 1e3, 0.01, float("inf")]),
        ("[true, False, yes, off, 'true']", [True, False, "yes", "off", "true"]),
        ("[~, null, '', \"1\"]", [None, None, "", "1"]),
        ("[2-3, 0-3, 1.2.3, 1:30, -, .]", ["2-3", "0-3", "1.2.3", "1:30", "-", "."]),
        ("[!!str 1, !!int '2', !!float 3]", ["1", 2, 3.0]),
        ("[!!null '', ! 4, !!bool true, '<<', =]", [None, "4", True, "<<", "="]),
        ("2026-11-22", date(2026, 11, 22)),
        ("a: |\n  x\n  y\nb: >-\n  x\n  y\n", {"a": "x\ny\n", "b": "x y"}),
        ("a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}\n", {"a": {"b": 1, "c": 2}, "d": {"c": 3, "b": 1}}),
        ("a: &x {b: 1}\nd: {<<: [*x, {b: 2, e: 3}]}\n", {"a": {"b": 1}, "d": {"b": 1, "e": 3}}),
        ("{1: a, -: b}", {1: "a", "-": "b"}),
    ],
)
def test_words_and_numbers_mean_what_yaml_1_2_says(text: str, value: Any) -> None:
    found = parse_yaml(text)
    assert found == value
    assert repr(found) == repr(value)  # 1 equals True and 1.0


def test_every_key_and_entry_knows_its_line() -> None:
    found = parse_yaml("a:\n  b: [x,\n    y]\n  c: &d\n    e: 1\nf:\n  <<: *d\n")
    assert isinstance(found, YamlMapping)
    assert found.lines == {"a": 1, "f": 6}
    assert found["a"].lines == {"b": 2, "c": 4}
    assert isinstance(found["a"]["b"], YamlList)
    assert found["a"]["b"].lines == [2, 3]
    assert found["f"].lines == {"e": 5}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: 2026-02-30\n", 2, "YAML reads '2026-02-30' as a date, and no such date exists"),
        ("a: 2026-11-22T25:00:00Z", 1, "no such date exists"),
        ("a: 1\nb: !!float zz\n", 2, "'zz' is not a number"),
        ("a: !!int 1.5", 1, "'1.5' is not a whole number"),
        ("a: 0x_", 1, "'0x_' is not a whole number"),
        ("a: !!bool 3", 1, "'3' is neither true nor false"),
        ("a: !!timestamp now", 1, "YAML reads 'now' as a date"),
        ("a: !foo 1", 1, "the tag '!foo' is of no type"),
        ("a: !!set {b, c}", 1, "the tag '!!set' is of no type"),
        ("a: !!python/object/apply:os.getpid []", 1, "is of no type"),
        ("a: 1\nb: 1\na: 2\n", 3, "the key 'a' appears twice"),
        ("a: *b", 1, "no value before it is marked '&b'"),
        ("a: &a [*a]", 1, "no value before it is marked '&a'"),
        ("[a]: b", 1, "a key is a word or a number"),
        ("a: {<<: b}", 1, "'<<' merges mappings"),
        ("a: 1\n---\nb: 2\n", 2, "a second document begins"),
        ("a: [\n", 2, "not valid YAML"),
        ("a: b: c", 1, "not valid YAML"),
        ("a: \0", None, "not valid YAML"),
        ("\ud800", None, "not valid YAML"),
        ("%TAG ! x\n--- a", 1, "no %TAG is known here"),
    ],
)
def test_a_mistake_has_its_line(text: str, line: int | None, problem: str) -> None:
    with pytest.raises(YamlError) as caught:
        parse_yaml(text)
    assert problem in caught.value.problem
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (BOMB, f"more than {MOST_VALUES} values"),
        ("[" * 1500, f"deeper than {MOST_DEEP} levels"),
        ("{a: " * 1500, f"deeper than {MOST_DEEP} levels"),
        ("- " * 1500, f"deeper than {MOST_DEEP} levels"),
        ("? " * 1500, f"deeper than {MOST_DEEP} levels"),
        # 20 levels in each other, twice.
        (f"a: &a {'[' * 20}{']' * 20}\nb: {'[' * 20}*a{']' * 20}", f"deeper than {MOST_DEEP}"),
        ("- x\n" * (MOST_ENTRIES + 1), f"more than {MOST_ENTRIES} entries"),
        ("".join(f"k{n}: x\n" for n in range(MOST_ENTRIES + 1)), f"more than {MOST_ENTRIES}"),
        ("9" * (MOST_DIGITS + 1), f"more than {MOST_DIGITS} digits"),
        (f"1.{'9' * MOST_DIGITS}", f"more than {MOST_DIGITS} digits"),
        ("#" * (MOST_BYTES + 1), "larger than 1 MiB"),
        ("x" * (64 << 20), "larger than 1 MiB"),
    ],
    ids=lambda value: value[:20],
)
def test_a_limit_is_named_by_its_number(text: str, limit: str) -> None:
    with pytest.raises(YamlError, match=limit):
        parse_yaml(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * MOST_DEEP + "]" * MOST_DEEP,
        "- x\n" * MOST_ENTRIES,
        "9" * MOST_DIGITS,
        "x" * MOST_BYTES,
        f"a: &a [{'x,' * 9000}]\nb: [*a, *a, *a]\n",
    ],
    ids=lambda value: value[:20],
)
def test_what_is_within_the_limits_is_read(text: str) -> None:
    parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("a: 'x\nb: 2\n", 1, "a quote is opened here and never closed"),
        ("a: 1\nb: [1,\n  2\nc: 3\n", 2, "its ']' is missing"),
        ("a: 1\nb: {c: 1\nd: 2\n", 2, "its '}' is missing"),
        ("a:\n- b\n  c: d\n", 3, "a second ': ' in one value"),
        ("a:\n\t- x\n", 2, "a tab indents the line"),
        ("a: x\nb\nc: d\n", 2, "a line without 'key: '"),
        ("a:\n  - x\n - y\n", 3, "isn't indented as the keys above it"),
        ("- a\nb: c\n", 2, "isn't indented as the list above it"),
        ("a: @x\n", 1, "put it in quotes"),
        ("a: - b\n", 1, "on a line of its own"),
        ('a: "\\d"\n', 1, "use single quotes"),
    ],
)
def test_a_mistake_is_named_with_its_likely_cause(text: str, line: int, cause: str) -> None:
    with pytest.raises(YamlError) as caught:
        parse_yaml(text)
    assert cause in caught.value.problem
    assert caught.value.line == line
