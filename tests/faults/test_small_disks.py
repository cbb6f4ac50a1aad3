"""Commands that keep runs, on file systems that are too small for them, by space and by inodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import NEEDS_GUESTS
from tests.guest.test_failures import small_disk
from tests.unit.example import EXAMPLE

pytestmark = [pytest.mark.faults, NEEDS_GUESTS]

SIZES = ("16k", "256k", "4m")
INODES = (2, 5, 60)
SMALL = [f"size={size}" for size in SIZES] + [f"nr_inodes={number}" for number in INODES]


def labctl(results: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "labctl.cli.main", *words],
        env={**os.environ, "LABCTL_RESULTS": str(results)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "one.tar.xz"
    assert labctl(path.parent, "run", "export", str(EXAMPLE), "--out", str(path)).returncode == 0
    return path


@pytest.mark.parametrize("option", SMALL)
@pytest.mark.parametrize("command", ["import", "export"])
def test_a_run_that_does_not_fit_is_not_there_at_all_and_fits_later(
    tmp_path: Path, archive: Path, command: str, option: str
) -> None:
    results = tmp_path / "results"
    made = results / "one"
    words = {
        "import": ("run", "import", str(archive), "--name", "one"),
        "export": ("run", "export", str(archive), "--out", str(made)),
    }[command]
    with small_disk(results, "50m"):
        remount(results, option)
        done = labctl(results, *words)
        assert done.returncode == 3, done.stderr
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        assert list(results.iterdir()) == []
        remount(results, "size=50m,nr_inodes=100000")
        done = labctl(results, *words)
        assert done.returncode == 0, done.stderr
        assert labctl(results, "run", "verify", str(made)).returncode == 0


def remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)
