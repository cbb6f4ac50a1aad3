"""A gate after each batch of a fleet: who is let pass, and who is left untouched."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from labctl.base.errors import ExitCode
from tests.fleet.conftest import SEED, Rig


def policy(folder: Path, *, kept: bool) -> Path:
    """A policy that the stand-in's run keeps, or breaks, for sure."""
    path = folder / "policy.yaml"
    rule: dict[str, object] = {"name": "fast", "tuning": "baseline", "metric": "events_per_s"}
    rule["above"] = 1 if kept else 10**9
    path.write_text(yaml.safe_dump({"undecided": "fail", "rules": [rule]}))
    return path


@pytest.mark.hosts(5)
def test_a_canary_that_breaks_the_policy_stops_the_rest_untouched(rig: Rig, tmp_path: Path) -> None:
    swept = rig.sweep(tmp_path, "--policy", policy(tmp_path, kept=False))
    assert swept.done.returncode == ExitCode.FOUND
    assert swept.statuses == {
        "h1": "done", **dict.fromkeys(("h2", "h3", "h4", "h5"), "not touched"),
    }  # fmt: skip
    assert "violated" in swept.reason("h1")
    assert swept.reason("h4") == "not touched: the gate failed on h1"
    for host in ("h2", "h3", "h4"):
        assert rig.calls(host) == []


@pytest.mark.hosts(3)
def test_a_canary_that_measured_something_else_fails_before_the_gate(
    rig: Rig, tmp_path: Path
) -> None:
    """Its run keeps the policy, and is not the one that was asked for."""
    swept = rig.sweep(tmp_path, "--policy", policy(tmp_path, kept=True), seed=SEED + 1)
    assert swept.statuses == {"h1": "failed", "h2": "not touched", "h3": "not touched"}
    assert f"measured with another seed: expected {SEED + 1}, got {SEED}" in swept.reason("h1")
    assert rig.calls("h2") == []


@pytest.mark.hosts(5)
def test_a_canary_that_keeps_the_policy_lets_the_rest_go(rig: Rig, tmp_path: Path) -> None:
    swept = rig.sweep(tmp_path, "--policy", policy(tmp_path, kept=True), "--serial", "1,2,100%")
    assert swept.statuses == {
        **dict.fromkeys(("h1", "h2", "h3", "h4"), "done"), "h5": "unreachable",
    }  # fmt: skip
    batches = {host: one["batch"] for host, one in swept.said["hosts"].items()}
    assert batches == {"h1": 1, "h2": 2, "h3": 2, "h4": 3, "h5": 3}


@pytest.mark.hosts(3)
def test_a_canary_that_cannot_be_reached_lets_nobody_pass(rig: Rig, tmp_path: Path) -> None:
    assert rig.run("/run/rig/die", "h1").returncode == 0
    swept = rig.sweep(tmp_path, "--policy", policy(tmp_path, kept=True))
    assert swept.statuses == {"h1": "unreachable", "h2": "not touched", "h3": "not touched"}
    assert rig.calls("h2") == []


@pytest.mark.hosts(3)
def test_without_a_policy_a_lost_batch_stops_nothing(rig: Rig, tmp_path: Path) -> None:
    assert rig.run("/run/rig/die", "h1").returncode == 0
    swept = rig.sweep(tmp_path, "--serial", "1")
    assert swept.statuses == {"h1": "unreachable", "h2": "done", "h3": "unreachable"}


@pytest.mark.hosts(5)
def test_a_lost_host_does_not_stop_its_own_batch_or_a_later_one(rig: Rig, tmp_path: Path) -> None:
    """With one fork the others of its batch begin when it is lost already."""
    assert rig.run("/run/rig/die", "h1").returncode == 0
    words = ("--policy", policy(tmp_path, kept=True), "--serial", "3,100%", "--forks", "1")
    swept = rig.sweep(tmp_path, *words)
    assert swept.statuses == {
        "h1": "unreachable", "h2": "done", "h3": "done", "h4": "done", "h5": "unreachable",
    }  # fmt: skip


@pytest.mark.hosts(4)
def test_a_canary_that_failed_the_gate_still_stops_the_rest_when_resumed(
    rig: Rig, tmp_path: Path
) -> None:
    first = rig.sweep(tmp_path, "--policy", policy(tmp_path, kept=False))
    policy(tmp_path, kept=True)
    again = rig.sweep(tmp_path, "--resume", first.folder.name)
    assert again.statuses == first.statuses
    assert again.reason("h2") == "not touched: the gate failed on h1"
    assert rig.calls("h2") == []
