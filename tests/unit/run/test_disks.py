"""The data disk: full of random data, never sparse, and the same again for every trial."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import HostError
from labctl.run.resources import disks
from labctl.run.resources.disks import DataDisks

SIZE = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDisks:
    monkeypatch.setattr(disks, "DATA_DISK_BYTES", SIZE)
    monkeypatch.setattr(disks, "_CHUNK", SIZE // 4)
    disk = DataDisks(tmp_path / "data")
    disk.make()
    return disk


def test_it_is_as_large_as_it_says_and_has_no_holes(disk: DataDisks) -> None:
    found = disk.paths[0].stat()
    assert found.st_size == SIZE
    assert found.st_blocks * 512 >= SIZE
    assert b"\0" * 512 not in disk.paths[0].read_bytes()


def test_a_reset_brings_back_what_was_written_over_in_the_same_file(disk: DataDisks) -> None:
    before, inode = disk.paths[0].read_bytes(), disk.paths[0].stat().st_ino
    with open(disk.paths[0], "r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"x" * 8192)
    assert disk.paths[0].read_bytes() != before
    disk.is_dirty = True
    disk.reset()
    assert disk.paths[0].read_bytes() == before
    assert disk.paths[0].stat().st_ino == inode
    assert not disk.is_dirty


def test_a_reset_fills_holes_that_a_guest_punched(disk: DataDisks) -> None:
    before = disk.paths[0].read_bytes()
    os.truncate(disk.paths[0], 0)
    os.truncate(disk.paths[0], SIZE)
    disk.is_dirty = True
    disk.reset()
    assert disk.paths[0].read_bytes() == before
    assert disk.paths[0].stat().st_blocks * 512 >= SIZE


def test_a_disk_that_nobody_wrote_to_is_not_written_again(disk: DataDisks) -> None:
    disk.reset()
    changed = disk.paths[0].stat().st_mtime_ns
    disk.reset()
    assert disk.paths[0].stat().st_mtime_ns == changed


def test_a_disk_of_an_earlier_run_counts_as_dirty(disk: DataDisks) -> None:
    before = disk.paths[0].read_bytes()
    disk.paths[0].write_bytes(os.urandom(SIZE))
    again = DataDisks(disk.folder)
    again.make()
    again.reset()
    assert again.paths[0].read_bytes() == before


@pytest.mark.parametrize("name", ["data.img", "pristine.img"])
@pytest.mark.parametrize("damage", ["missing", "short", "sparse"])
def test_a_file_that_is_not_whole_is_made_anew(disk: DataDisks, name: str, damage: str) -> None:
    path = disk.folder / name
    path.unlink()
    if damage == "short":
        path.write_bytes(b"x" * 100)
    elif damage == "sparse":
        path.touch()
        os.truncate(path, SIZE)
    again = DataDisks(disk.folder)
    again.make()
    again.reset()
    for made in (disk.paths[0], disk.folder / "pristine.img"):
        assert made.stat().st_size == SIZE
        assert made.stat().st_blocks * 512 >= SIZE
    assert disk.paths[0].read_bytes() == (disk.folder / "pristine.img").read_bytes()


def test_whole_files_are_kept(disk: DataDisks) -> None:
    before = (disk.paths[0].read_bytes(), disk.paths[0].stat().st_ino)
    DataDisks(disk.folder).make()
    assert (disk.paths[0].read_bytes(), disk.paths[0].stat().st_ino) == before


@pytest.fixture
def both(disk: DataDisks, monkeypatch: pytest.MonkeyPatch) -> DataDisks:
    """The disk as raw and as what stands for a qcow2: a header before the same data."""

    def convert(argv: list[Any], **_: Any) -> None:
        assert argv[:3] == ["qemu-img", "convert", "-q"]
        source, target = argv[-2:]
        target.write_bytes(b"h" * 4096 + source.read_bytes())

    monkeypatch.setattr(disks, "run", convert)
    both = DataDisks(disk.folder, formats=frozenset({"raw", "qcow2"}))
    both.make()
    return both


def test_a_qcow2_holds_what_the_raw_file_holds(both: DataDisks) -> None:
    assert both.paths_in("qcow2")[0].read_bytes()[4096:] == both.paths[0].read_bytes()
    assert {path.name for path in both.folder.iterdir()} == {
        *("data.img", "pristine.img", "data.qcow2", "pristine.qcow2")
    }


def test_a_disk_that_no_tuning_wants_as_qcow2_has_none(disk: DataDisks) -> None:
    assert not disk.paths_in("qcow2")[0].exists()


def test_a_reset_brings_back_all_formats_in_the_same_files(both: DataDisks) -> None:
    before = [(path.read_bytes(), path.stat().st_ino) for path in both.files]
    for path in both.files:
        with open(path, "r+b") as file:
            file.seek(SIZE // 2)
            file.write(b"x" * 8192)
    both.is_dirty = True
    both.reset()
    assert before == [(path.read_bytes(), path.stat().st_ino) for path in both.files]


def test_a_qcow2_that_is_cut_off_is_made_anew(both: DataDisks) -> None:
    whole = both.paths_in("qcow2")[0].read_bytes()
    for name in ("data.qcow2", "pristine.qcow2"):
        (both.folder / name).write_bytes(whole[: SIZE // 2])
    DataDisks(both.folder, formats=both.formats).make()
    assert both.paths_in("qcow2")[0].read_bytes() == whole


def test_a_qcow2_that_cannot_be_made_leaves_no_half_file(
    disk: DataDisks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(argv: list[Any], **_: Any) -> None:
        argv[-1].write_bytes(b"half")
        raise HostError("No space left on device")

    monkeypatch.setattr(disks, "run", full)
    with pytest.raises(HostError):
        DataDisks(disk.folder, formats=frozenset({"raw", "qcow2"})).make()
    assert {path.name for path in disk.folder.iterdir()} == {"data.img", "pristine.img"}


def test_a_full_disk_is_said_with_a_remedy_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "DATA_DISK_BYTES", SIZE)
    monkeypatch.setattr(disks, "_CHUNK", SIZE // 4)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disks.os, "fsync", full)
    disk = DataDisks(tmp_path / "data")
    with pytest.raises(HostError, match="No space left on device") as caught:
        disk.make()
    assert "--state-dir" in str(caught.value.hint)
    assert list(disk.folder.iterdir()) == []


def test_a_disk_that_cannot_be_reset_ends_the_run(
    disk: DataDisks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disks.os, "fdatasync", broken)
    with pytest.raises(HostError, match="Input/output error"):
        disk.reset()
    assert disk.is_dirty


def test_an_overlay_replaces_what_an_earlier_one_left_and_is_private(tmp_path: Path) -> None:
    path, precious = tmp_path / "overlay.qcow2", tmp_path / "precious"
    precious.write_text("text")
    path.symlink_to(precious)
    base = tmp_path / "base.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", base, "1M"], check=True)
    disks.make_overlay(base, path)
    assert precious.read_text() == "text"
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_prepared_image_is_found_when_its_folder_is_moved(tmp_path: Path) -> None:
    image = tmp_path / "images" / "debian"
    (image / "prepared").mkdir(parents=True)
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", image / "disk.qcow2", "1M"], check=True
    )
    disks.make_overlay(Path("../disk.qcow2"), image / "prepared" / "first.qcow2")
    moved = image.parent.rename(tmp_path / "moved") / "debian" / "prepared" / "first.qcow2"
    disks.make_overlay(moved, tmp_path / "restored.qcow2")
    subprocess.run(["qemu-img", "compare", "-q", moved, tmp_path / "restored.qcow2"], check=True)


def test_two_disks_are_files_of_one_content_and_come_back_together(disk: DataDisks) -> None:
    two = DataDisks(disk.folder, count=2)
    two.make()
    first, second = two.paths
    assert first == disk.paths[0]
    assert second.read_bytes() == first.read_bytes()
    with open(second, "r+b") as file:
        file.write(b"x" * 8192)
    two.is_dirty = True
    two.reset()
    assert second.read_bytes() == first.read_bytes()
