"""Each latency tool in a real guest and natively."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.guest.conftest import QUIET, Sandbox

STUDY = Path(__file__).with_name("latency_tools.yaml")


def test_every_latency_tool_yields_its_primary_metric_on_both_sides(sandbox: Sandbox) -> None:
    done = sandbox.labctl("sweep", str(STUDY), *QUIET)
    assert done.returncode == 0, done.stderr
    (run,) = sandbox.runs()
    found: dict[tuple[str, str], set[str]] = {}
    for trial in sandbox.trials(run):
        cell = trial["cell"]["workload"], trial["cell"]["tuning"]
        assert trial["status"] == "done", (cell, trial["reasons"])
        samples = run / "trials" / f"{trial['number']:04d}" / "samples.json"
        values = {s["metric"]: s["value"] for s in json.loads(samples.read_text())["samples"]}
        found[cell] = {metric for metric, value in values.items() if value >= 0}
    workloads = yaml.safe_load(STUDY.read_text())["workloads"]
    for name, declared in workloads.items():
        for tuning in ("native", "baseline"):
            assert declared["primary"] in found[name, tuning], (name, tuning)
    assert sandbox.leftovers() == []
