"""The tables of docs/ are those that the rows of the code make."""

from __future__ import annotations

import pytest

from labctl.base.metrics.table import METRICS
from tools.pages import PAGES, ROOT, page


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_are_those_that_the_rows_make(name: str) -> None:
    text = (ROOT / name).read_text()
    assert page(name, text) == text, "run: make docs"


def test_every_metric_s_key_has_its_place() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    forms = (
        keys for row in METRICS for there in (row.forms, *row.elsewhere.values()) for keys in there
    )
    for key in (key for keys in forms for key in keys.split()):
        assert f"`{key}`".replace("|", r"\|") in text


def test_a_page_without_a_table_s_mark_is_refused() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    with pytest.raises(ValueError, match="neighbour"):
        page("docs/metrics.md", text.replace("<!-- table: neighbour -->", ""))
