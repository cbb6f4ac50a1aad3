"""`labctl gate` and `labctl compare` as a user meets them."""

from __future__ import annotations

import json
import platform
from datetime import datetime
from pathlib import Path

import pytest
from lxml import etree

from tests.unit.analysis.alter import with_plan
from tests.unit.cli.conftest import Labctl
from tests.unit.synthetic import WORKLOADS, synthetic_run, write_run

RULE = "  - {tuning: pinned, workload: sysbench-cpu, metric: events_per_s, against: baseline, %s}\n"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    runs = {"one": {}, "two": {"seed": 2}, "short": {"blocks": 2}, "kvm": {"accelerator": "kvm"}}
    arms = ("native+pinned", "baseline", "control", "handicap", "pinned")
    cpu = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}
    for name, shape in runs.items():
        run = synthetic_run(tunings=arms, workloads=cpu, primary_only=True, **shape)
        write_run(folder / name, run)
    run = synthetic_run(tunings=arms, workloads=cpu, primary_only=True)
    entries = run.plan.to_json()["tunings"]
    entries["baseline"]["durability"], entries["pinned"]["durability"] = "writeback", "unsafe"
    write_run(folder / "unsafe", with_plan(run, tunings=entries))
    wide = {"seed": 17, "noise": 0.03, "boots": 10, "effects": {"handicap": 0.8}}
    write_run(
        folder / "wide", synthetic_run(tunings=arms[1:], workloads=cpu, primary_only=True, **wide)
    )
    return folder


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    monkeypatch.setenv("LABCTL_RESULTS", str(results))


def policy(results: Path, *limits: str, undecided: str = "open") -> str:
    path = results / "policy.yaml"
    path.write_text(f"undecided: {undecided}\nrules:\n" + "".join(RULE % one for one in limits))
    return str(path)


@pytest.mark.parametrize(
    ("run", "limit", "status", "says"),
    [
        ("one", "worse_by_at_most: 40 %", 0, "Passed: 1 check, 1 holds."),
        ("one", "worse_by_at_most: 5 %", 1, "Failed: 1 check, 1 violated."),
        ("short", "worse_by_at_most: 5 %", 2, "Not enough data to decide: 1 check, 1 undecided."),
    ],
)
def test_the_exit_status_is_the_answer(
    labctl: Labctl, results: Path, run: str, limit: str, status: int, says: str
) -> None:
    result = labctl("gate", run, "--policy", policy(results, limit))
    assert result.code == status
    assert says in result.out


@pytest.mark.parametrize(
    ("run", "limit", "status"),
    [
        ("wide", "within: 20 %", 0),
        ("wide", "within: 5 %", 2),
        ("wide", "better_by_at_least: 20 %", 1),
        ("unsafe", "worse_by_at_most: 40 %", 2),
    ],
)
def test_what_a_rule_can_t_say_is_no_pass_and_what_it_can_is_one(
    labctl: Labctl, results: Path, run: str, limit: str, status: int
) -> None:
    """A control that leaves 6 % open; a disk that ignores flushes, where 'pass' is asked for."""
    undecided = "pass" if run == "unsafe" else "open"
    result = labctl("gate", run, "--policy", policy(results, limit, undecided=undecided))
    assert result.code == status


def test_no_line_is_longer_than_80_columns(labctl: Labctl, results: Path) -> None:
    limits = ("worse_by_at_most: 40 %", "within: 1 %", "better_by_at_least: 300 %")
    result = labctl("gate", "one", "--policy", policy(results, *limits))
    assert max(map(len, result.out.splitlines())) <= 80


def test_json_and_junit_agree(labctl: Labctl, results: Path) -> None:
    chosen = policy(results, "worse_by_at_most: 40 %", "within: 1 %")
    file = results / "junit.xml"
    result = labctl("gate", "one", "--policy", chosen, "--json", "--junit", str(file))
    found = json.loads(result.out)
    assert [check["outcome"] for check in found["checks"]] == ["holds", "violated"]
    assert found["passed"] is False
    suite = etree.parse(file).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert len(suite.findall("testcase/failure")) == 1
    run = json.loads((results / "one/run.json").read_text())
    took = datetime.fromisoformat(run["ended_at"]) - datetime.fromisoformat(run["started_at"])
    assert suite.get("time") == f"{took.total_seconds():.0f}"
    assert f"{suite.get('timestamp')}+00:00" == run["started_at"]
    assert suite.get("hostname") == platform.node()


def test_junit_names_the_host_of_a_fetched_run(labctl: Labctl, results: Path) -> None:
    archive = results / "fetched/node7/run.tar.xz"
    archive.parent.mkdir(parents=True)
    assert labctl("run", "export", "one", "--out", str(archive)).code == 0
    file = results / "junit.xml"
    chosen = policy(results, "within: 1 %")
    labctl("gate", str(archive), "--policy", chosen, "--junit", str(file))
    assert etree.parse(file).getroot().get("hostname") == "node7"


def test_names_cannot_break_the_markdown(labctl: Labctl, results: Path) -> None:
    path = results / "policy.yaml"
    path.write_text(
        "undecided: open\nrules:\n  - {name: 'a | b <i> `c`', metric: none, above: 1}\n"
    )
    result = labctl("gate", "one", "--policy", str(path), "--markdown")
    (row,) = [line for line in result.out.splitlines() if "no value" in line]
    assert row.startswith(r"| a \| b \<i\> \`c\` | no value")


def test_a_policy_that_is_not_there_is_named(labctl: Labctl, results: Path) -> None:
    result = labctl("gate", "one", "--policy", str(results / "none.yaml"))
    assert result.code == 2
    assert "none.yaml" in result.err


def test_a_run_that_a_rule_names_must_be_there(labctl: Labctl, results: Path) -> None:
    path = results / "policy.yaml"
    path.write_text("undecided: open\nrules:\n  - {metric: x, like: fleet, within: 5 %}\n")
    result = labctl("gate", "one", "--policy", str(path))
    assert result.code == 2
    assert "no run named 'fleet'" in result.err


def test_two_runs_are_shown_in_80_columns(labctl: Labctl, results: Path) -> None:
    result = labctl("compare", "one", "two")
    assert result.code == 0
    assert "The tunings' effects on their baselines" in result.out
    assert max(map(len, result.out.splitlines())) <= 80


def test_what_cannot_be_compared_is_refused_until_forced(labctl: Labctl, results: Path) -> None:
    refused = labctl("compare", "one", "kvm")
    assert refused.code == 2
    assert "--force" in refused.err
    forced = labctl("compare", "one", "kvm", "--force")
    assert forced.code == 0
    assert "Not comparable" in forced.out
    found = json.loads(labctl("compare", "one", "kvm", "--force", "--json").out)
    assert len(found["refusals"]) == 1


def test_a_run_is_not_compared_with_itself(labctl: Labctl, results: Path) -> None:
    refused = labctl("compare", "one", str(results / "one"))
    assert refused.code == 2
    assert "are the same" in refused.err
    assert "labctl report one" in refused.err


def test_a_wrong_amount_is_told_once_in_the_policys_own_words(
    labctl: Labctl, results: Path
) -> None:
    path = results / "policy.yaml"
    path.write_text(
        "undecided: open\nrules:\n  - metric: iops\n    against: baseline\n    within: 5x\n"
    )
    result = labctl("gate", "one", "--policy", str(path))
    assert result.code == 2
    assert f"{path}:5: 'rules.0.within' is '5x': expected a number in" in result.err
    assert result.err.endswith("such as '3 ms' or '5 %'.\n")


def test_all_facts_may_stand_without_brackets(labctl: Labctl, results: Path) -> None:
    path = results / "policy.yaml"
    path.write_text("undecided: open\nrules:\n  - {like: two, facts: all}\n")
    assert labctl("gate", "one", "--policy", str(path)).code in (0, 1)
