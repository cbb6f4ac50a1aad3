"""The shell's loop around programs of a fixed amount of work, run by the shell."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence

import pytest

from labctl.workloads import loops

SHELL = shutil.which("dash") or "/bin/sh"


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SHELL, *argv[1:]], capture_output=True, text=True, timeout=60, check=False
    )


def test_it_runs_that_often() -> None:
    assert _run(loops.times(["echo", "a b"], 3, None)).stdout == "a b\n" * 3


def test_it_runs_at_least_once_and_ends_when_its_time_is_up() -> None:
    assert _run(loops.for_seconds(["echo", "x"], 0, None)).stdout == "x\n"
    started = time.monotonic()
    done = _run(loops.for_seconds(["sleep", "0.05"], 0.3, None))
    assert done.returncode == 0
    assert time.monotonic() - started >= 0.29


@pytest.mark.parametrize(
    "argv",
    [
        loops.times(["sh", "-c", "exit 7"], 3, None),
        loops.for_seconds(["sh", "-c", "exit 7"], 9, None),
    ],
)
def test_the_first_failure_ends_it_with_its_status(argv: Sequence[str]) -> None:
    assert _run(argv).returncode == 7
