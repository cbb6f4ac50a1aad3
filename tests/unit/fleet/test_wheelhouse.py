"""Which packages a wheelhouse gets, and that pip takes only files that the lock names."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.base.paths import shipped_data
from labctl.base.process import ProcessError
from labctl.fleet import wheelhouse
from labctl.fleet.wheelhouse import LOCK, locked, make_wheelhouse, pinned


def test_of_a_package_that_is_not_installed_nothing_is_pinned() -> None:
    assert pinned("no-such-package") == {}


def test_a_root_that_is_written_otherwise_is_none_of_its_own_needs() -> None:
    assert "import-linter" not in pinned("import_linter")


def test_every_package_is_asked_for_with_the_hashes_of_the_lock() -> None:
    lines = locked((shipped_data() / LOCK).read_text(), pinned())
    assert len(lines) == len(pinned())
    assert all("==" in line and " --hash=sha256:" in line for line in lines)


def test_another_version_than_the_locked_one_is_refused() -> None:
    lock = "x==1 \\\n    --hash=sha256:00\n    # via labctl\ny==2\n"
    assert locked(lock, {"x": "1"}) == ["x==1 --hash=sha256:00"]
    with pytest.raises(UsageError, match=r"no SHA-256 of x 2, y 2"):
        locked(lock, {"x": "2", "y": "2"})


def test_a_wheel_with_a_changed_byte_gets_into_no_wheelhouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("x.py", "")
        file.writestr("x-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: x\nVersion: 1\n")
        file.writestr("x-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr("x-1.dist-info/RECORD", "")
    data = wheel.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    (checkout / LOCK).write_text(f"x==1 \\\n    --hash=sha256:{digest}\n")
    monkeypatch.setattr(wheelhouse, "shipped_data", lambda: checkout)
    monkeypatch.setattr(wheelhouse, "pinned", lambda: {"x": "1"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wheel.write_bytes(data.replace(b"Tag: py3", b"Tag: py4"))
    with pytest.raises(ProcessError, match="DO NOT MATCH THE HASHES"):
        make_wheelhouse(tmp_path / "wheels.tar")
    assert not (tmp_path / "wheels.tar").exists()
