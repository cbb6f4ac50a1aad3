"""A bundle is whole, or it is refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from labctl.base.errors import HostError, UsageError
from labctl.run.commands.selftest import read_bundle, write_bundle

FILES = {"run/trials/0001/stdout.txt": b"events: 3\n", "tools/perf.txt": b"\xff\x00"}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "b.tar.xz"
    write_bundle(path, {"accelerator": "tcg"}, FILES)
    return path


def repacked(path: Path, **changed: bytes) -> None:
    """The same bundle with other contents of files."""
    with tarfile.open(path) as tar:
        read = {entry.name: tar.extractfile(entry) for entry in tar.getmembers()}
        old = {name: file.read() for name, file in read.items() if file is not None}
    with tarfile.open(path, "w:xz") as tar:
        for name, data in {**old, **changed}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def test_what_is_written_is_read_with_its_digests(bundle: Path) -> None:
    found = read_bundle(bundle)
    assert found.files == FILES
    assert found.manifest["accelerator"] == "tcg"
    assert found.manifest["files"]["tools/perf.txt"] == {
        "sha256": "ea5dbf9596d187e9500f23e9a680109475341cf4e81f7e043f7d97152c10772f",
        "bytes": 2,
    }


def test_a_bundle_says_nothing_of_who_made_it_and_when(bundle: Path) -> None:
    with tarfile.open(bundle) as tar:
        for entry in tar.getmembers():
            assert (entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime) == (
                0,
                0,
                "",
                "",
                0,
            )


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("labctl-selftest/tools/perf.txt", b"better figures", r"was changed: tools/perf\.txt"),
        ("labctl-selftest/more", b"", "was changed: more"),
        ("../etc/passwd", b"x", r"it holds '\.\./etc/passwd'"),
    ],
)
def test_a_changed_added_or_foreign_file_is_refused(
    bundle: Path, name: str, data: bytes, said: str
) -> None:
    repacked(bundle, **{name: data})
    with pytest.raises(UsageError, match=said):
        read_bundle(bundle)


@pytest.mark.parametrize("data", [b"", b"no archive", b"\xfd7zXZ\x00"])
def test_what_is_no_bundle_is_said_to_be_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="is not a bundle of 'labctl selftest'"):
        read_bundle(path)


def test_a_bundle_that_was_cut_off_is_refused(bundle: Path) -> None:
    bundle.write_bytes(bundle.read_bytes()[:200])
    with pytest.raises(UsageError):
        read_bundle(bundle)


def test_a_bundle_that_cannot_be_written_is_the_hosts_matter(tmp_path: Path) -> None:
    with pytest.raises(HostError):
        write_bundle(tmp_path / "missing" / "b.tar.xz", {}, {})
