"""`labctl sweep STUDY --command …`: a program of one's own without a file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from labctl.cli.parts.own_program import argv_of
from labctl.run.commands import sweep as module
from labctl.run.commands.sweep import command as recorded_command
from labctl.run.planning.plan import plan_sweep
from labctl.store.run_folder import RunFolder
from labctl.study.load_study import OneProgram
from labctl.workloads.declarations import load_declaration
from tests.unit.cli.conftest import Labctl
from tests.unit.domain import hosts
from tests.unit.run.asked import plan_on
from tests.unit.synthetic import write_run

REDIS = (
    *("--serve", 'redis-server --port 6379 --save ""', "--port", "6379"),
    *("--command", "redis-benchmark -t get -n 100000 -q"),
    *("--metric", r"get=GET: ([\d.]+) requests per second", "--better", "higher"),
    *("--package", "redis-tools", "--package", "redis-server"),
)


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_on(monkeypatch, hosts.TWO_CPUS)


def planned(labctl: Labctl, *words: str) -> dict[str, Any]:
    said = labctl("sweep", "pinning", *words, "--seed", "1", "--plan-only", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert isinstance(found, dict)
    return found


def definition(labctl: Labctl, *words: str) -> dict[str, Any]:
    (workload,) = planned(labctl, *words)["workloads"].values()
    found = workload["definition"]
    assert isinstance(found, dict)
    return found


def refused(labctl: Labctl, *words: str) -> str:
    said = labctl("sweep", "pinning", *words, "--plan-only")
    assert said.code == 2, said.out
    return " ".join(said.err.split())


def test_the_study_keeps_its_arms_and_measures_this_program(labctl: Labctl) -> None:
    own, study = planned(labctl, *REDIS), planned(labctl)
    assert list(own["tunings"]) == list(study["tunings"])
    assert list(own["workloads"]) == ["redis-benchmark"]
    workload = own["workloads"]["redis-benchmark"]
    assert (workload["duration_s"], workload["primary"], workload["margin"]) == (10, "get", 0.05)
    found = workload["definition"]
    assert found["trial"] == {"kind": "repeat"}
    assert found["packages"] == ["redis-tools", "redis-server"]
    (server,) = found["serve"]
    assert server["argv"] == ["redis-server", "--port", "6379", "--save", ""]
    assert server["ready"] == {"tcp": 6379}


def test_the_plan_shows_every_command_with_side_and_user(labctl: Labctl) -> None:
    said = labctl("sweep", "pinning", *REDIS, "--plan-only").out
    for side in ("native", "guest"):
        assert f"redis-benchmark, {side}, as uid " in said
    assert said.count("serve 1: redis-server --port 6379 --save ''") == 2
    assert said.count("command, repeated: redis-benchmark -t get -n 100000 -q") == 2
    assert planned(labctl, *REDIS)["commands"]["redis-benchmark"]["guest"]["commands"]


def test_programs_of_labctl_s_own_are_not_listed(labctl: Labctl) -> None:
    assert "commands" not in planned(labctl)


def test_without_a_metric_the_time_decides(labctl: Labctl) -> None:
    (workload,) = planned(labctl, "--command", "make -s")["workloads"].values()
    assert workload["primary"] == "elapsed"
    assert workload["definition"]["trial"] == {"kind": "once"}


def test_a_command_with_a_duration_runs_for_it(labctl: Labctl) -> None:
    found = definition(
        labctl,
        *("--command", "bench --time {{ duration }} {{ work + '/a b' }}", "--unit"),
        *("1/s", "--metric", "rate=json:totals.rate", "--better", "higher"),
    )
    assert found["trial"] == {"kind": "duration"}
    assert found["command"][-1] == "{{ work + '/a b' }}", "an expression is one argument"
    assert found["metrics"]["rate"] == {
        "json": "totals.rate",
        "unit": "1/s",
        "better": "higher",
    }


def test_metrics_units_and_directions_pair_up_in_order(labctl: Labctl) -> None:
    found = definition(
        labctl,
        *("--command", "hey", "--once", "--timeout", "30"),
        *("--metric", "rps=csv:rps[test=GET]", "--metric", "p99=out.csv:csv:p99"),
        *("--metric", r"n=stderr:^n: (\d+)$"),
        *("--unit", "1/s", "--unit", "ms", "--unit", "count"),
        *("--better", "higher", "--better", "lower", "--better", "neither"),
    )
    metrics = found["metrics"]
    assert metrics["rps"]["csv"] == {"column": "rps", "where": {"test": "GET"}}
    assert (metrics["rps"]["unit"], metrics["p99"]["unit"]) == ("1/s", "ms")
    assert metrics["p99"]["from"] == "out.csv"
    assert (metrics["n"]["from"], metrics["n"]["regex"]) == ("stderr", r"^n: (\d+)$")
    assert found["primary"] == "rps"
    assert found["trial"] == {"kind": "once", "limit_s": 30}


@pytest.mark.parametrize(
    ("metric", "unit", "better"),
    [
        ("x=(1)", ("--unit", "Mops/s"), "higher"),
        ("x=(1)", ("--unit", "x=us"), "lower"),
        ("p99=(1)", (), "lower"),
        ("score=(1)", (), "higher"),
        (r"get=GET: ([\d.]+) requests per second", (), "higher"),
        ("errors=(1)", ("--unit", "1/s"), "lower"),
    ],
)
def test_a_metric_s_direction_is_that_of_its_unit_or_name(
    labctl: Labctl, metric: str, unit: tuple[str, ...], better: str
) -> None:
    found = definition(labctl, "--command", "a", "--metric", metric, *unit)
    (made,) = found["metrics"].values()
    assert made["better"] == better


def test_a_direction_and_a_unit_may_name_their_metric(labctl: Labctl) -> None:
    found = definition(
        labctl,
        *("--command", "a", "--metric", "x=(1)", "--metric", "rate=(2)", "--metric", "y=(3)"),
        *("--better", "y=neither", "--better", "x=lower", "--unit", "rate=kops/s"),
    )
    metrics = found["metrics"].items()
    assert {name: (one["unit"], one["better"]) for name, one in metrics} == {
        "x": ("count", "lower"),
        "rate": ("kops/s", "higher"),
        "y": ("count", "neither"),
    }


def test_a_guess_and_a_unit_that_is_nearly_one_are_noted(labctl: Labctl) -> None:
    words = ("--command", "a", "--metric", "x=(1) per second", "--unit", "mb/s", "--plan-only")
    said = labctl("sweep", "pinning", *words)
    assert (said.code, "did you mean 'MB/s'?" in " ".join(said.err.split())) == (0, True)
    words = ("--command", "a", "--metric", "x=(1) per second", "--plan-only")
    assert "higher is better, guessed from its reader" in labctl("sweep", "pinning", *words).err


def test_a_colon_after_a_word_is_no_file(labctl: Labctl) -> None:
    found = definition(labctl, *REDIS)
    assert "from" not in found["metrics"]["get"]


def test_a_parameter_has_its_value_in_every_command(labctl: Labctl) -> None:
    words = ("--command", "seq {{ most }}", "--parameter", "most=7", "--once")
    said = labctl("sweep", "pinning", *words, "--plan-only").out
    assert said.count("command: seq 7\n") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--command", "a | b"), "contains '|', but it is not run by a shell"),
        (("--command", "a 'b"), "is not a command"),
        (("--command", " "), "--command is empty"),
        (("--metric", "x=(1)"), "Add --command"),
        (("--command", "a", "--metric", "x"), "--metric: expected NAME=READER, got"),
        (("--command", "a", "--metric", "x=(1)"), "Add '--better x=higher'"),
        (("--command", "a", "--metric", "x=(1)", "--better", "x=up"), "higher, lower or neither"),
        (("--command", "a", "--metric", "x=(1)", "--better", "y=lower"), "no metric 'y'"),
        (
            ("--command", "a", "--metric", "x", "--better", "lower"),
            "--metric: expected NAME=READER, got",
        ),
        (
            ("--command", "a", "--metric", "x=(1)", "--metric", "y=(1)", "--better", "lower"),
            "expected one for each of the 2 --metric, in order, got 1",
        ),
        (("--command", "a", "--better", "lower"), "needs a --metric"),
        (("--command", "a", "--metric", "x=1", "--better", "lower"), "no group around the number"),
        (("--command", "a", "--metric", "x=(1", "--better", "lower"), "not a regular expression"),
        (
            ("--command", "a", "--metric", "x=(1)", "--better", "lower", "--unit", "<b>"),
            "'metrics.x.unit' is '<b>': unit '<b>': a unit has printable characters only",
        ),
        (("--command", "a", "--serve", "b"), "exactly one of --port and --ready"),
        (("--command", "a", "--serve", "b", "--ready", "soon"), "--ready: expected tcp:PORT"),
        (("--command", "a", "--port", "1"), "needs --serve"),
        (("--command", "a {{ x }}"), "no 'x'"),
        (("--command", "a", "--workload", "fio"), "--workload exclude each other"),
        (
            ("--command", "a", "--setup", "b", "--metric", "x=(1)", "--better", "lower"),
            "Add --once",
        ),
        (("--command", "a", "--package", "No Such"), "'packages.0' is 'No Such'"),
    ],
)
def test_what_cannot_be_meant_is_refused(labctl: Labctl, words: tuple[str, ...], said: str) -> None:
    assert said in refused(labctl, *words)


def test_a_shell_s_sign_inside_quotes_is_an_argument() -> None:
    assert argv_of("sh -c 'a | b'", "--command") == ["sh", "-c", "a | b"]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    asked: list[Any] = []

    def sweep(request: Any, listener: Any, judging: Any) -> RunFolder:
        asked.append(request)
        return write_run(tmp_path / "results" / "made-up")

    monkeypatch.setattr(module, "sweep", sweep)
    return asked


def test_the_run_s_command_gives_the_same_plan_again(labctl: Labctl, requests: list[Any]) -> None:
    labctl("sweep", "pinning", *REDIS, "--seed", "7", "--quiet")
    plan = plan_sweep(requests[0]).plan
    words = recorded_command(requests[0], plan)
    assert shlex.split(shlex.join(words)) == words
    labctl(*words[1:], "--quiet")
    assert plan_sweep(requests[1]).plan.record().digest == plan.record().digest


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ((), 10),
        (("--quick",), 2),
        (("--quick", "--duration", "5s"), 5),
        (("--duration", "5s"), 5),
    ],
)
def test_a_quick_run_measures_it_as_long_as_the_study_s_own(
    labctl: Labctl, more: Sequence[str], seconds: int
) -> None:
    said = labctl("sweep", "pinning", *REDIS, *more, "--plan-only", "--json")
    (workload,) = json.loads(said.out)["workloads"].values()
    assert workload["duration_s"] == seconds


def test_the_file_of_the_run_is_a_workload(
    labctl: Labctl, requests: list[Any], tmp_path: Path
) -> None:
    labctl("sweep", "pinning", *REDIS, "--quiet")
    program: OneProgram = requests[0].overrides.program
    path = tmp_path / "redis-benchmark.yaml"
    path.write_bytes(program.as_files(path.name)[path.name])
    assert load_declaration(path).definition == program.workload.definition


def test_what_is_not_known_before_the_image_is_built_is_noted(
    labctl: Labctl, tmp_path: Path
) -> None:
    said = labctl(
        *("--state-dir", str(tmp_path / "state"), "sweep", "pinning", "--command", "nosuch"),
        *("--once", "--plan-only"),
    )
    assert said.code == 0
    assert (
        "note: 'nosuch': checked in the image 'debian-13' after the sweep has built it" in said.err
    )
