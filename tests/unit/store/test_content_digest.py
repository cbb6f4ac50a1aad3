"""The one digest of a run: the same of its folder and of its archive."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from labctl.store.archive import RunArchive, archive_digest, content_digest, folder_digest, pack
from tests.unit.example import ARCHIVE, EXAMPLE


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "run"))


def test_a_folder_and_its_archive_have_one_digest() -> None:
    assert folder_digest(EXAMPLE) == archive_digest(RunArchive(ARCHIVE))


def test_it_is_what_sha256sum_would_make_of_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "trials/0001").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "trials/0001/answer.json").write_text("1")
    said = subprocess.run(
        ["sha256sum", "run.json", "trials/0001/answer.json"], cwd=run, capture_output=True
    )
    assert folder_digest(run) == hashlib.sha256(said.stdout).hexdigest()


@pytest.mark.parametrize("name", ["progress.json", "answer.json", "report.html", "index.parquet"])
def test_what_changes_after_the_end_is_not_covered(run: Path, name: str) -> None:
    before = folder_digest(run)
    (run / name).write_text("other")
    assert folder_digest(run) == before


@pytest.mark.parametrize("name", ["run.json", "trials/0001/trial.json"])
def test_a_changed_byte_shows(run: Path, name: str) -> None:
    before = folder_digest(run)
    with (run / name).open("ab") as file:
        file.write(b" ")
    assert folder_digest(run) != before


def test_a_lost_file_and_an_added_one_show(run: Path) -> None:
    before = folder_digest(run)
    (run / "trials/0001/more.txt").write_text("")
    assert folder_digest(run) != before
    (run / "trials/0001/more.txt").unlink()
    assert folder_digest(run) == before
    (run / "trials/0001/trial.json").unlink()
    assert folder_digest(run) != before


def test_a_link_is_passed_over_as_export_does(run: Path) -> None:
    before = folder_digest(run)
    os.symlink("/etc/passwd", run / "trials/0001/link")
    assert folder_digest(run) == before


def test_an_archive_with_a_changed_file_has_another(run: Path, tmp_path: Path) -> None:
    (run / "plan.json").write_text("{}")
    files = {str(p.relative_to(run)): p for p in run.rglob("*") if p.is_file()}
    with (tmp_path / "changed.tar.xz").open("wb") as target:
        pack(files, target, "run")
    assert archive_digest(RunArchive(tmp_path / "changed.tar.xz")) != folder_digest(EXAMPLE)


def test_the_order_of_names_does_not_matter() -> None:
    assert content_digest({"b": "2", "a": "1"}) == content_digest({"a": "1", "b": "2"})
    assert content_digest({"b": "1", "a": "2"}) != content_digest({"a": "1", "b": "2"})
