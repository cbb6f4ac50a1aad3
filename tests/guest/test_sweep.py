"""The whole path on real guests: a small sweep, interrupted ones, and what is left behind."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from labctl.guest.images import Image
from tests.guest.conftest import TINY, Sandbox, Swept, first_run, sandboxed, tiny, wait_for

ALONE = pytest.mark.alone
"""Of the tests that make the run in whose windows labctl's own CPU time is counted: beside the
other lane the same work takes longer."""

BUSY = ("--condition=neighbour", "--duration=900", "--quiet")
"""A trial that lasts until it is interrupted, with everything that may run beside it."""


def _threads(pid: int) -> dict[str, tuple[str, int, str]]:
    """Thread name to policy, priority and CPUs, as chrt(1) and taskset(1) show them."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            tid = int(task.name)
            policy = os.sched_getscheduler(tid)
            priority = os.sched_getparam(tid).sched_priority
            cpus = sorted(os.sched_getaffinity(tid))
        except (OSError, ProcessLookupError):
            continue
        found[name] = ({0: "other", 1: "fifo", 2: "rr"}[policy], priority, str(cpus))
    return found


@ALONE
def test_a_small_sweep_reports_every_arm_and_leaves_nothing_behind(swept: Swept) -> None:
    report = swept.report
    assert report["accelerator"] == "tcg"
    assert (report["trials"]["planned"], report["trials"]["done"]) == (6, 6)
    assert {c["verdict"] for c in report["comparisons"] if c["role"] == "primary"} == {
        "demonstration, no verdict"
    }
    compared = {(c["tuning"], c["against"], c["metric"]) for c in report["comparisons"]}
    assert ("pinned+fifo", "baseline", "events_per_s") in compared
    assert ("pinned+fifo", "native+fifo", "latency_p95") in compared
    reasons = {item["metric"]: item["reason"] for item in report["unavailable"]}
    assert "no VM exits" in reasons["exits"]
    assert swept.leftovers == []


@ALONE
def test_nothing_of_labctl_runs_in_a_measured_window_of_a_first_run(
    swept: Swept, kept: Path, tmp_path: Path
) -> None:
    busy = _windows_with_labctl(swept.sandbox)
    if busy:  # CPU time that a hypervisor below takes is charged to labctl, not always as steal.
        with first_run(kept, tmp_path) as again:
            busy &= _windows_with_labctl(again.sandbox)
    assert busy == set()


def _windows_with_labctl(sandbox: Sandbox) -> set[str]:
    """Return the trials in whose window labctl had 3 ms of CPU time per second, beside steal."""
    (run,) = sandbox.runs()
    shares, stolen = {}, {}
    for trial in run.glob("trials/*/samples.json"):
        samples = json.loads(trial.read_text())["samples"]
        (own,) = [s["value"] for s in samples if s["labels"] == {"thread": "labctl"}]
        shares[trial.parent.name] = own
        shares_of_all = [s["value"] for s in samples if s["metric"] == "host_steal"]
        stolen[trial.parent.name] = sum(shares_of_all) * (os.cpu_count() or 1)
    assert len(shares) >= 6
    assert len([share for share in stolen.values() if share == 0]) >= 2
    return {name for name, own in shares.items() if own >= 0.003 + stolen[name]}


def test_both_sides_have_run_the_same_files_libraries_included(swept: Swept) -> None:
    (path,) = swept.sandbox.runs()
    hashed = json.loads((path / "run.json").read_text())["hashed"]
    native, guest = (hashed[side]["files"] for side in ("native", "guest"))
    assert hashed["unproven"] == []
    assert native == guest
    names = {Path(name).name.partition(".")[0] for name in guest}
    assert {"sysbench", "libluajit-5", "libc", "ld-linux-x86-64", "python3"} <= names
    # Natively at the start and before each machine's first trial, in the guest in each boot.
    natives = {"native", "native+fifo"}
    machines = [t for t in swept.sandbox.trials(path) if t["cell"]["tuning"] in natives]
    assert 1 < hashed["native"]["checks"] <= 1 + len(machines)
    assert hashed["guest"]["checks"] >= 1


def test_what_a_run_keeps_is_closed_to_other_users(swept: Swept, image: Image) -> None:
    (run,) = swept.sandbox.runs()
    assert run.stat().st_mode & 0o777 == 0o700
    assert image.tree.stat().st_mode & 0o777 == 0o700
    for file in (image.disk, image.kernel, *image.prepared_dir.glob("*.qcow2")):
        assert file.stat().st_mode & 0o007 == 0


def test_raw_files_alone_give_the_same_samples_again(swept: Swept) -> None:
    (run,) = swept.sandbox.runs()
    samples = {path: path.read_text() for path in run.glob("trials/*/samples.json")}
    assert samples
    for path in samples:
        path.unlink()
    again = swept.sandbox.labctl("run", "reparse", run.name)
    assert again.returncode == 0, again.stderr
    assert {path: path.read_text() for path in samples} == samples


def test_instructions_were_counted_twice_and_the_counts_bound_each_other(swept: Swept) -> None:
    (run,) = swept.sandbox.runs()
    (row,) = json.loads((run / "run.json").read_text())["calibration"]
    assert row["second_method"] in ("lackey", "perf")
    assert row["second"] != row["native"]  # two tools, each with what it adds
    # An operation is some 150,000 instructions: what else is counted is the program's own threads.
    assert 0 < row["bound"] < 0.05
    stored = [json.loads(path.read_text()) for path in run.glob("trials/*/calibration.json")]
    assert stored
    assert {count["bound"] for count in stored} == {row["bound"]}


@dataclass(frozen=True)
class Running:
    """A sweep in the measured trial of a guest with a FIFO vCPU, beside a neighbour; the guest's
    QEMU and its threads."""

    sandbox: Sandbox
    process: subprocess.Popen[str]
    qemu: int
    threads: dict[str, tuple[str, int, str]]


@pytest.fixture(scope="module")
def running(
    image: Image, kept: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """The last test that uses it ends it."""
    with sandboxed(kept, tmp_path_factory.mktemp("results")) as sandbox:
        process = sandbox.start(*tiny("pinned+fifo"), *BUSY)
        try:
            wait_for(lambda: sandbox.measured_trials(), 600, "a measured trial", process)
            (pid,) = sandbox.guest_pids()
            yield Running(sandbox, process, pid, _threads(pid))
        finally:
            process.kill()
            process.communicate(timeout=60)


def test_threads_of_a_running_trial_have_the_policies_and_cpus_asked_for(running: Running) -> None:
    (run,) = running.sandbox.runs()
    plan = json.loads((run / "run.json").read_text())["pin_plan"]["data"]
    vcpu_cpus, emulator_cpus = plan["vcpus"]["0"], plan["emulator"]
    assert running.threads["CPU 0/TCG"] == ("fifo", 1, f"[{vcpu_cpus}]")
    assert running.threads["qemu-system-x86"] == ("other", 0, f"[{emulator_cpus}]")


def test_qemu_is_an_ordinary_user_in_a_sandbox_and_a_dev_of_its_own(running: Running) -> None:
    account = pwd.getpwnam("libvirt-qemu")
    lines = Path(f"/proc/{running.qemu}/status").read_text().splitlines()
    status = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    assert status["Uid"] == [str(account.pw_uid)] * 4
    assert "0" not in status["Gid"] + status["Groups"]
    assert {int(status[kind][0], 16) for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == ["1"]
    assert status["Seccomp"] == ["2"]
    assert os.readlink(f"/proc/{running.qemu}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
    (run,) = running.sandbox.runs()
    record = json.loads((run / "run.json").read_text())
    assert record["qemu_user"] == {"name": "libvirt-qemu", "why_root": []}


def test_qemus_user_reaches_its_own_disks_and_nothing_else(running: Running, image: Image) -> None:
    account = pwd.getpwnam("libvirt-qemu")
    groups = ",".join(map(str, os.getgrouplist(account.pw_name, account.pw_gid)))
    who = ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}")

    def may(right: str, path: Path) -> bool:
        assert path.exists()
        argv = [*who, f"--groups={groups}", "test", right, str(path)]
        return subprocess.run(argv, check=False).returncode == 0

    state, (run,) = running.sandbox.state, running.sandbox.runs()
    work = state / "running"
    (disk,) = work.glob("restored-*.qcow2")
    assert may("-w", disk)
    assert may("-w", state / "data/data.img")
    assert may("-r", image.disk)
    assert not may("-w", image.disk)
    closed = [run / "run.json", *work.glob("*.save"), work / "console.log", image.tree / "etc"]
    for path in (*closed, state / "journal.jsonl"):
        assert not may("-r", path), path
    for folder in (run, work, image.dir, image.dir.parent, state / "data", state, state / "lv"):
        assert not may("-r", folder), folder  # it passes through, and lists nothing
    for folder in (work, work / "sockets", image.dir, state, state / "lv", state / "lv/etc"):
        assert not may("-w", folder), folder


def test_a_second_run_is_told_who_runs(running: Running) -> None:
    second = running.sandbox.labctl(*tiny())
    assert second.returncode == 3
    assert str(running.process.pid) in second.stderr
    assert f"labctl sweep {TINY}" in second.stderr


def _interrupted(sandbox: Sandbox, process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == 130
    (run,) = sandbox.runs()
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert sandbox.leftovers() == []


def test_a_run_that_is_asked_to_end_leaves_nothing_behind(running: Running) -> None:
    _interrupted(running.sandbox, running.process, signal.SIGTERM)


def test_a_run_that_is_interrupted_leaves_nothing_behind(sandbox: Sandbox) -> None:
    process = sandbox.start(*tiny("native"), *BUSY)
    wait_for(lambda: sandbox.measured_trials(), 600, "a measured trial", process)
    _interrupted(sandbox, process, signal.SIGINT)


def test_a_state_folder_that_qemus_user_cannot_pass_through_forces_root(sandbox: Sandbox) -> None:
    sandbox.state.chmod(0o700)
    done = sandbox.labctl(*tiny())
    assert done.returncode == 0, done.stderr
    why = f"libvirt-qemu can't pass through {sandbox.state} (mode 0700, owner 0:0)"
    assert (done.stdout + done.stderr).count(f"QEMU runs as root, because {why}.") == 1
    (run,) = sandbox.runs()
    record = json.loads((run / "run.json").read_text())
    assert record["qemu_user"] == {"name": "root", "why_root": [why]}
    assert sandbox.leftovers() == []
