"""The whole path on real guests: a small sweep, interrupted ones, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.guest.conftest import STUDY, Sandbox, wait_for

SMALL = ("sweep", str(STUDY), "--seed=1", "--condition=quiet", "--accel=tcg")


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


def test_a_small_sweep_reports_every_arm_and_leaves_nothing_behind(sandbox: Sandbox) -> None:
    done = sandbox.labctl(*SMALL, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
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
    assert sandbox.leftovers() == []


def test_threads_of_a_running_trial_have_the_policies_and_cpus_asked_for(sandbox: Sandbox) -> None:
    process = sandbox.start(*SMALL, "--blocks=3", "--duration=5", "--quiet")
    try:

        def fifo_threads() -> dict[str, tuple[str, int, str]] | None:
            for pid in sandbox.qemu_pids():
                threads = _threads(pid)
                if threads.get("CPU 0/TCG", ("",))[0] == "fifo":
                    return threads
            return None

        threads = wait_for(fifo_threads, 240, "a trial with a FIFO vCPU")
        run = sandbox.runs()[0]
        plan = json.loads((run / "run.json").read_text())["pin_plan"]["data"]
        vcpu_cpus, emulator_cpus = plan["vcpus"]["0"], plan["emulator"]
        assert threads["CPU 0/TCG"] == ("fifo", 1, f"[{vcpu_cpus}]")
        assert threads["qemu-system-x86"] == ("other", 0, f"[{emulator_cpus}]")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert sandbox.leftovers() == []


def test_a_killed_run_is_cleaned_up_and_resumed_where_it_stopped(sandbox: Sandbox) -> None:
    process = sandbox.start(*SMALL, "--quiet")

    def a_trial_is_done_and_a_guest_runs() -> bool:
        runs = sandbox.runs()
        return bool(runs and sandbox.trials(runs[0]) and sandbox.qemu_pids())

    wait_for(a_trial_is_done_and_a_guest_runs, 240, "the first trial")
    process.kill()
    process.communicate(timeout=60)
    run = sandbox.runs()[0]
    before = {trial["number"]: trial["started_at"] for trial in sandbox.trials(run)}
    assert 0 < len(before) < 6
    done = sandbox.labctl("sweep", "--resume", run.name, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"]["done"] == 6
    after = {trial["number"]: trial["started_at"] for trial in sandbox.trials(run)}
    assert {number: after[number] for number in before} == before
    assert sandbox.leftovers() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_behind(sandbox: Sandbox, number: signal.Signals) -> None:
    process = sandbox.start(*SMALL, "--condition=neighbour", "--duration=20", "--quiet")
    wait_for(lambda: sandbox.runs() and list(sandbox.runs()[0].glob("trials/*")), 240, "a trial")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads((sandbox.runs()[0] / "run.json").read_text())["status"] == "interrupted"
    assert sandbox.leftovers() == []


def test_a_second_run_is_told_who_runs(sandbox: Sandbox) -> None:
    process = sandbox.start(*SMALL, "--quiet")
    try:
        wait_for(sandbox.runs, 60, "the start of the first run")
        second = sandbox.labctl(*SMALL)
        assert second.returncode == 3
        assert str(process.pid) in second.stderr
        assert f"labctl sweep {STUDY}" in second.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_a_guest_that_dies_mid_trial_costs_one_attempt(sandbox: Sandbox) -> None:
    process = sandbox.start(*SMALL, "--duration=4", "--quiet")

    def guest_in_a_trial() -> int | None:
        for run in sandbox.runs():
            for folder in run.glob("trials/*"):
                if (folder / "warmup.json").exists() and not (folder / "host.json").exists():
                    return next(iter(sandbox.qemu_pids()), None)
        return None

    pid = wait_for(guest_in_a_trial, 240, "a measured trial in a guest")
    os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=400)
    assert process.returncode == 0, out
    trials = sandbox.trials(sandbox.runs()[0])
    reasons = [trial["reasons"][0] for trial in trials if trial["status"] == "invalid"]
    assert any("ended while labctl was talking to it" in reason for reason in reasons)
    assert sum(trial["status"] == "done" for trial in trials) == 6
    assert sandbox.leftovers() == []


def test_raw_files_alone_give_the_same_samples_again(sandbox: Sandbox) -> None:
    done = sandbox.labctl(*SMALL, "--json")
    assert done.returncode == 0, done.stderr
    run = sandbox.runs()[0]
    samples = {path: path.read_text() for path in run.glob("trials/*/samples.json")}
    assert samples
    for path in samples:
        path.unlink()
    again = sandbox.labctl("run", "reparse", run.name)
    assert again.returncode == 0, again.stderr
    assert {path: path.read_text() for path in samples} == samples
