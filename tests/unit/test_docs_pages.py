"""Every page of the docs opens with a sentence, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
GUIDES = [page for page in PAGES if page.parent.name == "docs"]
DECISIONS = [page for page in PAGES if page.parent.name == "decisions"]


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as forges make them, and those that it has itself."""
    text = page.read_text()
    heads = [
        re.sub(r"[`*]", "", head).strip().lower() for head in re.findall(r"^#+ (.*)$", text, re.M)
    ]
    own = set(re.findall(r'id="([^"]+)"', text))
    return own | {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads}


def broken(page: Path) -> list[str]:
    """Its links to files and headings of the checkout that aren't there."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if re.match(r"https?:", link):
            continue
        is_missing = not target.exists()
        if is_missing or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def first_lines(page: Path) -> tuple[str, str]:
    title, first, *_ = [line for line in page.read_text().splitlines() if line]
    return title, first


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_a_page_opens_with_a_sentence(page: Path) -> None:
    title, first = first_lines(page)
    assert title.startswith("# ")
    assert re.match(r"[\w`].*\.$", first), first


def test_a_decision_says_for_whom_it_is_and_each_says_it_of_itself() -> None:
    firsts = [first_lines(page)[1] for page in DECISIONS]
    assert [first for first in firsts if not first.startswith(("For ", "This page is for "))] == []
    assert len(set(firsts)) == len(firsts)


def test_the_files_that_recipes_name_are_there() -> None:
    """Below labctl/, or from the checkout's top."""
    text = (ROOT / "docs" / "developing.md").read_text()
    named = set(re.findall(r"`(?:labctl/)?([\w-]+/[\w/.-]+\.(?:py|j2|yaml|md))`", text))
    assert len(named) > 40
    missing = [n for n in named if not (ROOT / n).exists() and not (ROOT / "labctl" / n).exists()]
    assert missing == []
