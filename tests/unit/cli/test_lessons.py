"""The lessons: every command runs on the recorded runs, and the key is what these show."""

from __future__ import annotations

import re
import shlex
import shutil
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools import lessons

from .conftest import Labctl

LESSONS = sorted(lessons.LESSONS.glob("[0-9]*.md"))
_COMMAND = re.compile(r"^    labctl (.*)$", re.MULTILINE)


def recorded(path: Path) -> str:
    """The part of a lesson that needs no host of its own."""
    return path.read_text().partition("## On your own host")[0]


COMMANDS = [
    pytest.param(command, id=f"{path.stem[0]}: {command}")
    for path in LESSONS
    for command in _COMMAND.findall(recorded(path))
]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive that students get, unpacked."""
    folder = tmp_path_factory.mktemp("student")
    for name, content in lessons.files():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def copy_forms(lesson: Path, target: Path) -> None:
    for form in (lesson / "exercises").glob("*.yaml"):
        shutil.copy(form, target)


@pytest.fixture(autouse=True)
def as_a_student(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder with copies of the forms, as lessons ask for; no option names any runs."""
    copy_forms(lessons.LESSONS, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABCTL_RESULTS", raising=False)


def test_there_are_three_lessons() -> None:
    assert [path.stem[0] for path in LESSONS] == ["1", "2", "3"]
    assert len(COMMANDS) > 8


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_a_lesson_runs_on_the_recorded_runs(labctl: Labctl, command: str) -> None:
    said = labctl(*shlex.split(command))
    # The forms hold wrong predictions until a student changes them.
    assert said.code == (1 if command.startswith("gate") else 0), said.err
    assert said.err == ""
    assert said.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_a_lesson_runs_in_the_archive_that_students_get(
    labctl: Labctl, command: str, unpacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_forms(unpacked, unpacked)
    monkeypatch.chdir(unpacked)
    said = labctl(*shlex.split(command))
    assert said.code == (1 if command.startswith("gate") else 0), said.err


@pytest.mark.parametrize("name", ["example", "example-traced", "example-kvm"])
def test_a_recorded_run_is_found_from_anywhere(
    labctl: Labctl, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert labctl("run", "show", name).code == 0


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_key_is_what_the_recorded_run_shows(labctl: Labctl, number: int) -> None:
    said = labctl("gate", "example", "--policy", str(lessons.LESSONS / f"key/{number}.yaml"))
    assert said.code == 0, said.out


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_asks_before_it_shows(path: Path) -> None:
    titles = re.findall(r"^## (?:\d+\. )?(.*)$", path.read_text(), re.MULTILINE)
    assert titles[:2] == ["Predict", "Look"]
    assert titles[-2:] == ["Questions", "On your own host"]
    asked = re.search(r"## \d+\. Questions\n\n((?:\d\. .*\n)+)", path.read_text())
    key = (lessons.LESSONS / "key" / "README.md").read_text()
    answers = key.split("## Lesson ")[int(path.stem[0])]
    assert asked is not None
    assert len(re.findall(r"^\d\. ", answers, re.MULTILINE)) == len(asked.group(1).splitlines())


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_the_sweeps_of_a_lesson_can_be_planned(labctl: Labctl, path: Path) -> None:
    live = path.read_text().partition("## On your own host")[2]
    commands = _COMMAND.findall(live)
    assert commands
    for command in commands:
        said = labctl(*shlex.split(command), "--plan-only")
        assert said.code == 0, said.err


def test_the_archive_holds_all_that_a_room_needs_and_not_the_key(tmp_path: Path) -> None:
    target = tmp_path / "lessons.tar.xz"
    result = CliRunner().invoke(lessons.main, ["--to", str(target)], catch_exceptions=False)
    assert result.exit_code == 0
    with tarfile.open(target) as archive:
        names = {name.removeprefix("labctl-lessons/") for name in archive.getnames()}
        index = archive.extractfile("labctl-lessons/index.html")
        assert index is not None
        text = index.read().decode()
    assert {"index.html", "1-one-scheduler.html", "exercises/3.yaml"} <= names
    assert {"runs/example.tar.xz", "pages/example.html"} <= names
    assert not any("key" in name for name in names)
    assert "key/" not in text
    for link in re.findall(r'href="([^"#:]*)"', text):
        assert link in names, link
