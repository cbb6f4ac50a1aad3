"""Docstrings begin with a verb, and notes below constants and fields with a noun or verb."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "labctl", ROOT / "tools")

QUESTIONS = frozenset({"what", "who", "whom", "whose", "which", "where", "when", "why", "how"})
PREPOSITIONS = frozenset(
    {"after", "as", "at", "before", "by", "for", "from", "in", "inside", "into", "of", "on", "to"}
    | {"that", "through", "under", "until", "whether", "with", "without"}
)
NO_VERBS = frozenset(
    {"a", "all", "an", "any", "both", "each", "every", "it", "its", "no", "none", "one", "only"}
    | {"something", "the", "their", "these", "they", "this", "those", "two"}
)


def first_word(text: str) -> str:
    return text.split()[0].rstrip(".,:;")


def is_fronted(text: str) -> bool:
    """Tell whether a text begins with a question word or a preposition."""
    return first_word(text).lower() in QUESTIONS | PREPOSITIONS


def begins_with_verb(text: str) -> bool:
    """Guess it: a capitalised word, no article or pronoun, and neither plural nor "Returns"."""
    word = first_word(text)
    is_word = word.isalpha() and word[0].isupper() and word[1:].islower()
    is_third_person = word.endswith("s") and not word.endswith("ss")
    return is_word and not is_third_person and word.lower() not in NO_VERBS and not is_fronted(text)


def documented(
    tree: ast.Module | ast.ClassDef, place: str, public: bool = True
) -> Iterator[tuple[str, bool, str]]:
    """Yield place, whether it is public, and docstring of all that has one in a module."""
    if text := ast.get_docstring(tree):
        yield place, public, text
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner, is_public = f"{place}:{node.lineno} {node.name}", public and node.name[0] != "_"
            if isinstance(node, ast.ClassDef):
                yield from documented(node, inner, is_public)
            elif text := ast.get_docstring(node):
                yield inner, is_public, text


def notes(tree: ast.AST, place: str) -> Iterator[tuple[str, str]]:
    """Yield place and text of each string below a constant or a field, those that a function sets
    included."""
    with_bodies = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        for above, below in pairwise(node.body if isinstance(node, with_bodies) else []):
            match above, below:
                case (
                    ast.Assign() | ast.AnnAssign(),
                    ast.Expr(value=ast.Constant(value=str() as text)),
                ):
                    yield f"{place}:{below.lineno}", text


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield the name and the syntax tree of each module of labctl and of its tools."""
    for path in sorted(path for folder in SOURCES for path in folder.rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def test_what_is_public_begins_its_docstring_with_a_verb() -> None:
    assert [
        f"{where}: {text.splitlines()[0]}"
        for name, tree in modules()
        for where, public, text in documented(tree, name)
        if public and name.startswith("labctl") and not begins_with_verb(text)
    ] == []


def test_no_docstring_begins_with_a_question_word_or_a_preposition() -> None:
    assert [
        f"{where}: {text.splitlines()[0]}"
        for name, tree in modules()
        for where, _, text in documented(tree, name)
        if is_fronted(text)
    ] == []


def test_notes_on_constants_and_fields_begin_with_a_noun_or_a_verb() -> None:
    assert [
        f"{where}: {text.splitlines()[0]}"
        for name, tree in modules()
        for where, text in notes(tree, name)
        if is_fronted(text)
    ] == []


@pytest.mark.parametrize(
    "text",
    [
        "The domain's XML.",
        "Every metric of a trial.",
        "Returns the domain's XML.",
        "CPU seconds of the vCPU threads.",
        "`where`: the file, for errors.",
        "What a host may refuse.",
        "Of the test: at most one run in a hundred.",
    ],
)
def test_what_is_no_verb_is_seen(text: str) -> None:
    assert not begins_with_verb(text)


@pytest.mark.parametrize("text", ["Return the XML.", "Process one block.", "Pass it on."])
def test_a_verb_is_seen(text: str) -> None:
    assert begins_with_verb(text)
