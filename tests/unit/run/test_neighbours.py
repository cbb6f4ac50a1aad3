"""Neighbours wait until they are let go: what they need to start is there by then."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.neighbour import WORKER
from labctl.run.trials.neighbours import _WAIT, Neighbours


@pytest.fixture
def hog(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that has the worker's name, behind what makes it wait."""
    program = tmp_path / WORKER
    shutil.copy("/usr/bin/sleep", program)
    process = subprocess.Popen([*_WAIT, str(program), "60"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def name(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/comm").read_text().strip()


def test_a_neighbour_waits_until_it_is_let_go(hog: subprocess.Popen[bytes], tmp_path: Path) -> None:
    found = Neighbours([(hog, tmp_path)])
    time.sleep(0.05)
    assert name(hog) != WORKER
    found.start()
    assert name(hog) == WORKER


def test_a_neighbour_that_is_never_let_go_never_runs(hog: subprocess.Popen[bytes]) -> None:
    """labctl may be killed, or the warm-up fail."""
    assert hog.stdin is not None
    hog.stdin.close()
    assert hog.wait(timeout=20) != 0


def test_a_neighbour_that_ended_before_it_was_let_go_is_an_error(
    hog: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    hog.kill()
    hog.wait()
    with pytest.raises(BrokenError, match="ended before it had started"):
        Neighbours([(hog, tmp_path)]).start()


def test_a_trial_without_neighbours_starts_none() -> None:
    Neighbours().start()
