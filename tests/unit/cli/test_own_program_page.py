"""The commands of docs/own-program.md do what the page says of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Labctl, own_files
from tests.unit.domain import hosts
from tests.unit.run.asked import plan_on

PAGE = Path(__file__).parents[3] / "docs/own-program.md"
COMMANDS = [
    shlex.split(command.replace("\\\n", " "), comments=True)[1:]
    for command in re.findall(r"^    (labctl (?:.*\\\n)*.*)", PAGE.read_text(), re.M)
]
SWEEPS = [words for words in COMMANDS if words[0] == "sweep"]
RUN_NOTHING = [
    words
    for words in COMMANDS
    if words[:2] not in (["workload", "try"], ["workload", "new"]) and words not in SWEEPS
]


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan_on(monkeypatch, hosts.TWO_CPUS)
    own_files(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_the_page_has_commands_of_each_kind() -> None:
    assert len(SWEEPS) == 2
    assert {words[1] for words in COMMANDS if words[0] == "workload"} == {
        *("list", "show", "validate", "try", "new")
    }


@pytest.mark.parametrize("words", SWEEPS, ids=shlex.join)
def test_its_sweeps_can_be_planned(labctl: Labctl, words: list[str]) -> None:
    said = labctl(*words, "--plan-only")
    assert said.code == 0, said.err
    assert "guest, as uid" in said.out
    assert ("helper.py: 8 bytes" in said.out) is ("./w.py" in words)


@pytest.mark.parametrize("words", RUN_NOTHING, ids=shlex.join)
def test_its_other_commands_work_as_they_stand(labctl: Labctl, words: list[str]) -> None:
    said = labctl(*words)
    assert (said.code, said.err) == (0, "")


def test_its_new_file_is_a_workload_of_the_lab_folder(labctl: Labctl, tmp_path: Path) -> None:
    (words,) = [words for words in COMMANDS if words[:2] == ["workload", "new"]]
    assert labctl("init", str(tmp_path / "lab")).code == 0
    said = labctl("--lab", str(tmp_path / "lab"), *words)
    assert said.code == 0, said.err
    assert labctl("--lab", str(tmp_path / "lab"), "workload", "validate", words[2]).code == 0


def test_its_try_of_a_command_line_takes_the_same_options(labctl: Labctl, tmp_path: Path) -> None:
    (words,) = [words for words in COMMANDS if words[1] == "try" and "--command" in words]
    (tmp_path / "recorded.json").write_text('{"loops": 5}')
    said = labctl(*words, "--from", "recorded.json")
    assert said.code == 0, said.err
    assert "loops = 5 count" in said.out


def test_its_try_reads_recorded_output(labctl: Labctl, tmp_path: Path) -> None:
    (words,) = [words for words in COMMANDS if "--from" in words]
    (tmp_path / words[-1]).write_text('"test","rps","p99_latency_ms"\n"GET","50220.00","1.2"\n')
    said = labctl(*words)
    assert said.code == 0, said.err
    assert "get = 50220 1/s" in said.out
