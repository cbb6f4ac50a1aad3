from __future__ import annotations

import json
from pathlib import Path

import pytest

from labctl.analysis.hosts.fleet import HostState
from labctl.base.errors import BrokenError, UsageError
from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.host_news import HostNews, What
from labctl.fleet.sweep_hosts import (
    FleetSweep,
    Overall,
    StateRecord,
    Status,
    SweepFolder,
    check_names,
    write_limit,
)

RECORD = FleetSweep.made(
    {
        "study": "pinning",
        "study_digest": "0" * 64,
        "seed": 7,
        "labctl": "0.1.0",
        "started": "2026-11-24T10:00:00+00:00",
        "command": ["labctl", "fleet", "sweep", "pinning"],
        "inventory": ["/hosts.yml"],
        "serial": "1,100%",
        "batches": [["h1"], ["h2", "h3"]],
    }
)


@pytest.fixture
def fleet(tmp_path: Path) -> SweepFolder:
    return SweepFolder.create(tmp_path / "fleet-1", RECORD)


def test_what_is_written_is_read_back(fleet: SweepFolder, tmp_path: Path) -> None:
    found = SweepFolder.find(tmp_path, "fleet-1")
    assert found.record == RECORD
    assert found.record.hosts == ("h1", "h2", "h3")
    assert found.state("h3") == StateRecord(batch=2)
    assert json.loads((fleet.path / "fleet.json").read_text())["schema"] == 1


def test_a_state_is_changed_on_the_disk(fleet: SweepFolder) -> None:
    fleet.change("h2", status=Status.FAILED, reason="no QEMU")
    said = json.loads((fleet.host("h2") / "state.json").read_text())
    assert said == {
        "schema": 1,
        "status": "failed",
        "reason": "no QEMU",
        "run": "",
        "digest": "",
        "batch": 2,
    }


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "-x", "a b", "\n", "x" * 300, "a\0"])
def test_a_host_whose_name_is_no_files_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_names(["h1", name])


def test_a_fleet_whose_file_names_such_a_host_is_not_gone_on_with(
    fleet: SweepFolder, tmp_path: Path
) -> None:
    said = json.loads((fleet.path / "fleet.json").read_text())
    said["batches"] = [["../../etc"]]
    (fleet.path / "fleet.json").write_text(json.dumps(said))
    with pytest.raises(UsageError, match="etc"):
        SweepFolder.find(tmp_path, "fleet-1")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 1}', '{"schema": 1, "seed": "x"}'])
def test_a_damaged_fleet_is_named(fleet: SweepFolder, tmp_path: Path, text: str) -> None:
    (fleet.path / "fleet.json").write_text(text)
    with pytest.raises(BrokenError, match=r"fleet\.json"):
        SweepFolder.find(tmp_path, "fleet-1")


@pytest.mark.parametrize("text", ["", "[]", '{"status": "gone", "batch": 1}', '{"status": "done"}'])
def test_a_damaged_state_is_named(fleet: SweepFolder, text: str) -> None:
    (fleet.host("h1") / "state.json").write_text(text)
    with pytest.raises(BrokenError, match=r"state\.json"):
        fleet.state("h1")


def test_a_newer_fleet_is_refused(fleet: SweepFolder, tmp_path: Path) -> None:
    (fleet.path / "fleet.json").write_text('{"schema": 2}')
    with pytest.raises(UsageError, match="newer"):
        SweepFolder.find(tmp_path, "fleet-1")


def test_what_a_sweep_writes_is_what_a_report_reads(fleet: SweepFolder) -> None:
    fleet.change("h2", status=Status.UNREACHABLE, reason="no route to host", run="run-1")
    found = FleetFolder.open(fleet.path)
    assert found.record == fleet.record
    assert found.state("h2") == HostState(
        host="h2", status="unreachable", reason="no route to host", run="run-1"
    )
    (fleet.host("h1") / "state.json").unlink()
    assert found.state("h1").status == "waiting"
    (fleet.host("h3") / "state.json").write_text('{"status": "gone", "batch": 1}')
    assert "got 'gone'" in found.state("h3").reason


def test_a_limit_file_names_hosts_as_ansible_reads_them(tmp_path: Path) -> None:
    path = write_limit(tmp_path, ["h2", "h3"])
    assert path.read_text() == "h2\nh3\n"
    assert not write_limit(tmp_path, []).exists()


def trials(host: str, done: int) -> tuple[str, StateRecord, HostNews]:
    news = HostNews(host=host, what=What.PROGRESS, task="Wait", done=done, planned=100)
    return host, StateRecord(status=Status.RUNNING, batch=1), news


def test_the_time_left_is_that_of_the_trials_of_all() -> None:
    overall = Overall(hosts=4)
    assert overall.left_s(10) is None
    overall.hear(*trials("h1", 0))
    overall.hear(*trials("h2", 50))  # measured before a resume
    assert overall.left_s(10) is None, "nothing was measured since"
    overall.hear(*trials("h1", 25))
    overall.hear(*trials("h2", 75))
    # 50 trials in 100 s; 75 + 25 are left here, and 200 of two hosts without news.
    assert overall.left_s(100) == 600


def test_a_host_that_is_done_is_counted_once() -> None:
    overall = Overall(hosts=2)
    news = HostNews(host="h1", what=What.FETCHED, task="Write")
    for _ in range(2):
        overall.hear("h1", StateRecord(status=Status.DONE, batch=1), news)
    assert overall.done == {"h1"}
