from __future__ import annotations

import os
from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.base.paths import (
    DATA_FOLDERS,
    MARKER,
    Lab,
    StatePaths,
    data_files,
    naming_lab,
    results_folder,
    shadowing,
    shipped_data,
)
from labctl.base.paths import lab as lab_here
from tests.unit.base.strangers import give_away

STATE = StatePaths(Path("/some/state"))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    return tmp_path


def test_labctl_brings_all_of_its_data_folders() -> None:
    for kind in DATA_FOLDERS:
        assert (shipped_data() / kind).is_dir()


@pytest.fixture
def present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with a tuning and a run in it that labctl brings as well."""
    monkeypatch.delenv("LABCTL_LAB", raising=False)
    monkeypatch.delenv("LABCTL_RESULTS", raising=False)
    folder = tmp_path / "present"
    (folder / "domains").mkdir(parents=True)
    (folder / "domains/pinned.yaml").touch()
    monkeypatch.chdir(folder)
    return folder


def test_the_present_folder_is_no_lab_without_the_marker(present: Path) -> None:
    assert lab_here() == Lab()
    assert data_files("domains")["pinned"] == shipped_data() / "domains/pinned.yaml"
    assert results_folder(STATE) == STATE.root / "results"


def test_the_marker_makes_the_present_folder_a_lab(present: Path) -> None:
    (present / MARKER).touch()
    assert lab_here() == Lab(present)
    assert data_files("domains")["pinned"] == present / "domains/pinned.yaml"
    assert results_folder(STATE) == present / "results"
    assert shadowing() == [Path("domains/pinned.yaml")]


def test_the_marker_of_a_folder_above_counts_for_nothing(
    present: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (present / MARKER).touch()
    monkeypatch.chdir(present / "domains")
    assert lab_here() == Lab()


@pytest.mark.parametrize("what", [".", "domains", "domains/pinned.yaml", MARKER])
def test_a_present_folder_that_others_can_write_to_is_ignored(present: Path, what: str) -> None:
    (present / MARKER).touch()
    (present / what).chmod(0o777)
    assert "is writable by everybody" in str(lab_here().ignored)
    assert data_files("domains")["pinned"] == shipped_data() / "domains/pinned.yaml"
    assert results_folder(STATE) == STATE.root / "results"


@pytest.mark.parametrize("what", [".", "domains", "domains/pinned.yaml", MARKER])
def test_a_strangers_present_folder_is_ignored(
    present: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    (present / MARKER).touch()
    give_away(present / what, monkeypatch)
    assert "is owned by" in str(lab_here().ignored)
    assert data_files("domains")["pinned"] == shipped_data() / "domains/pinned.yaml"


def test_a_lab_that_is_named_needs_no_marker(
    present: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABCTL_LAB", "/nowhere")
    with naming_lab(Path("../present")):
        assert lab_here() == Lab(present)
    monkeypatch.setenv("LABCTL_LAB", str(present))
    assert lab_here() == Lab(present)


def test_a_lab_that_is_named_and_not_believed_is_refused(
    present: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present.chmod(0o777)
    monkeypatch.setenv("LABCTL_LAB", str(present))
    with pytest.raises(UsageError, match=r"\$LABCTL_LAB .* is not trusted: .* by everybody"):
        data_files("domains")
    present.parent.chmod(0o770)
    with naming_lab(Path("..")), pytest.raises(UsageError, match=r"--lab \.\. is not trusted"):
        results_folder(STATE)
    with naming_lab(Path("none")), pytest.raises(UsageError, match="no such folder"):
        results_folder(STATE)


def test_the_checkout_is_as_good_as_the_code_that_came_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LABCTL_LAB", raising=False)
    monkeypatch.delenv("LABCTL_RESULTS", raising=False)
    monkeypatch.chdir(shipped_data())
    monkeypatch.setattr("labctl.base.paths.doubt", lambda *_, **__: "it isn't asked")
    assert results_folder(STATE) == shipped_data() / "results"
    assert shadowing() == []
    monkeypatch.chdir("docs")
    assert results_folder(STATE) == STATE.root / "results"


def test_what_an_editor_leaves_beside_a_file_is_no_data(lab: Path) -> None:
    (lab / "domains").mkdir()
    (lab / "domains/.#mine.yaml").touch()
    assert ".#mine" not in data_files("domains")


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
    assert results_folder(STATE) == lab / "results"
    monkeypatch.setenv("LABCTL_RESULTS", str(lab / "elsewhere"))
    assert results_folder(STATE) == lab / "elsewhere"


def test_state_is_kept_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABCTL_STATE_DIR", "/some/place")
    assert StatePaths.default().root == Path("/some/place")


@pytest.mark.parametrize(
    ("user", "root"), [(0, "/var/lib/labctl"), (1000, "/home/me/state/labctl")]
)
def test_state_lies_outside_of_the_repository(
    monkeypatch: pytest.MonkeyPatch, user: int, root: str
) -> None:
    monkeypatch.delenv("LABCTL_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/me/state")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert StatePaths.default().root == Path(root)
