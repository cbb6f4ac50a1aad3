"""Settings of the host in a sweep: in force around their own trials, back after them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from labctl.base.places import StatePlaces
from labctl.host.journal import Journal
from labctl.host.tunables import FileValue
from labctl.run.leftovers import leftover_cgroups
from tests.guest.conftest import QUIET, Sandbox, changed_study, seed_for, wait_for

SWAPPINESS = FileValue("/proc/sys/vm/swappiness")
THP = FileValue("/sys/kernel/mm/transparent_hugepage/enabled")
NATIVE = """\
extends: native
description: No guest, and no transparent huge pages on the host, for a test.
host:
  thp: never
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A study of two settings of the host, one with a native side; both have other values now."""
    for knob, value in ((SWAPPINESS, "10"), (THP, "never")):
        if knob.read() == value:
            pytest.skip(f"this host has {knob.name} at {value} already")
    (tmp_path / "domains").mkdir()
    (tmp_path / "domains" / "native+thp-never.yaml").write_text(NATIVE)
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    arms = "[native, native+thp-never, baseline, swappiness-10, thp-never]"
    return changed_study(tmp_path, {"[native, baseline, pinned+fifo]": arms})


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[tuple[str, str]]:
    """The settings before the test, and so again after it, even if labctl fails."""
    before = SWAPPINESS.read(), THP.read()
    try:
        yield before
    finally:
        for knob, value in zip((SWAPPINESS, THP), before, strict=True):
            if knob.read() != value:
                knob.write(value)


@contextmanager
def watched() -> Iterator[set[tuple[str, str]]]:
    """Every pair of values that the two settings have had in the block."""
    seen: set[tuple[str, str]] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            seen.add((SWAPPINESS.read(), THP.read()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def test_settings_are_in_force_in_their_own_trials_only(
    sandbox: Sandbox, study: str, as_it_was: tuple[str, str]
) -> None:
    with watched() as seen:
        done = sandbox.labctl("sweep", study, "--seed=1", *QUIET, "--json")
    assert done.returncode == 0, done.stderr
    swappiness, thp = as_it_was
    assert seen == {as_it_was, ("10", thp), (swappiness, "never")}
    assert (SWAPPINESS.read(), THP.read()) == as_it_was
    [run] = sandbox.runs()
    evidence = {}
    for folder in (run / "trials").iterdir():
        trial = json.loads((folder / "trial.json").read_text())
        path = folder / "host-knobs.json"
        if path.exists():
            evidence[trial["cell"]["tuning"]] = json.loads(path.read_text())
    assert set(evidence) == {"native+thp-never", "swappiness-10", "thp-never"}
    assert evidence["swappiness-10"]["asked"] == {"swappiness": "10"}
    assert evidence["swappiness-10"]["changed"] == [
        {"name": SWAPPINESS.name, "before": swappiness, "now": "10"}
    ]
    for name in ("native+thp-never", "thp-never"):
        assert {"name": THP.name, "before": thp, "now": "never"} in evidence[name]["changed"]
    assert sandbox.leftovers() == []


def test_a_run_that_is_killed_inside_a_setting_is_undone_by_restore(
    sandbox: Sandbox, study: str, as_it_was: tuple[str, str]
) -> None:
    seed = seed_for("swappiness-10", ("native", "baseline", "swappiness-10"))
    arguments = ("--tuning=swappiness-10", f"--seed={seed}", *QUIET, "--duration=900", "--quiet")
    process = sandbox.start("sweep", study, *arguments)

    journal = Journal(StatePlaces(sandbox.state).journal)

    def a_guest_runs_with_the_setting() -> bool:
        # By the run itself: others on this host may set the same.
        changed = {entry.name for entry in journal.pending() if entry.done}
        return SWAPPINESS.name in changed and bool(sandbox.qemu_pids())

    wait_for(
        a_guest_runs_with_the_setting, 600, "a guest on a host with another swappiness", process
    )
    process.send_signal(signal.SIGKILL)
    process.communicate()
    places = StatePlaces(sandbox.state)
    assert SWAPPINESS.read() == "10"
    assert leftover_cgroups(places)
    status = sandbox.labctl("domain", "list")
    assert "a labctl that was killed has left" in status.stderr
    restored: subprocess.CompletedProcess[str] = sandbox.labctl("host", "restore")
    assert restored.returncode == 0, restored.stderr
    assert "Ended the guest" in restored.stderr
    assert sandbox.qemu_pids() == []
    assert leftover_cgroups(places) == []
    assert (SWAPPINESS.read(), THP.read()) == as_it_was
    shutil.rmtree(sandbox.state / "work", ignore_errors=True)
