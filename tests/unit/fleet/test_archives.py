"""A folder of archives, as a playbook fetches them, is a fleet."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labctl.base.errors import UsageError
from labctl.cli.main import cli
from labctl.fleet.fleet_folder import FleetFolder, add_runs, host_of
from labctl.fleet.rollout import AskedFor, planned_rollout
from labctl.fleet.sweep_hosts import HowToReach
from tests.unit.fleet.fleets import hosts, make_fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fleets") / "fleet-1"
    return make_fleet(place, hosts(4), effects={"pinned": 1.2}, noise=0.01)


@pytest.fixture
def fetched(fleet: Path, tmp_path: Path) -> Path:
    """The archives alone; h4's lies as a file."""
    folder = tmp_path / "fetched"
    for host in ("h1", "h2", "h3"):
        (folder / host).mkdir(parents=True)
        shutil.copy(fleet / "hosts" / host / "run.tar.xz", folder / host)
    shutil.copy(fleet / "hosts/h4/run.tar.xz", folder / "h4.tar.xz")
    return folder


def said(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["fleet", *map(str, words), "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_archives_are_pooled_as_the_fleet_is(fleet: Path, fetched: Path) -> None:
    found, expected = said("report", fetched), said("report", fleet)
    assert found["measured"] == 4
    assert found["study"] == "pinning"
    assert found["effects"] == expected["effects"]
    assert [one["status"] for one in found["states"]] == ["done"] * 4
    # 'data', which the report made, is not a host.
    assert (fetched / "data").is_dir()
    assert said("report", fetched)["hosts"] == 4


def test_an_advice_of_archives_names_no_command_that_can_not_run(fetched: Path) -> None:
    assert said("advise", fetched)["next"] is None
    asked = AskedFor(
        tuning="pinned", limit=None, serial="1", policy=None, restore_after="30m", seed=1,
        command=(),
    )  # fmt: skip
    how = HowToReach(inventory=("h1,",), forks=1, variables={})
    with pytest.raises(UsageError, match="did not measure fetched"):
        planned_rollout(FleetFolder.open(fetched), how, asked)


def test_a_damaged_archive_is_a_host_that_failed(fetched: Path) -> None:
    (fetched / "h1/run.tar.xz").write_bytes(b"nothing")
    found = said("report", fetched)
    assert found["measured"] == 3
    assert found["states"][0]["host"] == "h1"
    assert found["states"][0]["status"] == "failed"


def test_archives_are_added_to_a_fleet(fetched: Path, tmp_path: Path) -> None:
    new = tmp_path / "spring"
    add_runs(new, {"h1": fetched / "h1/run.tar.xz", "h2": fetched / "h2/run.tar.xz"}, replace=False)
    add_runs(new, {"h4": fetched / "h4.tar.xz"}, replace=False)
    opened = FleetFolder.open(new)
    assert list(opened.hosts()) == ["h1", "h2", "h4"]
    assert {opened.state(host).status for host in opened.hosts()} == {"done"}
    assert said("report", new)["measured"] == 3
    with pytest.raises(UsageError, match="h4 has a run in spring already"):
        add_runs(new, {"h4": fetched / "h3/run.tar.xz"}, replace=False)
    add_runs(new, {"h4": fetched / "h3/run.tar.xz"}, replace=True)
    assert opened.run("h4").path.read_bytes() == (fetched / "h3/run.tar.xz").read_bytes()


def test_a_run_of_another_study_is_not_added(fetched: Path, tmp_path: Path) -> None:
    new = tmp_path / "spring"
    add_runs(new, {"h1": fetched / "h1/run.tar.xz"}, replace=False)
    record = json.loads((new / "fleet.json").read_text()) | {"study_digest": "1" * 64}
    (new / "fleet.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match="measured another study"):
        add_runs(new, {"h2": fetched / "h2/run.tar.xz"}, replace=False)
    assert not (new / "hosts/h2").exists()


@pytest.mark.parametrize("host", ["..", "-x", "a b", ""])
def test_a_host_whose_name_is_no_folders_is_not_added(
    fetched: Path, tmp_path: Path, host: str
) -> None:
    with pytest.raises(UsageError, match="not a valid folder name"):
        add_runs(tmp_path / "spring", {host: fetched / "h4.tar.xz"}, replace=False)


def test_a_folder_of_other_files_is_left_alone(fetched: Path) -> None:
    with pytest.raises(UsageError, match="is not empty"):
        add_runs(fetched, {"h9": fetched / "h4.tar.xz"}, replace=False)


def test_the_host_is_in_the_path() -> None:
    assert host_of(Path("/srv/fetched/rack7-1/run.tar.xz")) == "rack7-1"
    assert host_of(Path("node9.tar.xz")) == "node9"
