"""The whole path on real guests: a small sweep, interrupted ones, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labctl.base.places import StatePlaces
from labctl.guest.images import Image
from labctl.run.leftovers import leftover_cgroups
from tests.guest.conftest import QUIET, STUDY, TINY, Sandbox, sandboxed, tiny, wait_for

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


@dataclass(frozen=True)
class Swept:
    """A small sweep that is over. `leftovers`: what was on the host when it had ended."""

    sandbox: Sandbox
    report: dict[str, Any]
    leftovers: list[str]


@pytest.fixture(scope="module")
def swept(image: Image, kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swept]:
    with sandboxed(kept, tmp_path_factory.mktemp("results")) as sandbox:
        done = sandbox.labctl("sweep", str(STUDY), "--seed=1", *QUIET, "--json")
        assert done.returncode == 0, done.stderr
        yield Swept(sandbox, json.loads(done.stdout), sandbox.leftovers())


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
    threads."""

    sandbox: Sandbox
    process: subprocess.Popen[str]
    threads: dict[str, tuple[str, int, str]]


def _measured_trials(sandbox: Sandbox) -> list[Path]:
    """Folders of trials that are warm and not yet over."""
    return [
        path.parent
        for run in sandbox.runs()
        for path in run.glob("trials/*/warmup.json")
        if not path.with_name("host.json").exists()
    ]


@pytest.fixture(scope="module")
def running(
    image: Image, kept: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """The last test that uses it ends it."""
    with sandboxed(kept, tmp_path_factory.mktemp("results")) as sandbox:
        process = sandbox.start(*tiny("pinned+fifo"), *BUSY)
        try:
            wait_for(lambda: _measured_trials(sandbox), 600, "a measured trial", process)
            (pid,) = sandbox.qemu_pids()
            yield Running(sandbox, process, _threads(pid))
        finally:
            process.kill()
            process.communicate(timeout=60)


def test_threads_of_a_running_trial_have_the_policies_and_cpus_asked_for(running: Running) -> None:
    (run,) = running.sandbox.runs()
    plan = json.loads((run / "run.json").read_text())["pin_plan"]["data"]
    vcpu_cpus, emulator_cpus = plan["vcpus"]["0"], plan["emulator"]
    assert running.threads["CPU 0/TCG"] == ("fifo", 1, f"[{vcpu_cpus}]")
    assert running.threads["qemu-system-x86"] == ("other", 0, f"[{emulator_cpus}]")


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
    wait_for(lambda: _measured_trials(sandbox), 600, "a measured trial", process)
    _interrupted(sandbox, process, signal.SIGINT)


def test_a_killed_run_is_cleaned_up_and_resumed_where_it_stopped(sandbox: Sandbox) -> None:
    process = sandbox.start(*tiny("native"), "--quiet")

    def a_trial_is_done_and_a_guest_runs() -> bool:
        runs = sandbox.runs()
        return bool(runs and sandbox.trials(runs[0]) and sandbox.qemu_pids())

    wait_for(a_trial_is_done_and_a_guest_runs, 600, "the first trial", process)
    process.kill()
    process.communicate(timeout=60)
    run = sandbox.runs()[0]
    before = {trial["number"]: trial["started_at"] for trial in sandbox.trials(run)}
    assert 0 < len(before) < 3
    assert leftover_cgroups(StatePlaces(sandbox.state))
    done = sandbox.labctl("sweep", "--resume", run.name, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"]["done"] == 3
    after = {trial["number"]: trial["started_at"] for trial in sandbox.trials(run)}
    assert {number: after[number] for number in before} == before
    assert sandbox.leftovers() == []


def test_a_guest_that_dies_mid_trial_costs_one_attempt(sandbox: Sandbox) -> None:
    process = sandbox.start(*tiny("baseline"), "--duration=4", "--quiet")

    def guest_in_a_trial() -> int | None:
        return next(iter(sandbox.qemu_pids()), None) if _measured_trials(sandbox) else None

    pid = wait_for(guest_in_a_trial, 600, "a measured trial in a guest", process)
    os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, out
    trials = sandbox.trials(sandbox.runs()[0])
    reasons = [trial["reasons"][0] for trial in trials if trial["status"] == "invalid"]
    assert any("ended while labctl was talking to it" in reason for reason in reasons)
    assert sum(trial["status"] == "done" for trial in trials) == 3
    assert sandbox.leftovers() == []
