"""Nice values and CPU weights of guests, and natively of the workload: what the kernel shows of
threads and sessions while trials run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from labctl.host.cgroups import detect, has_cpu_groups
from tests.guest.conftest import QUIET, TINY, Sandbox, native_pids

ARMS = ("guest-nice-5", "native+guest-nice-5", "guest-weight-400", "native+guest-weight-400")


def nices(pid: int) -> set[int]:
    """The nice values of a process's threads."""
    found = set()
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found.add(os.getpriority(os.PRIO_PROCESS, int(folder.name)))
        except OSError:
            continue
    return found


def session_nice(pid: int) -> set[int]:
    """The nice value of a process's autogroup, if it is there still."""
    try:
        return {int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])}
    except OSError:
        return set()


def test_guests_and_native_workloads_have_what_was_asked(sandbox: Sandbox) -> None:
    if has_cpu_groups(detect()):
        pytest.skip("here cgroups weigh, which the catalogue's test reads back")
    arms = [f"--tuning={name}" for name in ARMS]
    running = sandbox.start("sweep", str(TINY), *QUIET, *arms, "--quiet")
    guests: set[int] = set()
    natives: set[int] = set()
    weights: dict[str, set[int]] = {"guest": set(), "native": set()}
    while running.poll() is None:
        for pid in sandbox.guest_pids():
            guests |= nices(pid)
            weights["guest"] |= session_nice(pid)
        for pid in native_pids("sysbench", running):
            natives |= nices(pid)
            weights["native"] |= session_nice(pid)
        time.sleep(0.05)
    assert running.returncode == 0
    assert guests == natives == {0, 5}
    assert weights == {"guest": {0, -6}, "native": {0, -6}}
    (run,) = sandbox.runs()
    assert {trial["status"] for trial in sandbox.trials(run)} == {"done"}
    assert sandbox.leftovers() == []
