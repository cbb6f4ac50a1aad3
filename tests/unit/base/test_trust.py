from __future__ import annotations

import os
from pathlib import Path

import pytest

from labctl.base.trust import MOST_LINKS, believed_owners, doubt, mounted_by
from tests.unit.base.strangers import give_away


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder/inner").mkdir(parents=True)
    (tmp_path / "folder/inner/file.yaml").write_text("a: 1\n")
    return tmp_path / "folder"


def test_ones_own_files_below_a_sticky_folder_are_believed(folder: Path) -> None:
    assert doubt(folder) is None
    assert doubt(folder, below=True) is None
    folder.parent.chmod(0o1777)
    assert doubt(folder, below=True) is None


@pytest.mark.parametrize("what", [".", "inner", "inner/file.yaml"])
def test_a_strangers_file_is_not_believed_wherever_it_lies(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    give_away(folder / what, monkeypatch)
    assert " is owned by " in str(doubt(folder, below=True))


@pytest.mark.parametrize("what", [".", "inner", "inner/file.yaml"])
@pytest.mark.parametrize(("bits", "who"), [(0o020, "its group"), (0o002, "everybody")])
def test_what_others_can_write_to_is_not_believed(
    folder: Path, what: str, bits: int, who: str
) -> None:
    (folder / what).chmod(0o755 | bits)
    why = doubt(folder, below=True)
    assert f"{(folder / what).resolve()} is writable by {who}" in str(why)


def test_who_can_rename_a_folder_on_the_way_decides_what_is_read(folder: Path) -> None:
    folder.chmod(0o777)
    assert str(folder) in str(doubt(folder / "inner/file.yaml"))


def test_a_sticky_folder_is_not_believed_itself(folder: Path) -> None:
    folder.chmod(0o1777)
    assert doubt(folder / "inner") is None
    assert "is writable by everybody (mode 1777)" in str(doubt(folder))


def test_a_link_is_as_good_as_what_it_leads_to(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (folder / "linked").symlink_to("../elsewhere")
    (tmp_path / "way").symlink_to(folder)
    assert doubt(tmp_path / "way", below=True) is None
    target.chmod(0o777)
    assert str(target) in str(doubt(folder, below=True))
    target.chmod(0o755)
    (target / "file").touch()
    (target / "file").chmod(0o666)
    assert str(target / "file") in str(doubt(tmp_path / "way", below=True))


def test_a_strangers_link_in_a_sticky_folder_is_not_believed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "link").symlink_to(folder)
    assert doubt(shared / "link") is None
    give_away(shared / "link", monkeypatch)
    assert doubt(shared / "link")


def test_links_in_a_circle_and_to_nowhere_are_not_believed(folder: Path) -> None:
    (folder / "circle").symlink_to("circle")
    assert f"more than {MOST_LINKS} links" in str(doubt(folder / "circle"))
    (folder / "circle").unlink()
    (folder / "nowhere").symlink_to("none")
    assert "No such file" in str(doubt(folder, below=True))
    (folder / "nowhere").unlink()
    (folder / ".#file.yaml").symlink_to("who@where.1234")  # an editor's lock, which nobody reads
    assert doubt(folder, below=True) is None


def test_what_is_neither_file_nor_folder_is_not_believed(folder: Path) -> None:
    os.mkfifo(folder / "pipe", 0o600)
    assert "neither a file nor a folder" in str(doubt(folder, below=True))


def test_under_sudo_the_caller_is_who_typed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert believed_owners() == {0, 1000}
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert believed_owners() == {0, 1001}  # who isn't root may set what they like
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for nonsense in ("", "-1", "²", "0x0", "9" * 30):
        monkeypatch.setenv("SUDO_UID", nonsense)
        assert believed_owners() == {0}


def test_a_file_system_that_a_user_serves_is_told_by_its_mount() -> None:
    mounts = (
        "36 25 0:31 / /mnt/m rw,nosuid - fuse.sshfs host: rw,user_id=1000,group_id=1000\n"
        "37 25 0:32 / /run rw - tmpfs tmpfs rw,size=1024k\n"
        "38 25 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "39 25 0:33 / /snap ro - fuse snapfuse ro,user_id=0,group_id=0,allow_other\n"
        "nonsense\n"
    )
    assert mounted_by(mounts) == {os.makedev(0, 31): 1000, os.makedev(0, 33): 0}
