"""A run of real guests that its rule ends, and that is killed while it is given more blocks."""

from __future__ import annotations

import json
from pathlib import Path

from tests.guest.conftest import Sandbox, wait_for

TWO_ARMS = Path(__file__).parent / "two_arms.yaml"


def test_a_run_ends_by_its_width_and_an_extension_that_was_killed_is_resumed(
    sandbox: Sandbox,
) -> None:
    done = sandbox.labctl("sweep", str(TWO_ARMS), "--seed=1", "--accel=tcg", "--json")
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)
    (run,) = sandbox.runs()
    assert planned["ending"].startswith(
        "The run ended after 10 of up to 11 blocks: every primary interval was within ±95 %"
    )
    assert (planned["trials"]["planned"], planned["trials"]["done"]) == (20, 20)
    assert "at most 22 trials" in done.stderr
    plan = (run / "plan.json").read_bytes()
    assert json.loads(plan)["blocks"] == 11

    again = sandbox.labctl("sweep", "--resume", run.name)
    assert again.returncode == 0, again.stderr
    assert "nothing is left to do" in again.stderr

    before = {trial["number"]: trial["started_at"] for trial in sandbox.trials(run)}
    extending = sandbox.start("sweep", "--extend", run.name, "--blocks=1", "--quiet")
    wait_for(
        lambda: len(sandbox.trials(run)) > len(before) and sandbox.qemu_pids(),
        600,
        "the first trial of block 11",
        extending,
    )
    extending.kill()
    extending.communicate(timeout=60)
    refused = sandbox.labctl("sweep", "--extend", run.name, "--blocks=1")
    assert refused.returncode == 2
    assert "is not finished (status: running)" in refused.stderr
    assert f"labctl sweep --resume {run.name}" in refused.stderr

    resumed = sandbox.labctl("sweep", "--resume", run.name, "--json")
    assert resumed.returncode == 0, resumed.stderr
    report = json.loads(resumed.stdout)
    assert (report["trials"]["planned"], report["trials"]["done"]) == (22, 22)
    assert (run / "plan.json").read_bytes() == plan
    trials = {trial["number"]: trial for trial in sandbox.trials(run) if trial["status"] == "done"}
    assert {number: trials[number]["started_at"] for number in before} == before
    longer = json.loads(plan)["trials"]
    assert [trials[trial["number"]]["cell"] for trial in longer] == [t["cell"] for t in longer]
    assert {trials[t["number"]]["boot"] for t in longer if t["block"] <= 10} == {1}
    assert min(trials[t["number"]]["boot"] for t in longer if t["block"] > 10) > 1

    assert report["added"]["label"] == (
        "exploratory: block 11 was added after the result was known"
    )
    assert {c["verdict"] for c in report["added"]["comparisons"]} == {None}
    assert report["comparisons"] == planned["comparisons"]
    assert sandbox.leftovers() == []
