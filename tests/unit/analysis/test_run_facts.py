"""Facts of hosts as people read them."""

from __future__ import annotations

from typing import Any

import pytest

from labctl.analysis.compare.two_runs import fact_words


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        (None, None),
        ("", "none"),
        ([], "none"),
        (["kvm", "kvm_intel"], "kvm kvm_intel"),
        ({"cores": 4, "nodes": 2}, "4 cores, 2 nodes"),
        ({"sockets": 1, "mode": "always"}, "1 sockets, mode always"),
        ({"unavailable": "no such file"}, "not available (no such file)"),
        (True, "yes"),
        ({"nested": False}, "nested no"),
    ],
)
def test_a_fact_is_told_in_words(fact: Any, words: str | None) -> None:
    assert fact_words(fact) == words
