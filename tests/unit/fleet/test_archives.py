"""A folder of archives, as a playbook fetches them, is a fleet."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labctl.base.errors import ExitCode, LabctlError, UsageError
from labctl.cli.main import cli
from labctl.fleet.fleet_folder import FleetFolder, add_runs, host_of
from labctl.fleet.rollout import AskedFor, planned_rollout
from labctl.fleet.sweep_hosts import HowToReach
from tests.unit.fleet.fleets import hosts, make_fleet, write_archive

DOCUMENTED = Path(__file__).parents[3] / "docs/fleet-report.md"


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
    with pytest.raises(UsageError, match="h4 has a run of 2024-01 in spring already"):
        add_runs(new, {"h4": fetched / "h3/run.tar.xz"}, replace=False)
    add_runs(new, {"h4": fetched / "h3/run.tar.xz"}, replace=True)
    assert opened.run("h4").path.read_bytes() == (fetched / "h3/run.tar.xz").read_bytes()


def test_of_control_nodes_that_begin_at_the_same_instant_one_goes_first(
    fetched: Path, tmp_path: Path
) -> None:
    """Each adds a host to a fleet that none of them has made yet."""
    results, go = tmp_path / "results", tmp_path / "go"
    code = (
        "import sys, pathlib, time\n"
        "from labctl.cli.main import main\n"
        "import labctl.fleet.fleet_folder, labctl.cli.fleet\n"
        "print('ready', flush=True)\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.001)\n"
        "sys.argv[0] = 'labctl'\n"
        "main()\n"
    )
    hosts = ("h1", "h2", "h3")
    words = ["fleet", "add", "spring", "--results", str(results)]
    nodes = {
        host: subprocess.Popen(
            [sys.executable, "-c", code, *words, str(fetched / host / "run.tar.xz")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for host in hosts
    }  # fmt: skip
    for node in nodes.values():
        assert node.stdout is not None
        assert node.stdout.readline() == "ready\n"
    go.touch()
    said = {host: node.communicate(timeout=60)[1] for host, node in nodes.items()}
    codes = {host: node.returncode for host, node in nodes.items()}
    assert set(codes.values()) <= {0, int(ExitCode.HOST)}, said
    passed = [host for host, code in codes.items() if code == 0]
    assert passed
    assert all("is in use by" in said[host] for host in hosts if host not in passed)
    opened = FleetFolder.find(results, "spring")
    assert sorted(opened.hosts()) == passed
    assert [opened.state(host).status for host in passed] == ["done"] * len(passed)


def test_a_fleet_that_could_not_be_made_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "h1.tar.xz"
    broken.write_bytes(b"nothing")
    words = ["fleet", "add", "spring", "--results", str(tmp_path / "results"), str(broken)]
    with pytest.raises(LabctlError):
        CliRunner().invoke(cli, words, catch_exceptions=False)
    assert not (tmp_path / "results/spring").exists()


@pytest.fixture
def year(tmp_path: Path) -> Path:
    """Twelve hosts in two months; in the second they have another kernel, their baseline is 10 %
    faster, h3 half as fast, and h12 was not measured."""
    place = tmp_path / "year"
    months = (("2024-09", 1.0, "6.12.0", hosts(12)), ("2024-10", 1.1, "6.13.0", hosts(11)))
    for month, speed, kernel, members in months:
        for number, host in enumerate(members):
            own = speed * (0.5 if speed > 1 and host.name == "h3" else 1)
            made = replace(
                host,
                speed=own,
                facts={"kernel_release": kernel},
                seed=number + 100 * int(month[-2:]),
                started=f"{month}-07T00:00:00+00:00",
            )
            archive = tmp_path / month / host.name / "run.tar.xz"
            archive.parent.mkdir(parents=True)
            write_archive(
                archive, made, number, effects={"pinned": 1.2}, noise=0.01, block_noise=0.01,
            )  # fmt: skip
        add_runs(
            place, {one.name: tmp_path / month / one.name / "run.tar.xz" for one in members},
            replace=False,
        )  # fmt: skip
    return place


def test_a_fleet_has_a_run_of_each_host_a_month(year: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in (year / "hosts/h1").iterdir()) == [
        "2024-09.tar.xz", "run.tar.xz", "state.json",
    ]  # fmt: skip
    assert [said("report", f"{year}{of}")["measured"] for of in ("", "@2024-09", "@2024-10")] == [
        12, 12, 11,
    ]  # fmt: skip
    assert {*said("report", f"{year}@2024-09")["facts"]["kernel"]} == {"6.12.0"}
    assert said("report", year)["facts"]["kernel"] == {"6.13.0": 11, "6.12.0": 1}
    with pytest.raises(UsageError, match="no host of year has a run of 2023-10"):
        said("report", f"{year}@2023-10")
    with pytest.raises(UsageError, match="h1 has a run of 2024-09 in year already"):
        add_runs(year, {"h1": tmp_path / "2024-09/h1/run.tar.xz"}, replace=False)
    # An older run is that of its month, whenever it is added.
    late = tmp_path / "late"
    for month in ("2024-10", "2024-09"):
        add_runs(late, {"h1": tmp_path / month / "h1/run.tar.xz"}, replace=False)
    assert {*said("report", late)["facts"]["kernel"]} == {"6.13.0"}
    assert (late / "hosts/h1/2024-09.tar.xz").is_file()


def test_two_months_are_compared_host_by_host(year: Path) -> None:
    found = said("compare", f"{year}@2024-09", f"{year}@2024-10")
    assert (found["measured"], found["only_a"], found["only_b"]) == (11, ["h12"], [])
    assert found["facts"] == [
        {"fact": "kernel", "before": "6.12.0", "after": "6.13.0", "hosts": 11}
    ]
    level = next(one for one in found["changes"] if one["against"] == "")
    assert {one["host"] for one in level["by_host"] if one["apart"]} == {"h3"}
    assert all(
        point["estimate"] == pytest.approx(0.55 if point["host"] == "h3" else 1.1, rel=0.05)
        for point in level["by_host"]
    )
    effects = [one for one in found["changes"] if one["against"] == "baseline"]
    assert all(one["low"] < 1 < one["high"] for one in effects if one["mean"])
    assert effects
    keys = {key for one in found["changes"] for key in one} | {*found}
    text = DOCUMENTED.read_text()
    assert {key for key in keys if f"`{key}`" not in text} == set()


def test_a_comparison_is_shown_in_80_columns(year: Path) -> None:
    words = ["fleet", "compare", f"{year}@2024-09", f"{year}@2024-10"]
    shown = CliRunner().invoke(cli, words, catch_exceptions=False).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "kernel: 6.12.0 before, 6.13.0 now, on 11 hosts." in shown
    assert "h3" in shown.partition("Outlier hosts")[2]


def test_a_fleet_is_not_compared_with_itself(year: Path) -> None:
    with pytest.raises(UsageError, match="are the same fleet"):
        said("compare", year, year)


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
