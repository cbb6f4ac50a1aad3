"""What becomes of a host's state with the news of a playbook that a policy gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from labctl.base.paths import shipped_data
from labctl.fleet import sweep_hosts as sweeping
from labctl.fleet.ansible import Ended
from labctl.fleet.sweep_hosts import HowToReach, Status, SweepFolder, sweep_hosts
from tests.unit.fleet.test_host_news import IN_USE, event, written
from tests.unit.fleet.test_sweep_folder import RECORD

ROLE = shipped_data() / "ansible/ansible_collections/labctl/lab/roles/labctl_sweep"
HOW = HowToReach(inventory=("/hosts.yml",), forks=1, variables={})


STOPPED = written("gate", what="not touched", reason="not touched: by the guard")


@pytest.fixture
def fleet(tmp_path: Path) -> SweepFolder:
    record = RECORD.model_copy(update={"policy": "/policy.yaml", "batches": (("h1",), ("h2",))})
    return SweepFolder.create(tmp_path / "fleet-1", record)


def swept(
    fleet: SweepFolder, monkeypatch: pytest.MonkeyPatch, *events: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Sweep with a playbook that tells these events, and one for the hosts that are left, which the
    guard stops; returns the variables of each."""
    given = []

    def play(_: str, handler: Callable[[Mapping[str, Any]], None], **more: Any) -> Ended:
        for one in events if not given else [_of(STOPPED, host) for host in more["limit"]]:
            handler(one)
        given.append(more["variables"])
        return Ended(2, "")

    monkeypatch.setattr(sweeping, "play", play)
    sweep_hosts(fleet, HOW, "pinning", lambda host, state, news: None)
    return given


def test_the_play_itself_refuses_a_run_of_another_study_or_seed(
    fleet: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the host is out of the play before the gate, and no guard counts it as passed."""
    refused = {
        "rc": 4,
        "stderr": "labctl: run-1 measured another study: expected digest 0…, got 1…",
    }
    start, failed = written("sweep", what="started"), event("runner_on_failed", "Verify", refused)
    variables, later = swept(fleet, monkeypatch, start, failed)
    assert variables["labctl_sweep_study_digest"] == fleet.record.study_digest
    assert variables["labctl_sweep_seed"] == fleet.record.seed
    assert fleet.state("h1").status is Status.FAILED
    assert "another study" in fleet.state("h1").reason
    assert fleet.state("h2").status is Status.NOT_TOUCHED
    assert later["labctl_gate_passed_before"] == later["labctl_gate_failed_before"] == []
    tasks = yaml.safe_load((ROLE / "tasks/main.yml").read_text())
    blocks = [task for outer in tasks for task in outer.get("block", [])]
    words = next(task for task in blocks if task["name"] == "Verify")["ansible.builtin.command"]
    assert "'--seed', labctl_sweep_seed" in words["argv"]
    assert "'--study-digest', labctl_sweep_study_digest" in words["argv"]


def test_a_run_that_was_verified_and_passed_is_done(
    fleet: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = [
        written("sweep", what="fetched"),
        event("runner_on_start", "Hold the run against the policy", role="labctl_gate"),
        written("gate", what="passed"),
    ]
    told = [_of(one, host) for host in ("h1", "h2") for one in news]
    swept(fleet, monkeypatch, *told)
    assert [fleet.state(host).status for host in ("h1", "h2")] == [Status.DONE, Status.DONE]


def test_a_run_that_breaks_a_rule_is_done_and_says_so(
    fleet: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "a rule of the policy is violated"
    _, later = swept(
        fleet, monkeypatch, written("sweep", what="fetched"),
        written("gate", what="not passed", reason=why),
        event("runner_on_failed", "Stop where a rule is not kept", {"msg": "other words"}),
    )  # fmt: skip
    assert fleet.state("h1").status is Status.DONE
    assert fleet.state("h1").reason == why
    assert later["labctl_gate_failed_before"] == ["h1"]
    assert fleet.state("h2").reason == "not touched: by the guard"


def test_a_host_that_the_guard_stops_is_not_touched(
    fleet: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "not touched: the gate failed on h0"
    swept(
        fleet, monkeypatch, event("runner_on_start", "Look"),
        written("gate", what="not touched", reason=why),
        event("runner_on_failed", "Stop", {"msg": "other words"}),
    )  # fmt: skip
    for host in ("h1", "h2"):
        assert fleet.state(host).status is Status.NOT_TOUCHED
        assert fleet.state(host).reason == why


def test_a_busy_host_is_waited_for_and_then_named(
    fleet: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = event("runner_retry", "Start", {"rc": 3, "stderr": IN_USE})
    late = event("runner_on_failed", "Start", {"rc": 3, "stderr": IN_USE})
    swept(
        fleet, monkeypatch, written("sweep", what="started"), again, late,
        written("sweep", what="busy", reason=IN_USE),
        event("runner_on_failed", "Stop without a sweep", {"msg": IN_USE}),
    )  # fmt: skip
    assert fleet.state("h1").status is Status.BUSY
    assert fleet.state("h1").reason == IN_USE
    # It is measured when it is free, or fails otherwise.
    news = [written("sweep", what="started"), again, written("sweep", what="fetched"),
            written("gate", what="passed")]  # fmt: skip
    swept(fleet, monkeypatch, *(_of(one, host) for host in ("h1", "h2") for one in news))
    assert (fleet.state("h1").status, fleet.state("h1").reason) == (Status.DONE, "")


def test_a_busy_host_may_fail_otherwise(
    fleet: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = event("runner_retry", "Start", {"rc": 3, "stderr": IN_USE})
    swept(fleet, monkeypatch, again, event("runner_on_failed", "Start", {"stderr": "no QEMU"}))
    assert fleet.state("h1").status is Status.FAILED
    assert fleet.state("h1").reason == "Start: no QEMU"


def _of(one: Mapping[str, Any], host: str) -> dict[str, Any]:
    return {**one, "event_data": {**one["event_data"], "host": host}}
