"""Guests that fail in the middle of a trial, and a host that fails them. A fault costs its own
trials; every other one is measured, and nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from labctl.guest.images import Image
from tests.faults.conftest import NEEDS_GUESTS
from tests.guest.conftest import QUIET, Sandbox, seed_for, tiny, wait_for
from tests.guest.test_failures import small_disk

pytestmark = [pytest.mark.faults, pytest.mark.guest, NEEDS_GUESTS]

ALLOWED = "labctl.fault_is_allowed"
"""On the command line of kernels that may be broken: never on that of the host's own."""

PROGRAM = f"""\
description: breaks its guest if it is told to, after it ran well once, and never anything else
parameters:
  how: {{choice: well, of: [well, panic, reboot, full, mute], description: what it breaks}}
user: root
trial: {{kind: once, limit_s: 20}}
command:
  - sh
  - -c
  - |
    if grep -qw {ALLOWED} /proc/cmdline && ! mkdir /var/tmp/first 2>/dev/null; then
      case $0 in
        panic) echo c >/proc/sysrq-trigger;;
        reboot) echo b >/proc/sysrq-trigger;;
        full) fallocate -l "$(df --output=avail -B1 / | tail -1)" /full;;
        mute) kill -STOP $PPID;;
      esac
    fi
    echo "value 3"
  - "{{{{ how }}}}"
metrics:
  value: {{regex: '^value (\\d+)$', unit: count, better: higher}}
primary: value
times: false
"""

STUDY = """\
title: Guests that break
description: For tests of faults; each workload breaks the guest that it runs in.
roles: {baseline: baseline, native: native}
tunings: [native, baseline]
workloads:
  panic: {program: breaks, parameters: {how: panic}, primary: value}
  well: {program: breaks, parameters: {how: well}, primary: value}
  reboot: {program: breaks, parameters: {how: reboot}, primary: value}
  full: {program: breaks, parameters: {how: full}, primary: value}
  mute: {program: breaks, parameters: {how: mute}, primary: value}
conditions: [quiet]
blocks: 1
blocks_per_boot: 1
guest: {image: debian-13, vcpus: auto, memory_mib: 512}
limits: {attempts: 1, other_cpu: 1000, warmup_cap_s: 5}
"""


def test_a_guest_that_panics_reboots_or_falls_silent_costs_its_own_trial(
    sandbox: Sandbox, image: Image, tmp_path: Path
) -> None:
    study = tmp_path / "breaks.yaml"
    study.write_text(STUDY)
    lab = tmp_path / "lab"
    (lab / "benchmarks/workloads").mkdir(parents=True)
    (lab / ".labctl-lab").touch()
    (lab / "benchmarks/workloads/breaks.yaml").write_text(PROGRAM)
    sandbox.shadow_image(image, command_line=f"{image.command_line} {ALLOWED}")
    done = sandbox.labctl("sweep", str(study), *QUIET, lab=lab, seconds=900)
    (run,) = sandbox.runs()
    trials = sandbox.trials(run)
    what = {(t["cell"]["tuning"], t["cell"]["workload"]): t for t in trials}
    states = {cell: (t["status"], t["reasons"]) for cell, t in what.items()}
    assert done.returncode == 0, f"{done.stderr}{states}"
    assert all(what["native", name]["status"] == "done" for _, name in what), str(states)
    assert what["baseline", "well"]["status"] == "done", str(states)
    for name in ("panic", "reboot", "mute"):
        status, reasons = states["baseline", name]
        assert status == "invalid", str(states)
        assert "the guest" in reasons[0], str(states)
    assert "panic" in states["baseline", "panic"][1][0], "its console's last words"
    assert sandbox.leftovers() == []


FAILING_DISK = """\
#!/usr/bin/python3
import json, os, sys

words = sys.argv[1:]
fails = os.path.exists("FLAG")
for place, word in enumerate(words):
    file = json.loads(word) if fails and word.startswith("{") else {}
    if file.get("filename", "").endswith("/data.img"):
        name = file.pop("node-name")
        broken = {"event": "none", "iotype": "write", "errno": 5}
        words[place] = json.dumps(
            {"driver": "blkdebug", "node-name": name, "image": file, "inject-error": [broken]}
        )
os.execv("/mnt/usr/bin/qemu-system-x86_64", ["qemu-system-x86_64", *words])
"""
"""QEMU, whose data disk takes no write when FLAG is there: its blkdebug driver answers EIO."""

IN_ITS_PLACE = """\
mount -t tmpfs -o mode=755 labctl-test /mnt
mkdir -p /mnt/usr/bin
cp {qemu} /mnt/usr/bin/
ln -s /usr/lib /usr/share /mnt/usr/
mount --bind {script} {qemu}
exec "$@"
"""

DISKS = """\
title: A disk that fails
description: For a test of faults.
roles: {baseline: baseline, native: native}
tunings: [native, baseline]
workloads:
  writes: {program: fio-fsync, primary: iops, duration_s: 1}
  reads: {program: fio-random, primary: iops, duration_s: 1}
conditions: [quiet]
blocks: 1
blocks_per_boot: 1
guest: {image: debian-13, vcpus: auto, memory_mib: 512}
limits: {attempts: 1, other_cpu: 1000, warmup_cap_s: 5}
"""


@dataclass(frozen=True)
class OtherQemu(Sandbox):
    """A sandbox in whose mount namespace a script stands for QEMU."""

    script: Path = field(kw_only=True)

    def argv(self, *words: str) -> list[str]:
        steps = IN_ITS_PLACE.format(qemu=shutil.which("qemu-system-x86_64"), script=self.script)
        shell = ("unshare", "--mount", "--propagation=private", "sh", "-e", "-c", steps, "sh")
        return [*shell, *super().argv(*words)]


@pytest.fixture
def failing(sandbox: Sandbox, tmp_path: Path) -> OtherQemu:
    script = tmp_path / "qemu"
    script.write_text(FAILING_DISK.replace("FLAG", str(sandbox.state / "fails")))
    script.chmod(0o755)
    return OtherQemu(sandbox.state, sandbox.results, pids=sandbox.pids, script=script)


def disks(folder: Path) -> tuple[str, ...]:
    (folder / "disks.yaml").write_text(DISKS)
    seed = seed_for("native", ("native", "baseline"))
    return ("sweep", str(folder / "disks.yaml"), f"--seed={seed}", *QUIET)


def test_a_disk_that_fails_in_a_guest_from_the_start_is_told_before_anything_is_measured(
    failing: OtherQemu, tmp_path: Path
) -> None:
    (failing.state / "fails").touch()
    done = failing.labctl(*disks(tmp_path), seconds=900)
    assert done.returncode == 4
    assert "fio-fsync fails in the guest" in done.stderr
    assert "Input/output error" in done.stderr
    assert all(failing.trials(run) == [] for run in failing.runs())
    assert failing.leftovers() == []


def test_a_disk_that_fails_in_a_guest_in_the_middle_costs_the_trials_that_need_it(
    failing: OtherQemu, tmp_path: Path
) -> None:
    sweeping = failing.start(*disks(tmp_path), "--quiet")
    wait_for(lambda: any(failing.results.glob("*/trials/*/trial.json")), 600, "a trial", sweeping)
    (failing.state / "fails").touch()
    said, _ = sweeping.communicate(timeout=900)
    (run,) = failing.runs()
    what = {(t["cell"]["tuning"], t["cell"]["workload"]): t for t in failing.trials(run)}
    states = {cell: (t["status"], t["reasons"]) for cell, t in what.items()}
    assert sweeping.returncode == 0, f"{said}{states}"
    status, reasons = states.pop(("baseline", "writes"))
    assert status == "invalid"
    assert "Input/output error" in reasons[0]
    assert [status for status, _ in states.values()] == ["done"] * 3, str(states)
    assert failing.leftovers() == []


def test_a_qemu_that_does_not_run_is_told_before_anything_is_measured(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    script = tmp_path / "qemu"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    other = OtherQemu(sandbox.state, sandbox.results, pids=sandbox.pids, script=script)
    done = other.labctl(*tiny())
    assert done.returncode == 3
    assert "libvirt finds no QEMU that works" in done.stderr
    assert all(sandbox.trials(run) == [] for run in sandbox.runs())
    assert sandbox.leftovers() == []


def test_a_guest_that_gets_no_time_for_ten_seconds_is_measured_again_or_as_it_was(
    sandbox: Sandbox,
) -> None:
    process = sandbox.start(*tiny("baseline"), "--quiet")

    def guest_in_a_trial() -> int | None:
        return next(iter(sandbox.guest_pids()), None) if sandbox.measured_trials() else None

    pid = wait_for(guest_in_a_trial, 600, "a measured trial in a guest", process)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(10)
    os.kill(pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    trials = sandbox.trials(sandbox.runs()[0])
    done = [t["cell"]["tuning"] for t in trials if t["status"] == "done"]
    assert sorted(done) == ["baseline", "native", "pinned+fifo"]
    assert sandbox.leftovers() == []


@pytest.mark.parametrize("how", ["read-only", "inodes"])
def test_a_results_disk_that_fails_in_the_middle_ends_the_run_which_goes_on(
    sandbox: Sandbox, how: str
) -> None:
    results = sandbox.results
    with small_disk(results, "50m"):
        sweeping = sandbox.start(*tiny(), "--quiet")
        wait_for(sandbox.runs, 120, "the start of the run", of=sweeping)
        (run,) = sandbox.runs()
        wait_for(lambda: any(run.glob("trials/*/trial.json")), 300, "a trial", of=sweeping)
        worse = {"read-only": "ro", "inodes": f"nr_inodes={_inodes(results)}"}[how]
        better = {"read-only": "rw", "inodes": "nr_inodes=100000"}[how]
        _remount(results, worse)
        said, _ = sweeping.communicate(timeout=300)
        _remount(results, better)
        assert sweeping.returncode == 3, said
        assert "Traceback" not in said
        assert {"read-only": "Read-only file system", "inodes": "No space left"}[how] in said
        assert sandbox.leftovers() == []
        again = sandbox.labctl("sweep", "--resume", run.name, "--json")
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["trials"]["done"] == 3


def _inodes(folder: Path) -> int:
    """So many as there are, so that no file can be made."""
    found = os.statvfs(folder)
    return found.f_files - found.f_ffree


def _remount(folder: Path, option: str) -> None:
    # Busy while a file is open for writing: labctl closes its own within milliseconds.
    for _ in range(100):
        argv = ["mount", "-o", f"remount,{option}", str(folder)]
        if subprocess.run(argv, check=False, capture_output=True).returncode == 0:
            return
        time.sleep(0.02)
    raise AssertionError(f"{folder} could not be remounted {option}")
