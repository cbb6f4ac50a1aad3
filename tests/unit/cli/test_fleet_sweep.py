"""What `labctl fleet sweep` prints of hosts, and at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labctl.cli.fleet import _show_sweep, _WatchSweep
from labctl.fleet.host_news import HostNews, What
from labctl.fleet.sweep_hosts import Status, SweepFolder
from tests.unit.fleet.test_sweep_folder import RECORD

DOCUMENTED = Path(__file__).parents[3] / "docs/fleet.md"


@pytest.fixture
def fleet(tmp_path: Path) -> SweepFolder:
    made = SweepFolder.create(tmp_path / "fleet-1", RECORD)
    made.change("h1", status=Status.DONE, run="run-1")
    made.change("h3", status=Status.UNREACHABLE, reason="no route")
    return made


def test_a_host_that_is_done_tells_how_far_all_are(
    fleet: SweepFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = _WatchSweep(fleet)
    for done in (0, 4, 4):
        news = HostNews(host="h2", what=What.PROGRESS, task="Wait", done=done, planned=4)
        watch("h2", fleet.change("h2", status=Status.RUNNING), news)
    fetched = HostNews(host="h2", what=What.FETCHED, task="Write")
    for _ in range(2):
        watch("h2", fleet.change("h2", status=Status.DONE), fetched)
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["h2: 0 of 4 trials", "h2: 4 of 4 trials"]
    assert said[2].startswith("h2: done (2 of 3 hosts, about ")
    assert len(said) == 3


def test_hosts_that_are_not_done_are_in_the_json_and_in_a_limit_file(
    fleet: SweepFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _show_sweep(fleet, as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["failed"] == ["h2", "h3"]
    assert (fleet.path / "failed.limit").read_text() == "h2\nh3\n"
    page = DOCUMENTED.read_text()
    assert all(f"`{key}`" in page for key in [*said, *said["hosts"]["h1"]])
    _show_sweep(fleet, as_json=False)
    assert f"--limit @{fleet.path}/failed.limit" in capsys.readouterr().out
