"""A process's huge pages, as the kernel shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.base.tuning import Memory
from labctl.domain.memory import huge_page_kib, memory_problems

SMAPS = Path(__file__).parent / "fixtures" / "smaps-linux-6.18-one-of-two-huge-pages.txt"


def test_only_pages_that_a_process_really_has_are_counted() -> None:
    assert huge_page_kib(SMAPS.read_text()) == {2048: 2048}


@pytest.mark.parametrize("text", ["", "garbage\n", "Private_Hugetlb: much\n"])
def test_a_text_without_them_has_none(text: str) -> None:
    assert huge_page_kib(text) == {}


def test_memory_that_is_not_in_huge_pages_is_a_problem() -> None:
    assert memory_problems(Memory(hugepages="2M"), 64, os.getpid()) == [
        "0 MiB of the guest's 64 MiB are in huge pages of 2M, asked was all of it"
    ]
    assert memory_problems(Memory(), 64, os.getpid()) == []


def test_a_qemu_that_has_ended_has_no_memory_to_read() -> None:
    with pytest.raises(BrokenError, match="smaps can't be read"):
        memory_problems(Memory(hugepages="2M"), 64, 2**22 + 1)
