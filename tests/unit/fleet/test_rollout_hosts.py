"""How hosts stand with the news of the playbook that rolls a tuning out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labctl.base.errors import BrokenError, UsageError
from labctl.cli.main import cli
from labctl.fleet import rollout as rolling
from labctl.fleet import sweep_hosts as sweeping
from labctl.fleet.ansible import Ended
from labctl.fleet.fleet_folder import FleetFolder, fleet_locked
from labctl.fleet.host_news import RUN_NAME, news_of
from labctl.fleet.rollout import (
    KILLED,
    AskedFor,
    Rollout,
    RolloutFolder,
    Stand,
    end_killed,
    foreseen,
    last_rollout,
    planned_rollout,
    roll_out,
    rounds_left,
)
from labctl.fleet.sweep_hosts import HowToReach
from tests.unit.fleet.fleets import hosts, make_fleet
from tests.unit.fleet.test_host_news import event, written
from tests.unit.fleet.test_sweep_folder import RECORD

RESULTS = "/var/lib/labctl/fleet/fleet-1/results"
HOW = HowToReach(inventory=("/hosts.yml",), forks=1, variables={"labctl_host_tune_domain": "web1"})
TURN = "Turn them, with a timer that puts them back"
STARTED = written("rollout", what="started")
CHANGING = written("host_tune", what="changing")
CHANGED = written("host_tune", what="changed", said="{}")
PARTLY = written("host_tune", what="changed", said=json.dumps({"in_guest": ["Set the elevator"]}))
KEEPING = written("rollout", what="keeping")
KEPT = written("rollout", what="kept")
ENDED = "Ansible ended with status 2 before it was done with it"


def left(what: str, why: str, *, aside: bool = False) -> dict[str, Any]:
    return written("rollout", what=what, reason=why, aside=aside)


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
            handler(one)
        return Ended(2, "it is broken")

    monkeypatch.setattr(sweeping, "play", play)
    roll_out(folder, HOW, RESULTS, lambda host, stand, news: None, [folder.record.batches])
    return given


@pytest.mark.parametrize(
    ("events", "stand", "why", "aside"),
    [
        ([], Stand.NOT_CHANGED, ENDED, False),
        ([failed("Look", "it took too long")], Stand.NOT_CHANGED, "Look: it took too long", True),
        ([CHANGING], Stand.UNKNOWN, ENDED, False),
        ([CHANGING, CHANGED], Stand.CHANGED, ENDED, False),
        ([CHANGING, CHANGED, KEEPING, KEPT], Stand.KEPT, "", False),
        (
            [CHANGING, PARTLY, KEEPING, KEPT],
            Stand.KEPT,
            "left to do inside the guest: Set the elevator",
            False,
        ),
        ([KEEPING, KEPT], Stand.KEPT, "it was already set", False),
        (
            [left("not changed", "no gain", aside=True), failed("Stop", "not changed: no gain")],
            Stand.NOT_CHANGED,
            "no gain",
            True,
        ),
        (
            [left("not changed", "its batch was stopped: h0 did not pass"), failed("Stop", "…")],
            Stand.NOT_CHANGED,
            "its batch was stopped: h0 did not pass",
            False,
        ),
        (
            [left("not touched", "not touched: h0 did not get it"), failed("Stop", "…")],
            Stand.NOT_TOUCHED,
            "h0 did not get it",
            False,
        ),
        (
            [CHANGING, CHANGED, left("undone", "another host failed"), failed("Stop", "…")],
            Stand.UNDONE,
            "another host failed",
            False,
        ),
        (
            [CHANGING, failed(TURN, "a step failed"), left("undone", "a step failed", aside=True)],
            Stand.UNDONE,
            "a step failed",
            True,
        ),
        ([left("undone", "lost"), failed("Stop", "…")], Stand.NOT_CHANGED, "lost", False),
        (
            [CHANGING, CHANGED, left("not undone", "the disk is full", aside=True)],
            Stand.CHANGED,
            "the disk is full",
            True,
        ),
        (
            [CHANGING, PARTLY, KEEPING, failed("Keep it", "nothing to keep")],
            Stand.CHANGED,
            "Keep it: nothing to keep",
            True,
        ),
        (
            [failed("Wait", "no route", "runner_on_unreachable")],
            Stand.UNKNOWN,
            "no route; nothing had been changed on it by then",
            True,
        ),
        (
            [CHANGING, failed(TURN, "no route", "runner_on_unreachable")],
            Stand.UNKNOWN,
            "no route; it undoes the change itself 30m after it",
            True,
        ),
        (
            [CHANGING, CHANGED, KEEPING, failed("Keep it", "no route", "runner_on_unreachable")],
            Stand.UNKNOWN,
            "no route; it keeps the change, or undoes it itself 30m after it",
            True,
        ),
    ],
)
def test_a_host_stands_as_it_was_told(
    events: list[Mapping[str, Any]],
    stand: Stand,
    why: str,
    aside: bool,
    folder: RolloutFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rolled(folder, monkeypatch, STARTED, *events)
    assert (folder.stands["h1"].stand, folder.stands["h1"].reason) == (stand, why)
    why_not = ENDED if stand is Stand.KEPT else "a batch before it was stopped"
    assert (folder.stands["h2"].stand, folder.stands["h2"].reason) == (Stand.NOT_TOUCHED, why_not)
    written = json.loads((folder.path / "hosts/h1/state.json").read_text())
    assert written == {
        "schema": 1,
        "stand": str(stand),
        "reason": why,
        "aside": aside,
        "batch": 1,
    }


@pytest.mark.parametrize(
    ("events", "stand", "why"),
    [
        ([STARTED], Stand.NOT_CHANGED, KILLED),
        ([STARTED, CHANGING], Stand.UNKNOWN, f"{KILLED}; it undoes the change itself 30m after it"),
        (
            [STARTED, CHANGING, CHANGED, KEEPING],
            Stand.UNKNOWN,
            f"{KILLED}; it keeps the change, or undoes it itself 30m after it",
        ),
        ([STARTED, CHANGING, CHANGED, KEEPING, KEPT], Stand.KEPT, ""),
        ([STARTED, left("not changed", "no gain", aside=True)], Stand.NOT_CHANGED, "no gain"),
    ],
)
def test_a_killed_roll_out_says_so(
    events: list[Mapping[str, Any]], stand: Stand, why: str, folder: RolloutFolder, tmp_path: Path
) -> None:
    heard = rolling._Heard(folder, lambda host, stand, news: None)
    for one in events:
        heard.event(one)
    fleet = FleetFolder(tmp_path / "fleet-1", RECORD)
    end_killed(fleet)
    found = last_rollout(fleet)
    assert (found.stands["h1"].stand, found.stands["h1"].reason) == (stand, why)
    assert (found.stands["h2"].stand, found.stands["h2"].reason) == (Stand.NOT_TOUCHED, KILLED)


def test_a_report_says_that_a_roll_out_was_killed_unless_it_goes_on(tmp_path: Path) -> None:
    place = make_fleet(tmp_path / "fleet-1", hosts(3), effects={"pinned": 1.5}, noise=0.01)
    fleet = FleetFolder.open(place)
    record = Rollout(
        fleet="fleet-1", tuning="pinned", seed=7, labctl="", started="", command=(),
        restore_after="30m", runs={}, batches=(("h1",),),
    )  # fmt: skip
    folder = RolloutFolder.create(place / "rollouts/r1", record)
    folder.change("h1", stand=Stand.MEASURING)
    with fleet_locked(place, "labctl fleet rollout fleet-1"):
        CliRunner().invoke(cli, ["fleet", "report", str(place)], catch_exceptions=False)
    assert last_rollout(fleet).stands["h1"].stand is Stand.MEASURING
    CliRunner().invoke(cli, ["fleet", "report", str(place)], catch_exceptions=False)
    now = last_rollout(fleet).stands["h1"]
    assert (now.stand, now.reason) == (Stand.NOT_CHANGED, KILLED)


def test_an_interrupted_roll_out_says_so(
    folder: RolloutFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(_: str, handler: Callable[[Mapping[str, Any]], None], **more: Any) -> Ended:
        handler(STARTED)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "play", play)
    with pytest.raises(KeyboardInterrupt):
        roll_out(folder, HOW, RESULTS, lambda host, stand, news: None, [folder.record.batches])
    assert folder.stands["h1"].stand is Stand.NOT_CHANGED
    assert "labctl was interrupted" in folder.stands["h1"].reason


def many(tmp_path: Path, *batches: tuple[str, ...], max_fail: int = 10) -> RolloutFolder:
    hosts = [host for batch in batches for host in batch]
    record = Rollout(
        fleet="fleet-1", tuning="pinned", seed=7, labctl="0.1.0", started="", command=(),
        restore_after="30m", runs=dict.fromkeys(hosts, "run-a"), batches=batches, max_fail=max_fail,
    )  # fmt: skip
    return RolloutFolder.create(tmp_path / "fleet-1/rollouts/r1", record)


def test_a_resume_takes_set_aside_hosts_last(tmp_path: Path) -> None:
    folder = many(tmp_path, ("h1",), ("h2", "h3", "h4"), ("h5", "h6"))
    present = ("h6", "h5", "h4", "h3", "h2", "h1")
    for host in ("h1", "h2"):
        folder.change(host, stand=Stand.KEPT)
    folder.change("h3", stand=Stand.UNKNOWN, aside=True)
    folder.change("h4", stand=Stand.NOT_CHANGED)
    assert rounds_left(folder, present) == [[["h6"], ["h5", "h4"]], [["h3"]]]
    assert rounds_left(folder, ("h3",)) == [[["h3"]]]


def test_a_resume_has_a_canary_again_if_the_first_did_not_pass(tmp_path: Path) -> None:
    folder = many(tmp_path, ("h1",), ("h2", "h3", "h4"))
    folder.change("h1", stand=Stand.UNKNOWN, aside=True)
    assert rounds_left(folder, folder.record.hosts) == [[["h2"], ["h3", "h4"]], [["h1"]]]


def test_a_round_follows_only_if_no_batch_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = many(tmp_path, ("h1",), ("h2",))
    played: list[Any] = []

    def play(_: str, handler: Callable[[Mapping[str, Any]], None], **more: Any) -> Ended:
        played.append((more["limit"], more["variables"]["labctl_rollout_canary_passed"]))
        [host] = more["limit"]
        handler(written("rollout", what="started", host=host))
        handler(written("rollout", what="kept" if host == "h1" else "not changed", host=host))
        return Ended(0, "")

    monkeypatch.setattr(sweeping, "play", play)
    rounds = [[["h1"]], [["h2"]], [["h1"]]]
    roll_out(folder, HOW, RESULTS, lambda host, stand, news: None, rounds)
    assert played == [(["h1"], False), (["h2"], True)]


def test_a_lost_batch_ends_no_roll_out_that_may_lose_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible ends a play after it."""
    folder = many(tmp_path, ("h1",), ("h2",), ("h3",), max_fail=100)
    played: list[Any] = []

    def play(_: str, handler: Callable[[Mapping[str, Any]], None], **more: Any) -> Ended:
        played.append(more["limit"])
        for host in more["limit"]:
            handler(written("rollout", what="started", host=host))
            if host == "h2":
                lost = event("runner_on_unreachable", "Look", {"msg": "no route"}, host=host)
                handler(lost)
                break
            handler(written("rollout", what="kept", host=host))
        return Ended(4, "")

    monkeypatch.setattr(sweeping, "play", play)
    roll_out(folder, HOW, RESULTS, lambda host, stand, news: None, [folder.record.batches])
    assert played == [["h1", "h2", "h3"], ["h3"]]
    assert [one.stand for one in folder.stands.values()] == ["kept", "unknown", "kept"]


def test_the_playbook_gets_each_hosts_own_run_and_where_it_was_fetched(
    folder: RolloutFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rolled(folder, monkeypatch, STARTED)
    assert given["labctl_rollout_runs"] == {"h1": f"{RESULTS}/run-a", "h2": f"{RESULTS}/run-b"}
    assert given["labctl_rollout_first_from"] == str(folder.path.parents[1] / "hosts")
    assert given["labctl_serial"] == [1, 1]
    assert given["labctl_rollout_max_fail"] == 10
    assert given["labctl_host_tune_domain"] == "web1"
    assert "labctl_gate_policy" not in given


CHECKED: list[tuple[list[Mapping[str, Any]], dict[str, str], str]] = [
    ([], {}, "Ansible ended with status 2: it is broken"),
    ([written("host_tune", what="foreseen", changes=[])], {"h1": ""}, ""),
    ([written("host_tune", what="foreseen",
              changes=[{"name": "ksm", "before": "0", "after": "1"}])],
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
            handler(one)
        return Ended(2, "it is broken")

    monkeypatch.setattr(rolling, "play", play)
    assert foreseen(folder, HOW, "/var/lib/x") == shown
    assert folder.stands["h1"].reason == why


def test_a_playbook_that_came_to_no_host_is_a_fault(
    folder: RolloutFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BrokenError, match="it is broken"):
        rolled(folder, monkeypatch)


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
    how = replace(HOW, inventory=(str(inventory),))
    with pytest.raises(UsageError, match="h1 reported the run .*, which is not a run's name"):
        planned_rollout(FleetFolder.open(fleet), how, asked)
    with pytest.raises(UsageError, match="is not a valid name for a tuning"):
        planned_rollout(FleetFolder.open(fleet), how, replace(asked, tuning=hostile))


def test_batches_are_in_the_order_of_the_inventory(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "fleet-1", hosts(4), effects={"pinned": 1.5}, noise=0.01)
    inventory = tmp_path / "hosts.ini"
    inventory.write_text("h3\nh1\nh9\nh2\n")
    how = replace(HOW, inventory=(str(inventory),))
    asked = AskedFor(
        tuning="pinned", limit=None, serial="1,2", policy=None, restore_after="30m", seed=1,
        command=(),
    )  # fmt: skip
    plan = planned_rollout(FleetFolder.open(fleet), how, asked)
    assert plan.batches == (("h3",), ("h1", "h2"))
    assert plan.left_out == {"h4": "not in the inventory"}
