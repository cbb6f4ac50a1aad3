"""A disk that fails below its file system: the device mapper answers writes with EIO, or is gone.
`make test-kvm ARGS=tests/faults/test_failing_device.py` runs it where this kernel has none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.conftest import NEEDS_GUESTS
from tests.faults.test_small_disks import archive, labctl

__all__ = ["archive"]


def has_device_mapper() -> bool:
    try:
        os.close(os.open("/dev/mapper/control", os.O_RDWR))
    except OSError:
        return False
    return shutil.which("dmsetup") is not None


pytestmark = [
    pytest.mark.faults,
    NEEDS_GUESTS,
    pytest.mark.skipif(not has_device_mapper(), reason="no device mapper"),
]

MIB = 48
MOMENTS = 6


@dataclass(frozen=True)
class Device:
    """A loop device below a device mapper's, with ext4, mounted at `folder`."""

    name: str
    below: str
    folder: Path

    @property
    def path(self) -> str:
        return f"/dev/mapper/{self.name}"

    def table(self, target: str) -> str:
        sectors = MIB * 2**20 // 512
        rest = {
            "linear": f"{self.below} 0",
            "flakey": f"{self.below} 0 0 3600 1 error_writes",
            "error": "",
        }[target]
        return f"0 {sectors} {target} {rest}".strip()

    def becomes(self, target: str) -> None:
        """At once: what is on its way meets the new target."""
        run("dmsetup", "suspend", "--nolockfs", "--noflush", self.name)
        run("dmsetup", "load", self.name, "--table", self.table(target))
        run("dmsetup", "resume", self.name)

    def is_there_again(self) -> None:
        """As after a loss of power: nothing but what the device has."""
        run("umount", str(self.folder))
        self.becomes("linear")
        # 1: the file system was damaged, and is whole now.
        done = subprocess.run(["e2fsck", "-fp", self.path], capture_output=True, check=False)
        assert done.returncode in (0, 1), done.stdout
        run("mount", self.path, str(self.folder))


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout.strip()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    disk, folder = tmp_path / "disk", tmp_path / "results"
    folder.mkdir()
    with disk.open("wb") as file:
        file.truncate(MIB * 2**20)
    made = Device(
        f"labctl-test-{os.getpid()}", run("losetup", "--find", "--show", str(disk)), folder
    )
    try:
        run("dmsetup", "create", made.name, "--table", made.table("linear"))
        run("mkfs.ext4", "-q", made.path)
        run("mount", made.path, str(folder))
        (folder / "lost+found").rmdir()
        os.sync()
        yield made
    finally:
        for words in (
            ("umount", str(folder)),
            ("dmsetup", "remove", made.name),
            ("losetup", "--detach", made.below),
        ):
            with suppress(AssertionError):
                run(*words)


def test_a_device_that_takes_no_write_is_told_and_the_import_repeated(
    device: Device, archive: Path
) -> None:
    words = ("run", "import", str(archive), "--name", "one")
    device.becomes("flakey")
    done = labctl(device.folder, *words)
    assert done.returncode == 3, done.stderr
    assert "Input/output error" in done.stderr or "Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr
    device.is_there_again()
    assert not (device.folder / "one").exists()
    assert labctl(device.folder, *words).returncode == 0
    assert labctl(device.folder, "run", "verify", "one").returncode == 0


@pytest.mark.parametrize("moment", range(1, MOMENTS + 1))
def test_a_device_that_is_gone_leaves_the_whole_run_or_none(
    device: Device, archive: Path, moment: int
) -> None:
    words = ("run", "import", str(archive), "--name", "one")
    began = time.monotonic()
    assert labctl(device.folder, *words).returncode == 0
    takes_s = time.monotonic() - began
    run("rm", "-r", str(device.folder / "one"))
    os.sync()
    importing = subprocess.Popen(
        [sys.executable, "-m", "labctl.cli.main", *words],
        env={**os.environ, "LABCTL_RESULTS": str(device.folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(takes_s * moment / (MOMENTS + 1))
    device.becomes("error")
    _, said = importing.communicate(timeout=300)
    assert "Traceback" not in said
    device.is_there_again()
    if (device.folder / "one").exists():
        assert labctl(device.folder, "run", "verify", "one").returncode == 0
    else:
        assert importing.returncode != 0, "it said that the run is there"
        assert labctl(device.folder, *words).returncode == 0
