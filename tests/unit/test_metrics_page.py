"""docs/metrics.md has the tables that the rows of the metrics make."""

from __future__ import annotations

import pytest

from labctl.base.metrics.table import METRICS
from tools.metrics_page import PAGE, page

TEXT = PAGE.read_text()


def test_the_tables_are_those_that_the_rows_make() -> None:
    assert page(TEXT) == TEXT, "run: make docs"


def test_every_key_has_its_place() -> None:
    forms = (
        keys for row in METRICS for there in (row.forms, *row.elsewhere.values()) for keys in there
    )
    for key in (key for keys in forms for key in keys.split()):
        assert f"`{key}`".replace("|", r"\|") in TEXT


def test_a_page_without_a_table_s_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="neighbour"):
        page(TEXT.replace("<!-- table: neighbour -->", ""))
