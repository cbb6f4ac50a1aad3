from __future__ import annotations

import os
from pathlib import Path

import pytest

from labctl.base.places import (
    DATA_FOLDERS,
    StatePlaces,
    data_files,
    results_folder,
    shipped_data,
)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    return tmp_path


def test_labctl_brings_all_of_its_data_folders() -> None:
    for kind in DATA_FOLDERS:
        assert (shipped_data() / kind).is_dir()


def test_a_file_of_the_lab_shadows_the_one_that_labctl_brings(lab: Path) -> None:
    brought = data_files("benchmarks")
    (lab / "benchmarks").mkdir()
    (lab / "benchmarks" / "pinning.yaml").touch()
    (lab / "benchmarks" / "mine.yaml").touch()
    files = data_files("benchmarks")
    assert set(files) == {*brought, "mine"}
    assert files["pinning"].parent == lab / "benchmarks"


def test_results_lie_in_the_lab_unless_told_otherwise(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LABCTL_RESULTS", raising=False)
    assert results_folder() == lab / "results"
    monkeypatch.setenv("LABCTL_RESULTS", str(lab / "elsewhere"))
    assert results_folder() == lab / "elsewhere"


def test_state_is_kept_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABCTL_STATE_DIR", "/some/place")
    assert StatePlaces.default().root == Path("/some/place")


@pytest.mark.parametrize(
    ("user", "root"), [(0, "/var/lib/labctl"), (1000, "/home/me/state/labctl")]
)
def test_state_lies_outside_of_the_repository(
    monkeypatch: pytest.MonkeyPatch, user: int, root: str
) -> None:
    monkeypatch.delenv("LABCTL_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/me/state")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert StatePlaces.default().root == Path(root)
