"""A run's archive as commands take it: read as the run is, imported, and never changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.store.run_folder import RunFolder
from labctl.store.run_places import find_run
from labctl.trace import files
from tests.unit.synthetic import synthetic_run, write_run

from .conftest import Labctl


@pytest.fixture
def packed(tmp_path: Path, labctl: Labctl, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive, beside the folder of runs, of a run that has a page and a trace."""
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path / "results"))
    tunings = ("baseline", "control", "pinned")
    run = write_run(tmp_path / "made" / "r1", synthetic_run(blocks=2, tunings=tunings))
    run.trial(2).write_raw(files.HOST, b"PERFILE2")
    (run.path / "report.html").write_text("a page")
    said = labctl("run", "export", str(run.path), "--out", str(tmp_path / "r1.tar.xz"))
    assert said.code == 0, said.err
    assert "Left out: report.html: it is derived from the rest." in said.out
    return tmp_path / "r1.tar.xz"


@pytest.mark.parametrize(
    "words",
    [
        ("report", "RUN", "--json"),
        ("report", "RUN", "--csv"),
        ("advise", "RUN"),
        ("run", "verify", "RUN"),
        ("timeline", "RUN", "--json"),
        ("compare", "RUN", "RUN/../r2"),
    ],
    ids=" ".join,
)
def test_a_command_says_of_an_archive_what_it_says_of_the_run(
    labctl: Labctl, packed: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    made = tmp_path / "made" / "r1"
    shutil.copytree(made, made.with_name("r2"))
    of_folder, of_archive = (
        labctl(
            *(word.replace("RUN/..", str(made.parent)).replace("RUN", str(run)) for word in words)
        )
        for run in (made, packed)
    )
    assert of_archive == of_folder
    assert of_folder.out


def test_an_imported_archive_is_the_run_again(labctl: Labctl, packed: Path, tmp_path: Path) -> None:
    said = labctl("run", "import", str(packed))
    assert said.code == 0, said.err
    there = RunFolder(tmp_path / "results" / "r1")
    assert there.load().run == RunFolder(tmp_path / "made" / "r1").load().run
    assert there.path.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["r1"]


def test_an_import_replaces_no_run(labctl: Labctl, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "results" / "r1").mkdir(parents=True)
    again = labctl("run", "import", str(packed))
    assert (again.code, list((tmp_path / "results" / "r1").iterdir())) == (2, [])
    assert "run 'r1' already exists" in again.err
    assert labctl("run", "import", str(packed), "--name", "r2").code == 0


def test_what_is_declared_of_csv_is_not_of_an_archive(labctl: Labctl, packed: Path) -> None:
    said = labctl("run", "import", str(packed), "--baseline", "pinned")
    assert said.code == 2
    assert "is an archive of a run with its own plan" in said.err


def test_an_archive_of_another_kind_is_not_taken_for_a_folder(
    labctl: Labctl, packed: Path, tmp_path: Path
) -> None:
    said = labctl("run", "export", str(packed), "--out", str(tmp_path / "r1.tar.gz"))
    assert (said.code, (tmp_path / "r1.tar.gz").exists()) == (2, False)
    assert "the name of a run's archive must end in .tar.xz" in said.err


def test_what_would_change_a_run_names_the_import(labctl: Labctl, packed: Path) -> None:
    for words in (("run", "reparse", str(packed)), ("sweep", "--resume", str(packed))):
        said = labctl(*words)
        assert said.code == 2, said
        assert f"'labctl run import {packed}' imports it as a run." in said.err


def test_a_damaged_archive_is_listed_with_its_problem(
    labctl: Labctl, packed: Path, tmp_path: Path
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "r1.tar.xz").write_bytes(packed.read_bytes()[:500])
    said = labctl("run", "list")
    assert said.code == 0
    assert "unreadable" in said.out
    assert "it is truncated" in said.err
    assert labctl("run", "rm", "r1", "--yes").code == 0
    with pytest.raises(UsageError, match="no run named 'r1'"):
        find_run(tmp_path / "results", "r1")
