"""How hosts stand with the news of the playbook that rolls a tuning out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from labctl.base.errors import BrokenError, UsageError
from labctl.base.paths import shipped_data
from labctl.fleet import rollout as rolling
from labctl.fleet.ansible import Ended
from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.host_news import RUN_NAME, news_of
from labctl.fleet.rollout import (
    AskedFor,
    Rollout,
    RolloutFolder,
    Stand,
    foreseen,
    planned_rollout,
    roll_out,
)
from labctl.fleet.sweep_hosts import HowToReach
from tests.unit.fleet.fleets import hosts, make_fleet
from tests.unit.fleet.test_host_news import event

COLLECTION = shipped_data() / "ansible/ansible_collections/labctl/lab"
HOW = HowToReach(inventory=("/hosts.yml",), forks=1, variables={"labctl_host_tune_domain": "web1"})
TUNE = {"role": "labctl_host_tune"}
TURN = "Turn them, with a timer that puts them back"
MEASURED = event("runner_on_start", "Start")
TURNING = event("runner_on_start", TURN, **TUNE)
CHANGED = event("runner_on_ok", TURN, **TUNE)
PARTLY = event(
    "runner_on_ok", TURN, {"stdout": json.dumps({"in_guest": ["Set the elevator"]})}, **TUNE
)
KEPT = event("runner_on_ok", "Keep it", role="")
BACK = event("runner_on_ok", "Put back what is not kept", {"rc": 0}, role="")
NOT_BACK = event(
    "runner_on_ok", "Put back what is not kept", {"rc": 4, "stderr": "the disk is full"}, role=""
)
GUARD = "Stop where an earlier batch did not pass"
ENDED = "Ansible ended with status 2 before it was done with it"


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
        ([], Stand.NOT_CHANGED, ENDED),
        ([TURNING], Stand.UNKNOWN, ENDED),
        ([TURNING, CHANGED], Stand.CHANGED, ENDED),
        ([TURNING, CHANGED, KEPT], Stand.KEPT, ""),
        ([TURNING, PARTLY, KEPT], Stand.KEPT, "left to do inside the guest: Set the elevator"),
        ([KEPT], Stand.KEPT, "it was already set"),
        (
            [failed("Stop the batch where one did not pass", "not changed: no gain")],
            Stand.NOT_CHANGED,
            "no gain",
        ),
        ([failed(GUARD, "not touched: h0 did not get it")], Stand.NOT_TOUCHED, "h0 did not get it"),
        (
            [TURNING, CHANGED, BACK, failed("Stop", "undone on this host: another host failed")],
            Stand.UNDONE,
            "another host failed",
        ),
        (
            [TURNING, failed(TURN, "a step failed"), BACK, failed("Stop", "undone: a step failed")],
            Stand.UNDONE,
            "undone: a step failed",
        ),
        ([BACK, failed("Stop", "undone on this host: lost")], Stand.NOT_CHANGED, "lost"),
        (
            [TURNING, CHANGED, NOT_BACK, failed("Stop", "it could not be put back: the disk")],
            Stand.CHANGED,
            "it could not be put back: the disk",
        ),
        (
            [TURNING, CHANGED, failed("Keep it", "nothing to keep")],
            Stand.CHANGED,
            "Keep it: nothing to keep",
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
    why_not = ENDED if stand is Stand.KEPT else "a batch before it was stopped"
    assert (folder.stands["h2"].stand, folder.stands["h2"].reason) == (Stand.NOT_TOUCHED, why_not)
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


CHECKED: list[tuple[list[Mapping[str, Any]], dict[str, str], str]] = [
    ([], {}, "Ansible ended with status 2: it is broken"),
    ([event("runner_on_ok", "Ask what would change", {"stdout": '{"would_change": []}'})],
     {"h1": ""}, ""),
    ([event("runner_on_ok", "Ask what would change", {"stdout": '{"would_change": [{}]}'})],
     {}, "Ansible ended with status 2: it is broken"),
    ([event("runner_on_ok", "Show the settings as they will be",
            {"diff": [{"before": "ksm: 0\n", "after": "ksm: 1\n"}]})],
     {"h1": "-ksm: 0\n+ksm: 1"}, ""),
    ([failed("Ask what would change", "no such knob")], {}, "no such knob"),
]  # fmt: skip


@pytest.mark.parametrize(("events", "shown", "why"), CHECKED)
def test_what_would_change_is_only_said_of_hosts_that_could_say(
    events: list[Mapping[str, Any]],
    shown: dict[str, str],
    why: str,
    folder: RolloutFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def play(_: str, handler: Callable[[Mapping[str, Any]], None], **more: Any) -> Ended:
        assert more["check"]
        for one in events:
            handler({**one, "event_data": {**one["event_data"], "host": "h1"}})
        return Ended(2, "it is broken")

    monkeypatch.setattr(rolling, "play", play)
    assert foreseen(folder, HOW, "/var/lib/x") == shown
    assert folder.stands["h1"].reason == why


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
        TURN, "Keep it", "Put back what is not kept", "Stop", "Ask what would change", GUARD,
        "Stop the batch where one did not pass", "Show the settings as they will be",
    } <= tasks  # fmt: skip


def test_a_host_can_not_name_its_run_as_a_template(tmp_path: Path) -> None:
    """Ansible takes braces in what it is given for a template, on the control node."""
    hostile = "{{ lookup('pipe', 'id') }}"
    assert RUN_NAME.fullmatch(hostile) is None
    assert news_of(event("runner_on_ok", "Wait", {"stdout": json.dumps({"run": hostile})})) is None
    fleet = make_fleet(tmp_path / "fleet-1", hosts(4), effects={"pinned": 1.5}, noise=0.01)
    state = fleet / "hosts/h1/state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"run": hostile}))
    asked = AskedFor(
        tuning="pinned", limit=None, serial="1", policy=None, restore_after="30m", seed=1,
        command=(),
    )  # fmt: skip
    inventory = tmp_path / "hosts.ini"
    inventory.write_text("h1\nh2\nh3\nh4\n")
    with pytest.raises(UsageError, match="h1 reported the run .*, which is not a run's name"):
        planned_rollout(FleetFolder.open(fleet), [str(inventory)], asked)
    with pytest.raises(UsageError, match="is not a valid name for a tuning"):
        planned_rollout(FleetFolder.open(fleet), [str(inventory)], replace(asked, tuning=hostile))


def test_batches_are_in_the_order_of_the_inventory(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "fleet-1", hosts(4), effects={"pinned": 1.5}, noise=0.01)
    inventory = tmp_path / "hosts.ini"
    inventory.write_text("h3\nh1\nh9\nh2\n")
    asked = AskedFor(
        tuning="pinned", limit=None, serial="1,2", policy=None, restore_after="30m", seed=1,
        command=(),
    )  # fmt: skip
    plan = planned_rollout(FleetFolder.open(fleet), [str(inventory)], asked)
    assert plan.batches == (("h3",), ("h1", "h2"))
    assert plan.left_out == {"h4": "not in the inventory"}
