"""The recorded run that the README shows: its page is the one that is made of it now."""

from __future__ import annotations

import re
from pathlib import Path

from labctl.analysis.judge import judge
from labctl.report.page.report_page import page
from labctl.store.run_folder import RunFolder

EXAMPLE = Path(__file__).parents[3] / "results/example.tar.xz"


def _without_digits(text: str) -> list[str]:
    """Lines; the last digits of a sum are the CPU's that added up."""
    return re.sub(r"\d+", "0", text).splitlines()


def test_the_examples_page_is_as_it_is_made_now(regenerate_golden: bool) -> None:
    with RunFolder.find(EXAMPLE.parent, str(EXAMPLE)).unpacked("xml") as folder:
        run = RunFolder.find(EXAMPLE.parent, str(EXAMPLE)).load()
        text = page(run, judge(run), folder.path)
    shown = EXAMPLE.with_name("example.html")
    if regenerate_golden:
        shown.write_text(text)
    assert _without_digits(text) == _without_digits(shown.read_text()), (
        "run pytest with --regenerate-golden and read the difference"
    )
