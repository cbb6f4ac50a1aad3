"""The data disk: full of random data, never sparse, and the same again for every trial."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import HostError
from labctl.run import disks
from labctl.run.disks import DataDisk

SIZE = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDisk:
    monkeypatch.setattr(disks, "DATA_SIZE_BYTES", SIZE)
    monkeypatch.setattr(disks, "_CHUNK", SIZE // 4)
    disk = DataDisk(tmp_path / "data")
    disk.make()
    return disk


def test_it_is_as_large_as_it_says_and_has_no_holes(disk: DataDisk) -> None:
    found = disk.path.stat()
    assert found.st_size == SIZE
    assert found.st_blocks * 512 >= SIZE
    assert b"\0" * 512 not in disk.path.read_bytes()


def test_a_reset_brings_back_what_was_written_over_in_the_same_file(disk: DataDisk) -> None:
    before, inode = disk.path.read_bytes(), disk.path.stat().st_ino
    with open(disk.path, "r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"x" * 8192)
    assert disk.path.read_bytes() != before
    disk.is_dirty = True
    disk.reset()
    assert disk.path.read_bytes() == before
    assert disk.path.stat().st_ino == inode
    assert not disk.is_dirty


def test_a_reset_fills_holes_that_a_guest_punched(disk: DataDisk) -> None:
    before = disk.path.read_bytes()
    os.truncate(disk.path, 0)
    os.truncate(disk.path, SIZE)
    disk.is_dirty = True
    disk.reset()
    assert disk.path.read_bytes() == before
    assert disk.path.stat().st_blocks * 512 >= SIZE


def test_a_disk_that_nobody_wrote_to_is_not_written_again(disk: DataDisk) -> None:
    disk.reset()
    changed = disk.path.stat().st_mtime_ns
    disk.reset()
    assert disk.path.stat().st_mtime_ns == changed


def test_a_disk_of_an_earlier_run_counts_as_dirty(disk: DataDisk) -> None:
    before = disk.path.read_bytes()
    disk.path.write_bytes(os.urandom(SIZE))
    again = DataDisk(disk.folder)
    again.make()
    again.reset()
    assert again.path.read_bytes() == before


@pytest.mark.parametrize("name", ["data.img", "pristine.img"])
@pytest.mark.parametrize("damage", ["missing", "short", "sparse"])
def test_a_file_that_is_not_whole_is_made_anew(disk: DataDisk, name: str, damage: str) -> None:
    path = disk.folder / name
    path.unlink()
    if damage == "short":
        path.write_bytes(b"x" * 100)
    elif damage == "sparse":
        path.touch()
        os.truncate(path, SIZE)
    again = DataDisk(disk.folder)
    again.make()
    again.reset()
    for made in (disk.path, disk.folder / "pristine.img"):
        assert made.stat().st_size == SIZE
        assert made.stat().st_blocks * 512 >= SIZE
    assert disk.path.read_bytes() == (disk.folder / "pristine.img").read_bytes()


def test_whole_files_are_kept(disk: DataDisk) -> None:
    before = (disk.path.read_bytes(), disk.path.stat().st_ino)
    DataDisk(disk.folder).make()
    assert (disk.path.read_bytes(), disk.path.stat().st_ino) == before


def test_a_full_disk_is_said_with_a_remedy_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "DATA_SIZE_BYTES", SIZE)
    monkeypatch.setattr(disks, "_CHUNK", SIZE // 4)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disks.os, "fsync", full)
    disk = DataDisk(tmp_path / "data")
    with pytest.raises(HostError, match="No space left on device") as caught:
        disk.make()
    assert "--state-dir" in str(caught.value.hint)
    assert list(disk.folder.iterdir()) == []


def test_a_disk_that_cannot_be_reset_ends_the_run(
    disk: DataDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disks.os, "fdatasync", broken)
    with pytest.raises(HostError, match="Input/output error"):
        disk.reset()
    assert disk.is_dirty


def test_an_overlay_replaces_what_an_earlier_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(disks, "run", lambda argv, **_: calls.append(argv))
    path = tmp_path / "overlay.qcow2"
    path.write_text("of another restore")
    disks.make_overlay(tmp_path / "base.qcow2", path)
    assert not path.exists()
    assert calls[0][-2:] == [tmp_path / "base.qcow2", path]
