"""`labctl workload` as a user calls it, short of machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labctl.run.commands import try_workload as module
from labctl.run.commands.try_workload import Tried, read_recorded
from labctl.workloads.declarations import load_declaration
from labctl.workloads.loops import Output
from tests.unit.cli.conftest import Labctl

COUNTER = """\
description: counts
parameters:
  most: {integer: 5, from: 1, to: 9, description: to count to}
trial: {kind: once}
command: [seq, "{{ most }}"]
metrics:
  last: {regex: '^(\\d+)$', which: last, unit: count, better: higher}
primary: last
"""


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    path = tmp_path / "counter.yaml"
    path.write_text(COUNTER)
    return path


def test_the_list_says_where_each_workload_comes_from(labctl: Labctl) -> None:
    rows = json.loads(labctl("workload", "list", "--json").out)["workloads"]
    by_name = {row["name"]: row for row in rows}
    assert by_name["hackbench"]["from"] == "built in"
    assert by_name["hackbench"]["primary"] == "messages_per_s"
    assert by_name["cyclictest"]["from"] == "built in"
    assert "redis answers GETs" in labctl("workload", "list").out


def test_a_lab_folder_s_workload_is_the_user_s(labctl: Labctl, tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    assert labctl("init", str(lab)).code == 0
    (lab / "benchmarks/workloads").mkdir(parents=True, exist_ok=True)
    (lab / "benchmarks/workloads/counter.yaml").write_text(COUNTER)
    rows = json.loads(labctl("--lab", str(lab), "workload", "list", "--json").out)["workloads"]
    assert {row["name"]: row["from"] for row in rows}["counter"] == "yours"


def test_a_broken_file_hides_no_other_workload(labctl: Labctl, tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    assert labctl("init", str(lab)).code == 0
    (lab / "benchmarks/workloads").mkdir(parents=True, exist_ok=True)
    (lab / "benchmarks/workloads/counter.yaml").write_text(COUNTER)
    (lab / "benchmarks/workloads/broken.yaml").write_text(COUNTER.replace("command:", "comand:"))
    said = labctl("--lab", str(lab), "workload", "list")
    assert said.code == 2
    assert "counter" in said.out
    assert "unknown key 'comand'" in said.err
    found = json.loads(labctl("--lab", str(lab), "workload", "list", "--json").out)
    assert list(found["problems"]) == ["broken"]


def test_every_workload_can_be_shown_with_its_commands(labctl: Labctl) -> None:
    names = [
        row["name"] for row in json.loads(labctl("workload", "list", "--json").out)["workloads"]
    ]
    for name in names:
        said = labctl("workload", "show", name, "--json")
        assert said.code == 0, said.err
        sides = json.loads(said.out)["sides"].values()
        assert all(side.get("commands") or side.get("left_out") for side in sides)


def test_show_has_limits_servers_user_and_what_a_loop_repeats(labctl: Labctl) -> None:
    said = labctl("workload", "show", "redis-get").out
    assert "1,000 to 100,000,000" in said
    assert "serve 1 (as uid " in said
    assert "command, repeated (as uid " in said
    assert "packages: redis-server, redis-tools" in said
    assert "/proc/uptime" not in said


def test_a_file_without_a_fault_is_said_to_be_right(labctl: Labctl, counter: Path) -> None:
    said = labctl("workload", "validate", str(counter))
    assert (said.code, said.err) == (0, "")
    assert "valid; its primary metric is last" in said.out


def test_a_unit_that_is_nearly_one_of_labctl_s_is_noted(labctl: Labctl, counter: Path) -> None:
    counter.write_text(COUNTER.replace("unit: count", "unit: mb/s"))
    found = labctl("workload", "validate", str(counter))
    assert (found.code, "did you mean 'MB/s'?" in found.out) == (0, True)


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("primary: last", "primary: lats", 8, "Did you mean 'last'?"),
        ("description: counts", "descripton: counts", 1, "Did you mean 'description'?"),
        ("{{ most }}", "{{ mots }}", 5, "Did you mean 'most'?"),
        ("unit: count", "unit: <b>", 7, "printable characters"),
        ("(\\d+)", "(\\d+", 7, "not a regular expression"),
    ],
)
def test_a_fault_is_named_with_file_line_and_nearest(
    labctl: Labctl, counter: Path, old: str, new: str, line: int, said: str
) -> None:
    assert old in COUNTER
    counter.write_text(COUNTER.replace(old, new))
    found = labctl("workload", "validate", str(counter))
    assert found.code == 2
    assert f"{counter}:{line}:" in found.err
    assert said in found.err


def test_an_unknown_name_has_its_nearest(labctl: Labctl) -> None:
    found = labctl("workload", "try", "hackbensh")
    assert found.code == 2
    assert "Did you mean 'hackbench'?" in found.err


def test_recorded_output_is_read_without_running_anything(
    labctl: Labctl, counter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "try_workload", None)
    recorded = tmp_path / "out.txt"
    recorded.write_text("1\n2\n7\n")
    said = labctl("workload", "try", str(counter), "--from", str(recorded))
    assert said.code == 0
    assert "last: matched 1, 2, 7" in said.out
    assert "last = 7 count" in said.out


def test_a_metric_that_finds_nothing_is_told_with_the_output_s_end(
    labctl: Labctl, counter: Path, tmp_path: Path
) -> None:
    recorded = tmp_path / "out.txt"
    recorded.write_text("nothing to count\n")
    said = labctl("workload", "try", str(counter), "--from", str(recorded), "--json")
    assert said.code == 1
    found = json.loads(said.out)
    assert "nothing to count" in found["metrics"]["last"]["error"]
    assert r"the pattern '^(\d+)$' matches" in found["metrics"]["last"]["error"], "as it was typed"
    assert "metric 'last'" in found["problem"]


def test_a_file_that_a_metric_reads_is_told_from_standard_output(
    labctl: Labctl, counter: Path, tmp_path: Path
) -> None:
    counter.write_text(COUNTER.replace("{regex:", "{from: ticks.csv, regex:"))
    ticks, other = tmp_path / "ticks.csv", tmp_path / "out.txt"
    ticks.write_text("4\n")
    other.write_text("8\n")
    words = ("workload", "try", str(counter), "--from", str(other), "--from")
    assert "last = 4 count" in labctl(*words, str(ticks)).out
    said = labctl(*words, str(counter))
    assert said.code == 2
    assert "Files that metrics read: ticks.csv" in said.err


def test_what_ran_and_printed_is_shown_within_limits(
    labctl: Labctl, counter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def tried(one: Any, *rest: Any) -> Tried:
        asked.append((one, *rest))
        program = load_declaration(counter)
        output = Output("\x1b[31m5\n" + "x" * 5000 + "\n", "")
        return Tried(
            side="guest",
            commands={"command": "seq 5"},
            status=3,
            seconds=0.5,
            stdout=output.stdout.encode(),
            stderr=b"",
            failure="counter ended with status 3",
            read=read_recorded(program, output, {}),
        )

    monkeypatch.setattr(module, "try_workload", tried)
    said = labctl("workload", "try", str(counter), "--guest", "--set", "most=4", "--quiet")
    assert said.code == 1, "the run failed, although the metric was read"
    one, _, kind, *_ = asked[0]
    assert (one.workload.parameters, str(kind)) == ({"most": 4}, "guest")
    assert "guest: exit status 3 after 0.50 s" in said.out
    assert "\x1b" not in said.out
    assert "5 count" in said.out
    assert len(said.out) < 4000


def test_a_try_lasts_as_long_as_the_program_takes_at_least(
    labctl: Labctl, counter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def tried(one: Any, *_: Any) -> Tried:
        asked.append(one.workload.duration_s)
        return Tried(side="native", commands={})

    monkeypatch.setattr(module, "try_workload", tried)
    counter.write_text(COUNTER.replace("{kind: once}", "{least_s: 7}"))
    labctl("workload", "try", str(counter), "--quiet")
    labctl("workload", "try", str(counter), "--quiet", "--duration", "8")
    assert asked == [7, 8]


def test_a_parameter_beyond_its_limits_is_refused(labctl: Labctl, counter: Path) -> None:
    said = labctl("workload", "try", str(counter), "--set", "most=10")
    assert said.code == 2
    assert "from 1 to 9" in said.err
    assert labctl("workload", "try", str(counter), "--set", "most").code == 2


def test_a_program_that_was_killed_is_told_with_its_command(
    labctl: Labctl, counter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = Tried(side="native", commands={"command": "seq 5"}, failure="'seq' was killed")
    monkeypatch.setattr(module, "try_workload", lambda *_: killed)
    said = labctl("workload", "try", str(counter), "--quiet")
    assert said.code == 1
    assert said.out.splitlines()[:2] == ["command: seq 5", "native: it did not finish"]
    assert "failed: 'seq' was killed" in said.out


OWN = ("--command", "python3 w.py", "--metric", "loops=json:loops", "--better", "higher")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "w.py"
    path.write_text("print(1)\n")
    return path


def test_a_command_line_is_tried_as_a_sweep_takes_it(
    labctl: Labctl, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def tried(one: Any, *_: Any) -> Tried:
        asked.append(one)
        return Tried(
            side="native", commands={}, status=0, stdout=b"\x1erun\na\n\x1erun\nb\n", notes=["so"]
        )

    monkeypatch.setattr(module, "try_workload", tried)
    said = labctl("workload", "try", *OWN, "--quiet", "--file", str(script))
    assert said.code == 0, said.err
    (one,) = asked
    assert (one.name, one.workload.duration_s) == ("w.py", 2)
    assert one.workload.definition["files"] == {"w.py": "print(1)\n"}
    assert "stdout (the first of 2 runs): 2 bytes\n  | a\n" in said.out
    assert "\nnote: so\n" in said.out
    found = json.loads(labctl("workload", "try", *OWN, "--quiet", "--json").out)
    assert found["notes"] == ["so"]


@pytest.mark.usefixtures("script")
def test_a_command_line_s_metrics_are_tested_on_recorded_output(
    labctl: Labctl, tmp_path: Path
) -> None:
    (tmp_path / "out.json").write_text('{"loop": 3}')
    said = labctl("workload", "try", *OWN, "--from", "out.json")
    assert said.code == 1
    assert "Did you mean 'loop'?" in said.out
    (tmp_path / "out.json").write_text('{"loops": 3}')
    assert "loops = 3 count" in labctl("workload", "try", *OWN, "--from", "out.json").out


@pytest.mark.parametrize("words", [(), ("redis-get", "--command", "seq 1")])
def test_a_try_needs_a_name_or_a_command(labctl: Labctl, words: tuple[str, ...]) -> None:
    said = labctl("workload", "try", *words)
    assert said.code == 2
    assert "expected either a workload's name or --command" in said.err


def test_an_option_of_a_program_needs_its_command(labctl: Labctl) -> None:
    said = labctl("workload", "try", "redis-get", "--file", "x")
    assert said.code == 2
    assert "--file needs --command" in said.err


def test_a_command_line_becomes_a_file_of_the_lab_folder(
    labctl: Labctl, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = tmp_path / "lab"
    assert labctl("init", str(lab)).code == 0
    words = ("workload", "new", "mine", *OWN)
    said = labctl("--lab", str(lab), *words)
    assert said.code == 0, said.err
    path = lab / "benchmarks/workloads/mine.yaml"
    assert f"Wrote {path} and 1 file beside it." in said.out
    assert "Try it: labctl workload try mine" in said.out
    assert path.with_name("mine-files").joinpath("w.py").read_bytes() == script.read_bytes()
    script.write_text("changed")
    program = load_declaration(path)
    assert program.definition["files"] == {"w.py": "print(1)\n"}
    assert program.definition["command"] == ["python3", "{{ files }}/w.py"]
    assert labctl("--lab", str(lab), "workload", "validate", "mine").code == 0
    again = labctl("--lab", str(lab), *words)
    assert (again.code, "exists already" in again.err) == (2, True)


@pytest.mark.usefixtures("script")
def test_a_new_file_needs_a_place_and_a_command(labctl: Labctl, tmp_path: Path) -> None:
    said = labctl("workload", "new", "mine", *OWN)
    assert (said.code, "--out FOLDER" in said.err) == (2, True)
    assert labctl("workload", "new", "mine").code == 2
    assert "expected letters" in labctl("workload", "new", "../mine", *OWN).err
    assert labctl("workload", "new", "mine", *OWN, "--out", "there").code == 0
    assert load_declaration(tmp_path / "there/mine.yaml").primary == "loops"
