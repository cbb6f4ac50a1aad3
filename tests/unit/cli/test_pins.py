"""`labctl pins`: this host, another one's sysfs, part of either."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labctl.base.errors import HostError, UsageError
from labctl.cli.pins import command

from ..domain import hosts


def plan(*arguments: object) -> Result:
    return CliRunner().invoke(command, [*map(str, arguments)])


def words(result: Result) -> str:
    """What was printed, without where its lines were folded."""
    return " ".join(result.output.split())


@pytest.fixture
def epyc(tmp_path: Path) -> Path:
    hosts.machine("epyc-7451-2s", tmp_path)
    return tmp_path


def test_a_copy_of_sysfs_is_planned_for_whatever_this_host_is(epyc: Path) -> None:
    data = json.loads(plan("--sysfs", epyc, "--strategy", "spread", "--json").output)
    assert data["vcpus"] == {"0": 1, "1": 6, "2": 24, "3": 30}
    assert data["strategy"] == "spread"
    assert data["picture"].startswith("package 0, node 0, L3 of CPUs 0-2,48-50")


def test_the_strategy_and_what_the_guest_may_see_are_told(epyc: Path) -> None:
    output = words(plan("--sysfs", epyc, "--vcpus", 4, "--strategy", "siblings"))
    assert "Strategy 'siblings': vCPUs on NUMA node 0." in output
    assert "To the guest: sockets 1, cores 2, threads 2." in output
    assert "On this host 'siblings' places these threads just as 'compact' does." in output


def test_a_list_of_cpus_is_as_good_as_a_cpuset(epyc: Path) -> None:
    data = json.loads(plan("--sysfs", epyc, "--cpus", "6-8,54-56", "--vcpus", 2, "--json").output)
    assert (data["usable"], data["housekeeping"]) == ("6-8,54-56", "6,54")
    assert data["vcpus"] == {"0": 7, "1": 55}


def test_isolated_cpus_of_a_copy_get_the_vcpus(epyc: Path) -> None:
    (epyc / "devices/system/cpu/isolated").write_text("2-5\n")
    data = json.loads(plan("--sysfs", epyc, "--vcpus", 2, "--json").output)
    assert data["vcpus"] == {"0": 3, "1": 4}, "2 is in another L3 than 3 to 5"
    assert data["usable"] == "0-1,6-95"


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        (["--cpus", "3-1"], UsageError, "--cpus: not a CPU list: '3-1'"),
        (["--cpus", "9000"], HostError, "this process may use 9000"),
        (["--sysfs", "/proc"], UsageError, "/proc is not a copy of /sys"),
        (["--strategy", "siblings", "--vcpus", "1"], UsageError, "strategy 'siblings'"),
    ],
)
def test_what_cannot_be_planned_is_said(
    arguments: list[str], kind: type[Exception], says: str
) -> None:
    error = plan(*arguments).exception
    assert isinstance(error, kind)
    assert says in str(error)


def test_an_unknown_strategy_names_the_known_ones() -> None:
    result = plan("--strategy", "dense")
    assert result.exit_code == 2
    assert "'compact', 'spread', 'node', 'siblings'" in result.output


def test_several_guests_are_planned_together(epyc: Path) -> None:
    data = json.loads(plan("--sysfs", epyc, "--guests", "4,2", "--json").output)
    first, second = (set(guest["vcpus"].values()) for guest in data["guests"])
    assert (len(first), len(second)) == (4, 2)
    assert not first & second
    assert "guest 2 emulator" in data["picture"]


def test_what_is_said_of_all_guests_is_said_once(epyc: Path) -> None:
    output = words(plan("--sysfs", epyc, "--guests", 3, "--vcpus", 2))
    assert output.count("the first core, is for housekeeping") == 1
    assert output.count("Reasons for guest") == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--guests", "0"], "expected a whole number from 1 to 1024, got '0'"),
        (["--guests", "4,x"], "expected a whole number"),
        (["--guests", "2,,2"], "got ''"),
        (["--guests", "4,2", "--vcpus", "2"], "Leave one of them out"),
    ],
)
def test_guests_that_cannot_be_read_are_refused(arguments: list[str], says: str) -> None:
    refused = plan(*arguments).exception
    assert isinstance(refused, UsageError)
    assert says in f"{refused.message} {refused.hint}"
