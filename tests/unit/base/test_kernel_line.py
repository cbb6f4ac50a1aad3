from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.kernel import booted_with, in_full, is_booted_with


def test_words_that_want_cpus_get_the_guests() -> None:
    assert in_full(["mitigations=off", "isolcpus", "nohz_full"], frozenset({2, 3, 5})) == [
        "mitigations=off",
        "isolcpus=managed_irq,domain,2-3,5",
        "nohz_full=2-3,5",
        "rcu_nocbs=2-3,5",
    ]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("isolcpus", True),
        ("isolcpus=domain,2", True),
        ("isolcpus=2", False),
        ("isol", False),
        ("quiet", True),
        ("mitigations=off", False),
    ],
)
def test_a_word_is_found_with_any_value_and_a_value_only_as_it_stands(
    word: str, found: bool
) -> None:
    assert is_booted_with(word, ["ro", "quiet", "isolcpus=domain,2", "mitigations=auto"]) is found


def test_a_command_line_that_nobody_tells_has_no_words(tmp_path: Path) -> None:
    (tmp_path / "cmdline").write_text("ro quiet\n")
    assert booted_with(tmp_path / "cmdline") == ["ro", "quiet"]
    assert booted_with(tmp_path / "none") == []
