"""The folder of a density run: written, read again, found, and never taken for a run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.store.density_record import DensityFolder
from labctl.store.run_places import DENSITY, all_runs, find_run
from tests.unit.density_records import record

NAME = "20261124T100000Z-density-frame-loop"


@pytest.fixture
def folder(tmp_path: Path) -> DensityFolder:
    found = DensityFolder.create(tmp_path / NAME)
    found.write(record({"baseline": [2, "4+", None], "vcpupin": [3, 3, 0]}))
    return found


def test_what_was_written_is_read(folder: DensityFolder) -> None:
    assert folder.read() == record({"baseline": [2, "4+", None], "vcpupin": [3, 3, 0]})


def test_it_is_its_owners_alone(folder: DensityFolder) -> None:
    assert folder.path.stat().st_mode & 0o077 == 0


def test_it_is_found_by_name_by_path_and_as_the_latest(
    folder: DensityFolder, tmp_path: Path
) -> None:
    for name in (NAME, str(folder.path), "latest"):
        assert DensityFolder.find(tmp_path, name).path == folder.path
    with pytest.raises(UsageError, match="no density run 'other'") as caught:
        DensityFolder.find(tmp_path, "other")
    assert NAME in (caught.value.hint or "")


def test_no_other_command_takes_it_for_a_run(folder: DensityFolder, tmp_path: Path) -> None:
    assert all_runs(tmp_path) == []
    with pytest.raises(UsageError, match="is a density run, which has no trials") as caught:
        find_run(tmp_path, NAME)
    assert caught.value.hint == f"labctl density --show {folder.path}"


def test_a_newer_labctls_is_refused(folder: DensityFolder) -> None:
    change(folder, schema=2)
    with pytest.raises(UsageError, match="written by a newer labctl"):
        folder.read()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("blocks", "ten", "'blocks': expected a whole number, got 'ten'"),
        ("limit", {"metric": "x"}, "'limit' has no 'bound'"),
        ("counts", [{"tuning": "baseline"}], r"'counts\[0\]' has no 'block'"),
        ("steps", {}, "'steps': expected a list, got {}"),
    ],
)
def test_what_is_not_whole_is_named(folder: DensityFolder, key: str, value: Any, said: str) -> None:
    change(folder, **{key: value})
    with pytest.raises(BrokenError, match=said):
        folder.read()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": "1"}', "null"])
def test_what_is_no_record_is_refused(folder: DensityFolder, text: str) -> None:
    (folder.path / DENSITY).write_text(text)
    with pytest.raises(BrokenError, match=DENSITY):
        folder.read()


def test_removing_it_removes_all_of_it(folder: DensityFolder, tmp_path: Path) -> None:
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def change(folder: DensityFolder, **changes: Any) -> None:
    path = folder.path / DENSITY
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
