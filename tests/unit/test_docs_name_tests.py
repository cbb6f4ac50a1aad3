"""What a page of the docs calls a test is one: the file is there, and the function in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PAGES = ("faults.md", "promises.md", "proven.md", "security.md", "upgrading.md")
"""Pages of docs/ that name tests as proof."""

_NAMED = re.compile(r"`(tests/[\w/]+\.py|…)(?:::(\w+))?`")


def named(text: str) -> Iterator[tuple[str, str]]:
    """Yield file and function of each test that is named, "" where the file is meant; "…" is the
    file that was named last."""
    last = ""
    for file, function in _NAMED.findall(text):
        last = last if file == "…" else file
        yield last, function


@cache
def names_of(file: str) -> frozenset[str]:
    """Return the functions and classes of a file; none where there is no such file."""
    path = ROOT / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    )


def missing(text: str) -> list[str]:
    """Return each named test that is not in the repository."""
    return [
        f"{file}::{function}"
        for file, function in named(text)
        if not names_of(file) or (function and function not in names_of(file))
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert list(named(text))
    assert missing(text) == []


def test_a_test_that_is_gone_is_noticed() -> None:
    ours = "tests/unit/test_docs_name_tests.py"
    text = f"`{ours}`, `…::test_no_such_thing`, `…::named`, `tests/no.py`"
    assert missing(text) == [f"{ours}::test_no_such_thing", "tests/no.py::"]


def test_each_claim_of_what_is_proven_has_its_tests() -> None:
    text = (ROOT / "docs" / "proven.md").read_text()
    claims = set(re.findall(r"\]\(#([\w-]+)\)", text.partition("## The tests")[0]))
    paragraphs = dict(re.findall(r'<a id="([\w-]+)"></a>(.*)', text))
    assert claims == paragraphs.keys()
    for name, paragraph in paragraphs.items():
        assert list(named(paragraph)), name


def test_live_proof_under_kvm_is_a_test_that_make_test_kvm_runs() -> None:
    """A cell of that column may say "live" only if its paragraph names such a test."""
    text = (ROOT / "docs" / "proven.md").read_text()
    paragraphs = dict(re.findall(r'<a id="([\w-]+)"></a>(.*)', text))
    rows = re.findall(r"^\| \[[^]]*\]\(#([\w-]+)\) \|(.*)\|$", text, re.MULTILINE)
    assert rows
    for name, row in rows:
        cells = [cell.strip() for cell in row.split("|")]
        assert len(cells) == 6, name
        assert set(cells) <= {"live", "recorded", "made", "not yet", "–"}, name
        if cells[1] == "live":
            files = {file for file, _ in named(paragraphs[name])}
            assert any("mark.kvm" in (ROOT / file).read_text() for file in files), name
        assert "live" not in cells[2:], name
