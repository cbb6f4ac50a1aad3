"""Wheels that carry a workload's foreign files: what pip brings is held to its hash, and what is in
it to its folder. pip only pretends here."""

from __future__ import annotations

import hashlib
import io
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, HostError
from labctl.base.events import Event, Note, silent
from labctl.base.paths import StatePaths
from labctl.base.process import Deadline
from labctl.guest.layer import Brought, Layer, Wheel
from labctl.guest.layers import fetch_wheel, unpack

PIP = """\
#!/bin/sh
echo "$*" >> {folder}/asked
while [ "$1" != --dest ]; do shift; done
mkdir -p "$2"
cat "$4" >> {folder}/requirements
{does}
"""


def archive(*files: tuple[str, bytes, int]) -> bytes:
    """A zip file of names, contents and modes."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as opened:
        for name, content, mode in files:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            opened.writestr(entry, content)
    return data.getvalue()


RUNTIME = archive(
    ("jdk/bin/java", b"\x7fELF", stat.S_IFREG | 0o4755),
    ("jdk/lib/modules", b"classes", stat.S_IFREG | 0o666),
)


def wheel_of(data: bytes) -> Wheel:
    return Wheel(name="java", requirement="jdk==1.2", sha256=hashlib.sha256(data).hexdigest())


def soon() -> Deadline:
    return Deadline.after(20, "a test")


def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, does: str) -> None:
    (tmp_path / "found.whl").write_bytes(data)
    python = tmp_path / "python"
    python.write_text(PIP.format(folder=tmp_path, does=does.format(folder=tmp_path)))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


COPIES = 'cp {folder}/found.whl "$2/jdk-1.2-py3-none-any.whl"'


def test_a_wheel_is_downloaded_once_by_its_hash(
    places: StatePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(tmp_path, monkeypatch, RUNTIME, COPIES)
    wheel = wheel_of(RUNTIME)
    heard: list[Event] = []
    first = fetch_wheel(wheel, places, soon(), heard.append)
    assert first.read_bytes() == RUNTIME
    assert fetch_wheel(wheel, places, soon(), heard.append) == first
    assert [e.text for e in heard if isinstance(e, Note)] == ["Downloading jdk==1.2"]
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    for option in ("--no-deps", "--only-binary=:all:", "--require-hashes"):
        assert option in asked
    told = (tmp_path / "requirements").read_text()
    assert told == f"jdk==1.2 --hash=sha256:{wheel.sha256}\n"
    assert [path.name for path in places.downloads.iterdir()] == [first.name]


def test_a_kept_wheel_that_has_changed_is_downloaded_again(
    places: StatePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(tmp_path, monkeypatch, RUNTIME, COPIES)
    kept = fetch_wheel(wheel_of(RUNTIME), places, soon(), silent)
    kept.write_bytes(b"other")
    assert fetch_wheel(wheel_of(RUNTIME), places, soon(), silent).read_bytes() == RUNTIME


@pytest.mark.parametrize(
    ("does", "error", "said"),
    [
        ("echo 'ERROR: No matching distribution' >&2; exit 1", HostError, "No matching"),
        ("echo 'DO NOT MATCH THE HASHES' >&2; exit 1", BrokenError, "has the SHA-256"),
        ('echo other > "$2/jdk.whl"', BrokenError, "no file of jdk==1.2 with that SHA-256"),
        ("true", BrokenError, "no file of jdk==1.2"),
    ],
)
def test_a_wheel_that_cannot_be_had_is_told_and_nothing_is_kept(
    places: StatePaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    does: str,
    error: type[Exception],
    said: str,
) -> None:
    pretend(tmp_path, monkeypatch, RUNTIME, does)
    with pytest.raises(error, match=said):
        fetch_wheel(wheel_of(RUNTIME), places, soon(), silent)
    assert list(places.downloads.iterdir()) == []


def test_files_lie_in_their_folder_and_gain_no_rights(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    path.write_bytes(RUNTIME)
    tree = tmp_path / "tree"
    tree.mkdir()
    unpack(wheel_of(RUNTIME), path, tree, "opt/java")
    java, modules = tree / "opt/java/jdk/bin/java", tree / "opt/java/jdk/lib/modules"
    assert java.stat().st_mode & 0o7777 == 0o555
    assert modules.stat().st_mode & 0o7777 == 0o444
    assert modules.read_bytes() == b"classes"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([("../out", b"", 0)], "is outside"),
        ([("/etc/passwd", b"", 0)], "is outside"),
        ([("a/../../b", b"", 0)], "is outside"),
        ([("a//b", b"", 0)], "is outside"),
        ([("link", b"/etc", stat.S_IFLNK | 0o777)], "is not a regular file"),
        ([("pipe", b"", stat.S_IFIFO | 0o666)], "is not a regular file"),
    ],
)
def test_a_wheel_that_would_write_elsewhere_is_refused_before_anything_is_written(
    tmp_path: Path, files: list[tuple[str, bytes, int]], said: str
) -> None:
    data = archive(("good", b"", 0), *files)
    path = tmp_path / "a.whl"
    path.write_bytes(data)
    (tmp_path / "tree").mkdir()
    with pytest.raises(BrokenError, match=said):
        unpack(wheel_of(data), path, tmp_path / "tree", "opt")
    assert list((tmp_path / "tree").iterdir()) == []


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    path.write_bytes(archive(("a", b"1", 0), ("a", b"2", 0)))
    with pytest.raises(BrokenError, match="'a' twice"):
        unpack(wheel_of(b""), path, tmp_path, "opt")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_cut_archive_is_an_error_that_names_it(tmp_path: Path, share: float) -> None:
    path = tmp_path / "a.whl"
    path.write_bytes(RUNTIME[: int(len(RUNTIME) * share)])
    with pytest.raises(BrokenError, match="wheel 'java'.*a.whl"):
        unpack(wheel_of(RUNTIME), path, tmp_path, "opt")


def test_a_layer_s_digest_has_its_wheels_and_others_stay_as_they_were() -> None:
    without = Brought(workload="a", files={})
    assert "wheels" not in without.to_json()
    wheel = wheel_of(RUNTIME)
    brought = Brought(workload="a", files={}, wheels=(wheel,))
    assert brought.to_json()["wheels"] == {"java": wheel.sha256}
    assert Layer(brought=(brought,)).says == "jdk==1.2, files of a"
