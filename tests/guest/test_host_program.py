"""A program of the host's as a tuning: it runs beside its own trials alone, and is left by nothing,
not even by a labctl that is killed together with it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.conftest import QUIET, TINY, Sandbox, wait_for

SECONDS = 86_000 + os.getpid() % 1000
"""Tells this test's program from others."""
TUNING = """
extends: baseline
description: A program of the host's beside the guest.
host:
  program: {{command: /usr/bin/sleep {seconds}, check: /usr/bin/pgrep -f '^/usr/bin/sleep {found}'}}
"""


def programs(seconds: int = SECONDS) -> list[int]:
    argv = f"/usr/bin/sleep\0{seconds}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == argv:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "domains").mkdir()
    for name, seconds in (("stays", SECONDS), ("ends", 6)):
        text = TUNING.format(seconds=seconds, found=seconds)
        (tmp_path / "domains" / f"{name}.yaml").write_text(text)
    yield tmp_path
    assert programs() == []


def test_it_runs_beside_its_own_trials_alone(sandbox: Sandbox, lab: Path) -> None:
    asked = ("sweep", str(TINY), *QUIET, "--tuning=stays", "--quiet")
    done = sandbox.labctl(*asked, lab=lab)
    assert done.returncode == 0, done.stderr
    (run,) = sandbox.runs()
    for path in run.glob("trials/*/trial.json"):
        trial = json.loads(path.read_text())
        assert trial["status"] == "done", trial
        knobs = path.with_name("host-knobs.json")
        assert knobs.exists() == (trial["cell"]["tuning"] == "stays")
        if knobs.exists():
            (held,) = json.loads(knobs.read_text())["held"]
            assert held["name"] == f"program /usr/bin/sleep {SECONDS}"
            assert held["now"].startswith("process ")
    assert sandbox.leftovers() == []


def test_a_program_that_ends_makes_its_trials_invalid(sandbox: Sandbox, lab: Path) -> None:
    asked = ("sweep", str(TINY), *QUIET, "--tuning=ends", "--duration=8s", "--quiet")
    sandbox.labctl(*asked, lab=lab)
    (run,) = sandbox.runs()
    reasons = [
        reason
        for trial in sandbox.trials(run)
        if trial["cell"]["tuning"] == "ends"
        for reason in trial["reasons"]
    ]
    assert any("'/usr/bin/sleep 6' ended with status 0" in reason for reason in reasons), reasons


def test_killed_together_with_labctl_it_leaves_nothing(
    sandbox: Sandbox, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABCTL_LAB", str(lab))
    running = sandbox.start("sweep", str(TINY), *QUIET, "--tuning=stays", "--quiet")
    wait_for(lambda: bool(programs()), 300, "the program", of=running)
    for pid in (running.pid, *programs()):
        os.kill(pid, signal.SIGKILL)
    running.wait()
    until = time.monotonic() + 10
    while programs() and time.monotonic() < until:
        time.sleep(0.05)
    assert programs() == []
    restored = sandbox.labctl("host", "restore")
    assert restored.returncode == 0, restored.stderr
    sandbox.labctl("sweep", "--resume", "latest", "--quiet")
    assert sandbox.leftovers() == []
