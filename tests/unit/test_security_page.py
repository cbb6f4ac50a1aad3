"""docs/security.md claims nothing without a test. That each one that it names exists is held by
`test_docs_name_tests.py`."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs/security.md"


def test_every_row_about_a_threat_names_a_test() -> None:
    """In all tables with such a column."""
    text = PAGE.read_text(encoding="utf-8")
    tables = re.findall(r"(?m)^\| .* \| test \|\n\|[-|]+\n((?:\|.*\n)+)", text)
    assert len(tables) >= 8
    for rows in tables:
        for row in rows.splitlines():
            assert "`tests/" in row or "`…::" in row or "the same" in row, row
