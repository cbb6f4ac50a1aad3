from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from labctl.fleet.ansible import private_folder


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_this_users_alone_and_goes(place: Path) -> None:
    with private_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "env").write_text("secret")
    assert list(place.iterdir()) == []


def test_what_a_killed_labctl_left_is_removed_and_what_is_in_use_is_not(place: Path) -> None:
    left, young = place / "labctl-fleet-left", place / "labctl-fleet-young"
    for folder in (left, young):
        folder.mkdir()
    with private_folder() as used:
        for folder in (left, used):
            os.utime(folder, (0, 0))
        with private_folder():
            assert not left.exists()
            assert used.exists()
            assert young.exists()


def test_a_link_with_such_a_name_is_not_followed(place: Path) -> None:
    (place / "mine").mkdir()
    (place / "mine/file").write_text("")
    os.utime(place / "mine", (0, 0))
    (place / "labctl-fleet-link").symlink_to(place / "mine")
    with private_folder():
        assert (place / "mine/file").exists()
