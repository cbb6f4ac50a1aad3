"""The words of a page that explain themselves, and the glossary that they come from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labctl.analysis.judge import judge
from labctl.base.wording import glossary
from labctl.report.page.report_page import page
from labctl.report.page.terms import IN_SENTENCES, Terms
from tests.unit.synthetic import synthetic_run

MARKED = re.compile(r'<span class="term" tabindex="0" aria-describedby="(.+?)" data-means="(.+?)">')
TEMPLATES = Path(__file__).parents[3] / "templates" / "report"


def test_each_word_that_a_page_marks_is_in_the_glossary() -> None:
    named = [
        other or text
        for file in TEMPLATES.rglob("*.j2")
        for text, other in re.findall(r'terms\.term\("([^"]+)"(?:, "([^"]+)")?\)', file.read_text())
    ]
    assert len(named) > 15
    assert [word for word in (*named, *IN_SENTENCES) if not glossary().find(word)] == []


def test_a_word_without_an_entry_is_no_page() -> None:
    with pytest.raises(KeyError, match="frobnication"):
        Terms().term("frobnication")


def test_what_a_word_means_is_on_the_page_it_points_to(tmp_path: Path) -> None:
    run = synthetic_run(blocks=10)
    text = page(run, judge(run), tmp_path)
    marked = MARKED.findall(text)
    assert len({anchor for anchor, _ in marked}) > 15
    for anchor, _ in marked:
        assert text.count(f'id="{anchor}"') == 1


def test_entries_link_only_to_entries_of_the_page(tmp_path: Path) -> None:
    run = synthetic_run(blocks=10)
    text = page(run, judge(run), tmp_path)
    targets = set(re.findall(r'href="#([^"]+)"', text))
    assert any(target.startswith("term-") for target in targets)
    assert {target for target in targets if f'id="{target}"' not in text} == set()


def test_a_word_is_marked_once_in_a_part_and_again_in_the_next() -> None:
    terms = Terms()
    assert terms.explained("The A/A control, and the A/A control").count("<span") == 1
    assert terms.explained("The A/A control").count("<span") == 0
    terms.begin()
    assert terms.explained("The A/A control's interval").count("<span") == 2


@pytest.mark.parametrize(
    "text",
    ["'control'", "host_cpu{thread=neighbour}", "native+pinned", "sub-block", "uncontrolled"],
)
def test_a_name_is_no_word(text: str) -> None:
    assert "<span" not in Terms().explained(text)


def test_what_a_guest_says_stays_text() -> None:
    shown = Terms().explained('<script>alert("control")</script>\x1b[2J')
    assert "<script>" not in shown
    assert "\x1b" not in shown


def test_a_longer_term_wins_over_those_inside_of_it() -> None:
    (found,) = MARKED.findall(
        Terms().explained("the minimum detectable effect and the native twin")[:400]
    )[:1]
    assert found[0] == "term-minimum-detectable-effect"
    terms = Terms()
    terms.explained("its native twin")
    assert [term.name for term in terms.used] == ["native twin"]
