"""Commands under a limit of memory that is too low for them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.example import EXAMPLE

LIMITS = (40, 100, 160, 250)
"""MiB of address space. From 90 to 110 OpenBLAS ends a process with status 1, from 145 to 175 it
retries for ever; the largest is below the one that reports need."""
OF_COPIES = (36, 40, 46, 50)
"""Where importing and exporting end in the middle, or just do not."""
ENOUGH = 600


def labctl(results: Path, mib: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "labctl.cli.main", *words],
        env={**os.environ, "LABCTL_RESULTS": str(results)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("mib", LIMITS)
def test_a_report_without_memory_is_refused_in_a_sentence(tmp_path: Path, mib: int) -> None:
    done = labctl(tmp_path, mib, "report", str(EXAMPLE))
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("labctl: not enough memory")
    assert len(done.stderr.splitlines()) == 2


def test_a_report_with_enough_is_printed(tmp_path: Path) -> None:
    assert labctl(tmp_path, ENOUGH, "report", str(EXAMPLE)).returncode == 0


@pytest.mark.parametrize("command", ["import", "export"])
def test_a_run_is_there_whole_or_not_at_all(tmp_path: Path, command: str) -> None:
    archive = tmp_path / "one.tar.xz"
    assert (
        labctl(tmp_path, ENOUGH, "run", "export", str(EXAMPLE), "--out", str(archive)).returncode
        == 0
    )
    codes = []
    for mib in (*OF_COPIES, ENOUGH):
        results = tmp_path / str(mib)
        results.mkdir()
        made = results / "one"
        words = {
            "import": ("run", "import", str(archive), "--name", "one"),
            "export": ("run", "export", str(archive), "--out", str(made)),
        }[command]
        done = labctl(results, mib, *words)
        codes.append(done.returncode)
        if done.returncode == 3:
            assert "not enough memory" in done.stderr
            assert list(results.iterdir()) == []
        else:
            assert done.returncode == 0, done.stderr
            assert labctl(results, ENOUGH, "run", "verify", str(made)).returncode == 0
    assert codes[0] == 3
    assert codes[-1] == 0
