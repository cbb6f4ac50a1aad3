"""Pages for one guest: the pool grows by what is missing, and shrinks again."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.domain.readback import Pages
from labctl.host.settings.journal import Journal
from labctl.run.resources.huge_pages import free_pages, huge_pages

MIB = 1024 * 1024


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


def pool(
    root: Path, size: str, *, total: int, free: int, reserved: int = 0, node: int | None = None
) -> Path:
    place = "kernel/mm" if node is None else f"devices/system/node/node{node}"
    made = root / place / f"hugepages/hugepages-{size}"
    made.mkdir(parents=True)
    for name, value in (("nr", total), ("free", free), ("resv", reserved)):
        (made / f"{name}_hugepages").write_text(f"{value}\n")
    return made / "nr_hugepages"


def test_what_is_missing_is_added_and_taken_away_again(tmp_path: Path, journal: Journal) -> None:
    number = pool(tmp_path, "2048kB", total=10, free=6, reserved=4)
    with huge_pages([Pages("2M", None, 100 * MIB)], journal, tmp_path):
        assert number.read_text().strip() == "58"  # of 50 needed 2 are free, of 10 in all
        assert [entry.old for entry in journal.pending()] == ["10"]
    assert number.read_text().strip() == "10"
    assert journal.pending() == []


def test_pages_that_are_free_are_enough(tmp_path: Path, journal: Journal) -> None:
    number = pool(tmp_path, "1048576kB", total=1, free=1)
    with huge_pages([Pages("1G", None, 1000 * MIB)], journal, tmp_path):
        assert number.read_text().strip() == "1"
        assert journal.pending() == []


def test_a_guest_without_them_leaves_the_pool_alone(tmp_path: Path, journal: Journal) -> None:
    with huge_pages([], journal, tmp_path):
        assert journal.pending() == []


def test_a_kernel_without_that_size_is_named(tmp_path: Path, journal: Journal) -> None:
    with (
        pytest.raises(BrokenError, match="no 50 free huge pages of 2M") as caught,
        huge_pages([Pages("2M", None, 100 * MIB)], journal, tmp_path),
    ):
        pass
    assert "hugepagesz=2M hugepages=50" in str(caught.value.hint)


def test_what_goes_wrong_while_the_guest_runs_is_not_taken_for_a_lack_of_pages(
    tmp_path: Path, journal: Journal
) -> None:
    number = pool(tmp_path, "2048kB", total=0, free=0)
    with (
        pytest.raises(OSError, match="of the guest"),
        huge_pages([Pages("2M", None, 4 * MIB)], journal, tmp_path),
    ):
        raise OSError("of the guest")
    assert number.read_text().strip() == "0"


def test_each_node_gives_what_the_plan_puts_there(tmp_path: Path, journal: Journal) -> None:
    pool(tmp_path, "2048kB", total=7, free=7)
    first = pool(tmp_path, "2048kB", total=7, free=7, node=0)
    second = pool(tmp_path, "2048kB", total=0, free=0, node=1)
    asked = [Pages("2M", 0, 10 * MIB), Pages("2M", 1, 5 * MIB)]
    with huge_pages(asked, journal, tmp_path):
        assert first.read_text().strip() == "7"
        assert second.read_text().strip() == "3"
    assert second.read_text().strip() == "0"


def test_a_node_that_has_none_is_named(tmp_path: Path, journal: Journal) -> None:
    pool(tmp_path, "2048kB", total=50, free=50)
    with (
        pytest.raises(BrokenError, match="no 50 free huge pages of 2M on NUMA node 1"),
        huge_pages([Pages("2M", 1, 100 * MIB)], journal, tmp_path),
    ):
        pass


def test_pages_that_others_reserved_are_not_free(tmp_path: Path) -> None:
    pool(tmp_path, "2048kB", total=10, free=6, reserved=4)
    assert free_pages("2M", root=tmp_path) == 2
    assert free_pages("1G", root=tmp_path) is None
