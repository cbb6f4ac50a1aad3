"""How hosts stand with the news of the playbook that rolls a tuning out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from labctl.base.errors import BrokenError
from labctl.base.paths import shipped_data
from labctl.fleet import rollout_hosts as rolling
from labctl.fleet.ansible import Ended
from labctl.fleet.rollout_folder import Rollout, RolloutFolder, Stand
from labctl.fleet.rollout_hosts import roll_out
from labctl.fleet.sweep_hosts import HowToReach
from tests.unit.fleet.test_host_news import event

COLLECTION = shipped_data() / "ansible/ansible_collections/labctl/lab"
HOW = HowToReach(inventory=("/hosts.yml",), forks=1, variables={"labctl_host_tune_domain": "web1"})
TUNE = {"role": "labctl_host_tune"}
TURN = "Turn them, with a timer that puts them back"
MEASURED = event("runner_on_start", "Start")
TURNING = event("runner_on_start", TURN, **TUNE)
CHANGED = event("runner_on_ok", TURN, **TUNE)
KEPT = event("runner_on_ok", "Keep them", **TUNE)
BACK = event("runner_on_ok", "Put back what is not kept", **TUNE)


def failed(task: str, why: str, kind: str = "runner_on_failed") -> dict[str, Any]:
    return event(kind, task, {"msg": why}, role="")


@pytest.fixture
def folder(tmp_path: Path) -> RolloutFolder:
    record = Rollout(
        fleet="fleet-1",
        tuning="pinned",
        seed=7,
        labctl="0.1.0",
        started="2026-01-01T00:00:00+00:00",
        command=("labctl", "fleet", "rollout"),
        restore_after="30m",
        runs={"h1": "run-a", "h2": "run-b"},
        batches=(("h1",), ("h2",)),
    )
    return RolloutFolder.create(tmp_path / "fleet-1/rollouts/r1", record)


def rolled(
    folder: RolloutFolder, monkeypatch: pytest.MonkeyPatch, *events: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Roll out with a playbook that tells these events of h1; returns its variables."""
    given: dict[str, Any] = {}

    def play(_: str, handler: Callable[[Mapping[str, Any]], None], **more: Any) -> Ended:
        given.update(more["variables"])
        for one in events:
            handler({**one, "event_data": {**one["event_data"], "host": "h1"}})
        return Ended(2, "it is broken")

    monkeypatch.setattr(rolling, "play", play)
    roll_out(folder, HOW, "/var/lib/labctl/fleet/fleet-1/results", lambda host, stand, news: None)
    return given


@pytest.mark.parametrize(
    ("events", "stand", "why"),
    [
        ([], Stand.MEASURING, ""),
        ([TURNING, CHANGED], Stand.CHANGED, ""),
        ([TURNING, CHANGED, KEPT], Stand.KEPT, ""),
        ([KEPT], Stand.KEPT, "it was so already"),
        (
            [failed("Stop the batch where one did not pass", "not changed: no gain")],
            Stand.NOT_CHANGED,
            "no gain",
        ),
        (
            [TURNING, CHANGED, BACK, failed("Stop", "undone on this host: another host failed")],
            Stand.UNDONE,
            "another host failed",
        ),
        (
            [failed("Stop", "undone on this host: a step failed")],
            Stand.NOT_CHANGED,
            "a step failed",
        ),
        (
            [TURNING, CHANGED, failed("Put back what is not kept", "the disk is full")],
            Stand.CHANGED,
            "Put back what is not kept: the disk is full",
        ),
        (
            [failed("Wait", "no route", "runner_on_unreachable")],
            Stand.UNKNOWN,
            "no route; nothing had been changed on it by then",
        ),
        (
            [TURNING, failed(TURN, "no route", "runner_on_unreachable")],
            Stand.UNKNOWN,
            "no route; it undoes the change itself 30m after it",
        ),
        (
            [TURNING, CHANGED, failed("Wait", "no route", "runner_on_unreachable")],
            Stand.UNKNOWN,
            "no route; it undoes the change itself 30m after it",
        ),
    ],
)
def test_a_host_stands_as_it_was_told(
    events: list[Mapping[str, Any]],
    stand: Stand,
    why: str,
    folder: RolloutFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rolled(folder, monkeypatch, MEASURED, *events)
    assert (folder.stands["h1"].stand, folder.stands["h1"].reason) == (stand, why)
    assert folder.stands["h2"].stand is Stand.NOT_TOUCHED
    written = json.loads((folder.path / "hosts/h1/state.json").read_text())
    assert written == {"schema": 1, "stand": str(stand), "reason": why, "batch": 1}


def test_the_playbook_gets_each_hosts_own_run_and_where_it_was_fetched(
    folder: RolloutFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rolled(folder, monkeypatch, MEASURED)
    results = "/var/lib/labctl/fleet/fleet-1/results"
    assert given["labctl_rollout_runs"] == {"h1": f"{results}/run-a", "h2": f"{results}/run-b"}
    assert given["labctl_rollout_first_from"] == str(folder.path.parents[1] / "hosts")
    assert given["labctl_serial"] == [1, 1]
    assert given["labctl_host_tune_domain"] == "web1"
    assert "labctl_gate_policy" not in given


def test_a_playbook_that_came_to_no_host_is_a_fault(
    folder: RolloutFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BrokenError, match="it is broken"):
        rolled(folder, monkeypatch)


def test_the_tasks_that_are_listened_for_are_there() -> None:
    tasks: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            tasks.add(str(value.get("name", "")))
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                collect(one)

    for path in (COLLECTION / "playbooks/rollout.yml", *COLLECTION.glob("roles/*/*/*.yml")):
        collect(yaml.safe_load(path.read_text()))
    assert {
        TURN, "Keep them", "Put back what is not kept", "Stop", "Ask what would change",
        "Stop the batch where one did not pass", "Show the settings as they will be",
    } <= tasks  # fmt: skip
