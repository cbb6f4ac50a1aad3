"""docs/security.md claims nothing without a test: each one that it names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs/security.md"

_NAMED = re.compile(r"`(tests/[\w/]+\.py|…)(?:::(\w+))?`")


def named() -> Iterator[tuple[str, str | None]]:
    """File and test of each that the page names; "…" is the file that was named last."""
    file = ""
    for found in _NAMED.finditer(PAGE.read_text(encoding="utf-8")):
        file = found.group(1) if found.group(1) != "…" else file
        yield file, found.group(2)


@cache
def _tests_of(file: str) -> frozenset[str]:
    tree = ast.parse((CHECKOUT / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    )


@pytest.mark.parametrize(("file", "test"), sorted(set(named()), key=str))
def test_every_test_that_the_page_names_exists(file: str, test: str | None) -> None:
    assert (CHECKOUT / file).is_file()
    assert test is None or test in _tests_of(file)


def test_every_row_about_a_threat_names_a_test() -> None:
    """All tables but that of limits, which names where each is."""
    text = PAGE.read_text(encoding="utf-8")
    tables = re.findall(r"(?m)^\| ([^|]+?) \|.*\n\|[-|]+\n((?:\|.*\n)+)", text)
    assert len(tables) >= 8
    for title, rows in tables:
        if title != "of":
            for row in rows.splitlines():
                assert "`tests/" in row or "`…::" in row or "the same" in row, row
