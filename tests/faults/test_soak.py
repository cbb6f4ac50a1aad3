"""Many short trials, natively and in a guest, with faults drawn at random: none is lost, nothing is
left behind, and labctl's memory does not grow.

`make soak` runs 1,000; `make soak TRIALS=100 SEED=7 OUT=/var/tmp/soak` others. What labctl used
while it ran is in OUT as a table (memory.csv) and as a picture (memory.svg)."""

from __future__ import annotations

import csv
import os
import random
import signal
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.conftest import NEEDS_GUESTS
from tests.guest.conftest import QUIET, TWO, Sandbox, changed_study, native_pids

TRIALS = int(os.environ.get("LABCTL_SOAK_TRIALS", "0"))

pytestmark = [
    pytest.mark.faults,
    pytest.mark.guest,
    NEEDS_GUESTS,
    pytest.mark.skipif(TRIALS == 0, reason="an hour long: 'make soak' runs it"),
]

LEAST_S, MOST_S = 2, 60
"""Between two faults: a resumed run boots its guest anew."""


@dataclass(frozen=True)
class Used:
    """What a labctl has at one moment."""

    second: float
    rss_mib: float
    descriptors: int
    threads: int


@dataclass
class Soak:
    sandbox: Sandbox
    rng: random.Random
    began: float = field(default_factory=time.monotonic)
    used: list[Used] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def watch(self, process: subprocess.Popen[str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(OSError, KeyError):  # it has ended
                self.used.append(self._now(process.pid))
            time.sleep(0.25)

    def _now(self, pid: int) -> Used:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        return Used(
            second=round(time.monotonic() - self.began, 2),
            rss_mib=round(int(status["VmRSS"].split()[0]) / 1024, 1),
            descriptors=len(os.listdir(f"/proc/{pid}/fd")),
            threads=int(status["Threads"]),
        )

    def run(self, *words: str) -> int:
        """A sweep, disturbed until it ends; returns its exit status."""
        process = self.sandbox.start(*words, "--quiet")
        ways: Sequence[Callable[[subprocess.Popen[str]], object]] = (
            self.kill_labctl,
            self.interrupt_labctl,
            self.end_labctl,
            self.kill_guest,
            self.stop_guest,
            self.kill_program,
        )
        while process.poll() is None:
            self.watch(process, self.rng.uniform(LEAST_S, MOST_S))
            if process.poll() is None:
                way = self.rng.choice(ways)
                self.faults[way.__name__] += 1
                way(process)
        process.communicate()
        return process.returncode

    def kill_labctl(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait(60)

    def interrupt_labctl(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGINT)
        process.wait(120)

    def end_labctl(self, process: subprocess.Popen[str]) -> None:
        process.terminate()
        process.wait(120)

    def kill_guest(self, process: subprocess.Popen[str]) -> None:
        self._signal(self.sandbox.guest_pids(), signal.SIGKILL)

    def stop_guest(self, process: subprocess.Popen[str]) -> None:
        pids = self.sandbox.guest_pids()
        self._signal(pids, signal.SIGSTOP)
        self.watch(process, 2)
        self._signal(pids, signal.SIGCONT)

    def kill_program(self, process: subprocess.Popen[str]) -> None:
        self._signal(native_pids("sysbench", process), signal.SIGKILL)

    def _signal(self, pids: Sequence[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "memory.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["second", "rss_mib", "descriptors", "threads"])
            writer.writerows([u.second, u.rss_mib, u.descriptors, u.threads] for u in self.used)
        (folder / "memory.svg").write_text(picture(self.used))


def picture(used: Sequence[Used]) -> str:
    """Memory over time, as SVG."""
    last = max(u.second for u in used)
    most = max(u.rss_mib for u in used)
    points = " ".join(
        f"{40 + 740 * u.second / last:.1f},{180 - 160 * u.rss_mib / most:.1f}" for u in used
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 200" font-size="10">'
        f'<text x="2" y="24">{most:.0f} MiB</text><text x="2" y="184">0</text>'
        f'<text x="700" y="196">{last:.0f} s</text>'
        f'<polyline fill="none" stroke="#0072b2" points="{points}"/></svg>\n'
    )


def things() -> dict[str, set[str]]:
    """What a leak would add to on this host."""
    cgroups = {
        str(Path(folder, name))
        for folder, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if "labctl" in name
    }
    return {
        "mounts": {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()},
        "network namespaces": set(os.listdir("/run/netns"))
        if Path("/run/netns").exists()
        else set(),
        "shared memory": set(os.listdir("/dev/shm")),
        "cgroups": cgroups,
    }


def test_no_trial_is_lost_and_nothing_leaks(sandbox: Sandbox, tmp_path: Path) -> None:
    soak = Soak(sandbox, random.Random(int(os.environ.get("LABCTL_SOAK_SEED", "1"))))
    blocks = (TRIALS + 1) // 2
    study = changed_study(
        tmp_path,
        {
            **TWO,
            "blocks: 1\nblocks_per_boot: 1": f"blocks: {blocks}\nblocks_per_boot: {blocks}",
            # A trial that is disturbed again and again is no loss.
            "attempts: 3": "attempts: 10",
        },
    )
    before = things()
    words: tuple[str, ...] = ("sweep", study, "--seed=1", *QUIET, "--duration=1")
    codes = Counter[int]()
    is_clean = True
    while True:
        codes[code := soak.run(*words)] += 1
        if code == 0:
            break
        # What a killed one leaves is removed by the next, unless that is interrupted before.
        if is_clean and code != -signal.SIGKILL:
            assert sandbox.leftovers() == []
        is_clean = code != -signal.SIGKILL and sandbox.leftovers() == []
        # Without a guest nothing began, and the same command begins anew.
        if runs := sandbox.runs():
            words = ("sweep", "--resume", runs[0].name)
        assert code in (-signal.SIGKILL, 3, 4, 130, 143), codes
    soak.write(Path(os.environ.get("LABCTL_SOAK_OUT") or tmp_path))
    (run,) = sandbox.runs()
    done = {t["number"] for t in sandbox.trials(run) if t["status"] == "done"}
    assert done == set(range(1, 2 * blocks + 1)), (codes, soak.faults)
    assert sandbox.labctl("run", "verify", run.name).returncode == 0
    assert sandbox.leftovers() == []
    left = {name: found - before[name] for name, found in things().items()}
    assert {name: found for name, found in left.items() if found} == {}
    third = len(soak.used) // 3
    for what in ("rss_mib", "descriptors", "threads"):
        early, late = (
            statistics.median(getattr(u, what) for u in part)
            for part in (soak.used[:third], soak.used[-third:])
        )
        assert late <= 1.25 * early + 2, (what, early, late)
