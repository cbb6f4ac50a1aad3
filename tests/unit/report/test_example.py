"""Recorded runs in `results/`: the page of each is the one that is made of it now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labctl.analysis.answer import json
from labctl.analysis.judge import judge
from labctl.report.page.report_page import page
from labctl.store.run_places import find_run

PAGES = sorted((Path(__file__).parents[3] / "results").glob("example*.html"))


def _without_digits(text: str) -> list[str]:
    """Lines; the last digits of a sum are the CPU's that added up."""
    return re.sub(r"\d+", "0", text).splitlines()


@pytest.mark.parametrize("shown", PAGES, ids=lambda path: path.stem)
def test_an_examples_page_is_as_it_is_made_now(shown: Path, regenerate_golden: bool) -> None:
    found = find_run(shown.parent, shown.stem)
    run = found.load()
    with found.unpacked("xml") as folder:
        text = page(run, judge(run), folder.path)
    if regenerate_golden:
        shown.write_text(text)
    assert _without_digits(text) == _without_digits(shown.read_text()), (
        "run pytest with --regenerate-golden and read the difference"
    )


def test_the_answer_that_lies_in_the_example_is_the_one_that_is_worked_out_now() -> None:
    found = find_run(PAGES[0].parent, "example")
    assert found.archive is not None
    lies_there, _ = found.archive.json_and_digest(json.NAME)
    now = json.answer_json(judge(found.load()).decision)
    # The run has its own name there and its file's here, and commands have it in them.
    assert lies_there.keys() == now.keys()
    for key in now.keys() - {"run", "sure", "next", "tunings"}:
        assert _without_digits(str(lies_there[key])) == _without_digits(str(now[key]))
    for then, one in zip(lies_there["tunings"], now["tunings"], strict=True):
        for key in ("grade", "better", "worse"):
            assert _without_digits(str(then[key])) == _without_digits(str(one[key]))
