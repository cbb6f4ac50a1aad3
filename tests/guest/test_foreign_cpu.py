"""What somebody else takes of an arm's CPUs is seen beside neighbours, whatever the arm's
placement; and what the kernel's task clocks say of a known hog, against its own accounts."""

from __future__ import annotations

import bisect
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labctl.collect.collector import ThreadRef
from labctl.collect.threads import task_clock
from labctl.domain.pinning.pin_plan import default_vcpus, pin_plan
from labctl.host.topology import read_topology
from tests.guest.conftest import LATENCY, Sandbox, changed_study

pytestmark = pytest.mark.alone

ARMS = ["native", "native+pinned", "baseline"]
BURN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")


class Foreign:
    """A process that burns one CPU, and what the kernel says that it has had, time by time."""

    def __init__(self, pid: int) -> None:
        self._schedstat = Path(f"/proc/{pid}/schedstat")
        self._times: list[int] = []
        self._ran: list[int] = []
        self._stop = threading.Event()

    def watch(self) -> None:
        while not self._stop.wait(0.02):
            self._ran.append(int(self._schedstat.read_text().split()[0]))
            self._times.append(time.monotonic_ns())

    def stop(self) -> None:
        self._stop.set()

    def used(self, host: Any) -> float:
        """CPU seconds per second between a trial's snapshots, to two of our own."""
        first, last = (
            bisect.bisect(self._times, host[when]["monotonic_ns"]) for when in ("before", "after")
        )
        return (self._ran[last] - self._ran[first]) / (self._times[last] - self._times[first])


@contextmanager
def foreign(cpu: int) -> Iterator[Foreign]:
    # A session of its own weighs as much as each hog's (sched(7), "The autogroup feature").
    argv = [sys.executable, "-c", BURN, str(cpu)]
    with subprocess.Popen(argv, start_new_session=True) as process:
        found = Foreign(process.pid)
        watching = threading.Thread(target=found.watch)
        watching.start()
        try:
            yield found
        finally:
            found.stop()
            watching.join()
            process.kill()


def test_pinned_and_roaming_arms_see_the_same_stranger_beside_neighbours(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    topology = read_topology()
    pinned = min(pin_plan(topology, default_vcpus(topology), 0).vcpu_cpus)
    arms = {"[native, baseline, pinned+fifo]": f"[{', '.join(ARMS)}]"}
    study = changed_study(tmp_path, {**LATENCY, **arms, "duration_s: 1": "duration_s: 3"})
    with foreign(pinned) as stranger:
        words = ("--condition=neighbour", "--accel=tcg", "--quiet")
        done = sandbox.labctl("sweep", study, "--seed=1", *words)
        assert done.returncode == 0, done.stderr
    (run,) = sandbox.runs()
    seen, clocks = {}, {}
    for trial in run.glob("trials/*/trial.json"):
        arm = json.loads(trial.read_text())["cell"]["tuning"]
        host = json.loads(trial.with_name("host.json").read_text())
        samples = json.loads(trial.with_name("samples.json").read_text())["samples"]
        (other,) = [s["value"] for s in samples if s["labels"] == {"thread": "other"}]
        seen[arm] = (other, stranger.used(host))
        clocks[arm] = {row["role"] for row in host["after"][task_clock.KEY]}
    assert seen.keys() == set(ARMS)
    for arm, (other, truly) in seen.items():
        # Others than the stranger may be at work here: they are foreign as well.
        assert truly > 0.1, arm
        assert other > truly - 0.05, (arm, seen)
    # Only where hogs and labctl may be elsewhere does anything count them.
    assert clocks["native+pinned"] == {"neighbour", "labctl"}
    assert clocks["native"] == clocks["baseline"] == set()
    assert sandbox.leftovers() == []


@pytest.mark.skipif(not ACCOUNTS.is_dir(), reason="cgroup v1's cpuacct is not mounted")
def test_a_task_clock_agrees_with_the_kernels_accounts_of_a_hog() -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    group = ACCOUNTS / f"labctl-{os.getpid()}"
    group.mkdir()
    try:
        argv = [sys.executable, "-c", BURN.replace("{int(sys.argv[1])}", "os.sched_getaffinity(0)")]
        with subprocess.Popen(argv) as hog:
            try:
                (group / "cgroup.procs").write_text(str(hog.pid))
                ref = ThreadRef(pid=hog.pid, tid=hog.pid, role="neighbour", index=0)
                with task_clock.counting([ref], frozenset({second})) as clocks:
                    before = _accounted(group), clocks.read()[task_clock.KEY][0]
                    for cpu in (first, second, first):
                        os.sched_setaffinity(hog.pid, {cpu})
                        time.sleep(0.4)
                    after = _accounted(group), clocks.read()[task_clock.KEY][0]
            finally:
                hog.kill()
        accounted = [then - at_first for at_first, then in zip(before[0], after[0], strict=True)]
        counted = after[1]["on"][str(second)] - before[1]["on"][str(second)]
        everywhere = after[1]["everywhere"] - before[1]["everywhere"]
        share = accounted[second] / sum(accounted)
        assert 0.05 < share < 0.95
        assert counted / everywhere == pytest.approx(share, abs=0.05)
    finally:
        group.rmdir()


def _accounted(group: Path) -> list[int]:
    return [int(ns) for ns in (group / "cpuacct.usage_percpu").read_text().split()]
