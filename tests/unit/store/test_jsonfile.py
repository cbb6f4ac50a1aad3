from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.store.jsonfile import canonical, read_json, replacing, write_bytes, write_json


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"µ": [1, 0.1, None]})
    assert read_json(tmp_path / "a.json") == {"µ": [1, 0.1, None]}


def test_the_canonical_text_does_not_depend_on_the_order_of_keys() -> None:
    assert (
        canonical({"b": 1, "a": [1, 2]}) == canonical({"a": [1, 2], "b": 1}) == '{"a":[1,2],"b":1}'
    )


def test_a_file_can_be_private(tmp_path: Path) -> None:
    write_bytes(tmp_path / "secret", b"x", mode=0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_two_processes_that_write_one_file_at_once_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "cache.json", os.fsync
    other = "import sys, pathlib; from labctl.store.jsonfile import write_json as write; "
    other += "write(pathlib.Path(sys.argv[1]), 2)"

    def meanwhile(descriptor: int) -> None:
        subprocess.run([sys.executable, "-c", other, str(path)], check=True)
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_json(path, 1)
    assert read_json(path) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_json(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HostError, match=r"cannot write .*a\.json: No space left") as caught:
        write_json(path, "new")
    assert "resume" in str(caught.value.hint)
    assert read_json(path) == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", [b"", b'{"a": ', b"\xff", b"nothing"])
def test_a_file_that_was_cut_off_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(BrokenError, match=r"a\.json cannot be read"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("text", ["[" * 1500, '{"a":' * 900 + "1" + "}" * 900, "9" * 5000])
def test_a_file_that_no_one_could_walk_through_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BrokenError, match=r"a\.json cannot be read: "):
        read_json(tmp_path / "a.json")


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to("/dev/zero")
    with pytest.raises(BrokenError, match="it is no regular file"):
        read_json(tmp_path / "a.json")
    (tmp_path / "b.json").touch()
    os.truncate(tmp_path / "b.json", 1 << 40)  # a hole: it takes no space
    with pytest.raises(BrokenError, match="larger than 64 MiB"):
        read_json(tmp_path / "b.json")


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match=r"a\.json is missing"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize(("number", "is_full"), [(errno.ENOSPC, True), (errno.EACCES, False)])
def test_only_a_full_disk_asks_for_space(tmp_path: Path, number: int, is_full: bool) -> None:
    with pytest.raises(HostError) as caught, replacing(tmp_path / "x"):
        raise OSError(number, os.strerror(number))
    assert ("space" in str(caught.value.hint)) == is_full
