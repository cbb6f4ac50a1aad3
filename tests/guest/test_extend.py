"""A run of real guests that is killed, that its rule ends, and that is killed again while it is
given more blocks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from labctl.base.paths import StatePaths
from labctl.run.guests.leftovers import leftover_cgroups
from tests.guest.conftest import Sandbox, wait_for

TWO_ARMS = Path(__file__).parent / "two_arms.yaml"

COUNT = r"""
description: a shell counts
operation: one number
trial: {kind: once, limit_s: 60, warm_up: {runs: 1}}
command:
  - /bin/sh
  - -c
  - |
    began=$(date +%s%N)
    n=0
    while [ $n -lt 1500 ]; do n=$((n + 1)); done
    echo "{\"counted\": $n, \"per_s\": $((n * 1000000000 / ($(date +%s%N) - began)))}"
operations: {json: counted}
metrics:
  counted_per_s: {json: per_s, unit: 1/s, better: higher}
primary: counted_per_s
times: false
"""
"""A workload whose trials take no second."""


def killed(sandbox: Sandbox, process: subprocess.Popen[str], done: int) -> dict[int, str]:
    """Kill a run when it has more than so many trials, in the midst of another one's guest.
    Returns of each trial that it has when it began."""

    def has_more_and_a_guest() -> bool:
        runs = sandbox.runs()
        return bool(runs and len(sandbox.trials(runs[0])) > done and sandbox.guest_pids())

    wait_for(has_more_and_a_guest, 600, f"trial {done + 1}", process)
    process.kill()
    process.communicate(timeout=60)
    assert leftover_cgroups(StatePaths(sandbox.state))
    return began(sandbox)


def began(sandbox: Sandbox) -> dict[int, str]:
    trials = sandbox.trials(sandbox.runs()[0])
    return {trial["number"]: trial["started_at"] for trial in trials if trial["status"] == "done"}


def test_a_run_that_is_killed_goes_on_where_it_stopped_ends_by_its_width_and_is_extended_so(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    workloads = tmp_path / "lab" / "benchmarks" / "workloads"
    workloads.mkdir(parents=True)
    (workloads / "count.yaml").write_text(COUNT)
    lab = f"--lab={tmp_path / 'lab'}"
    words = (lab, "sweep", str(TWO_ARMS), "--seed=1", "--accel=tcg", "--quiet")
    first = killed(sandbox, sandbox.start(*words), 0)
    assert 0 < len(first) < 20
    (run,) = sandbox.runs()
    done = sandbox.labctl(lab, "sweep", "--resume", run.name, "--json")
    assert done.returncode == 0, done.stderr
    assert sandbox.leftovers() == []
    planned = json.loads(done.stdout)
    assert planned["ending"].startswith(
        "The run ended after 10 of up to 11 blocks: every primary interval was within ±95 %"
    )
    assert (planned["trials"]["planned"], planned["trials"]["done"]) == (20, 20)
    assert "at most 22 trials" in done.stderr
    plan = (run / "plan.json").read_bytes()
    assert json.loads(plan)["blocks"] == 11
    before = began(sandbox)
    assert before.items() >= first.items()

    again = sandbox.labctl(lab, "sweep", "--resume", run.name)
    assert again.returncode == 0, again.stderr
    assert "nothing to do" in again.stderr

    extending = sandbox.start(lab, "sweep", "--extend", run.name, "--blocks=1", "--quiet")
    killed(sandbox, extending, len(sandbox.trials(run)))
    refused = sandbox.labctl(lab, "sweep", "--extend", run.name, "--blocks=1")
    assert refused.returncode == 2
    assert "is not finished (status: running)" in refused.stderr
    assert f"labctl sweep --resume {run.name}" in refused.stderr

    resumed = sandbox.labctl(lab, "sweep", "--resume", run.name, "--json")
    assert resumed.returncode == 0, resumed.stderr
    report = json.loads(resumed.stdout)
    assert (report["trials"]["planned"], report["trials"]["done"]) == (22, 22)
    assert (run / "plan.json").read_bytes() == plan
    assert began(sandbox).items() >= before.items()
    trials = {trial["number"]: trial for trial in sandbox.trials(run) if trial["status"] == "done"}
    longer = json.loads(plan)["trials"]
    assert [trials[trial["number"]]["cell"] for trial in longer] == [t["cell"] for t in longer]
    assert {trials[t["number"]]["boot"] for t in longer if t["block"] <= 10} == {1, 2}
    assert min(trials[t["number"]]["boot"] for t in longer if t["block"] > 10) > 2

    assert report["added"]["label"] == (
        "exploratory: block 11 was added after the result was known"
    )
    assert {c["verdict"] for c in report["added"]["comparisons"]} == {None}
    assert report["comparisons"] == planned["comparisons"]
    assert sandbox.leftovers() == []
