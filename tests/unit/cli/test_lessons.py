"""The lessons: commands, numbers, pictures and predictions are those of the recorded runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from labctl.cli import lesson
from labctl.cli.lesson import Command, Lesson, Prediction
from tests.unit.domain import hosts
from tests.unit.run.asked import plan_on
from tools import lessons

from .conftest import Labctl, Said

PAGES = sorted(lessons.LESSONS.glob("[0-9]-*.md"))
LESSONS = [lesson.load_lesson(path) for path in PAGES]
COMMANDS = list(
    dict.fromkeys(step for one in LESSONS for step in one.steps if isinstance(step, Command))
)
_SAID: dict[Command, Said] = {}
ANSWERS = (lessons.LESSONS / "answers.md").read_text()
BY_PAGE = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
BY_LESSON = pytest.mark.parametrize("one", LESSONS, ids=lambda one: str(one.number))


def key(one: Lesson) -> str:
    """The predictions that the recorded run confirms."""
    found = re.search(rf"## Lesson {one.number}\n\nPredictions: `(.*)`", ANSWERS)
    assert found is not None
    return found.group(1)


def said_by(labctl: Labctl, command: Command) -> Said:
    """What a command prints; each runs once, as two tests read it."""
    if command not in _SAID:
        _SAID[command] = labctl(*command.words)
    return _SAID[command]


def one_of_results(command: Command) -> bool:
    return command.words[0] in ("report", "timeline")


def asked(one: Lesson) -> list[Prediction]:
    return [step for step in one.steps if isinstance(step, Prediction)]


@pytest.fixture(autouse=True)
def as_a_student(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder; no option names any runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABCTL_RESULTS", raising=False)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: shlex.join(command.words))
def test_every_command_of_a_lesson_ends_as_it_says(labctl: Labctl, command: Command) -> None:
    said = said_by(labctl, command)
    assert said.code == command.code, said.err
    assert said.out or command.code


@BY_LESSON
def test_the_key_is_what_the_recorded_run_shows(labctl: Labctl, one: Lesson) -> None:
    said = labctl("lesson", "start", str(one.number), "--answers", key(one))
    count = len(asked(one))
    assert count >= 3
    assert (said.code, said.out.count(": right\n")) == (0, count), said.out
    assert f"\n{count} of {count} predictions were right." in said.out


@BY_PAGE
def test_the_numbers_of_the_text_are_printed_by_its_commands(labctl: Labctl, path: Path) -> None:
    one = lesson.load_lesson(path)
    printed = ""
    for step in one.steps:
        if isinstance(step, Command):
            said = said_by(labctl, step)
            printed += " ".join((said.out + said.err).split())
    numbers = re.findall(r"`([-+−]?\d[^`]*)`", path.read_text().partition("## What to expect")[0])
    assert numbers
    assert [number for number in numbers if number not in printed] == []


@BY_PAGE
def test_a_lesson_has_each_part(path: Path) -> None:
    text = path.read_text()
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles[-4:] == ["What goes wrong", "What to expect", "Questions", lesson.LIVE]
    assert "**Question.**" in text
    assert all(f"| {where}" in text for where in ("native", "KVM", "TCG"))
    assert 400 < len(text.split()) < 900
    (picture,) = re.findall(r"!\[[^]]+\]\((pictures/.*)\)", text)
    assert (path.parent / picture).is_file()
    number = path.stem[0]
    questions = re.findall(r"^\d\. ", text.partition("## Questions")[2], re.MULTILINE)
    answers = ANSWERS.partition(f"## Lesson {number}\n")[2].partition("\n## ")[0]
    assert len(questions) == len(re.findall(r"^\d\. ", answers, re.MULTILINE)) >= 3


@BY_PAGE
def test_a_lesson_asks_before_it_shows(path: Path) -> None:
    steps = lesson.load_lesson(path).steps
    shows = [isinstance(step, Command) and one_of_results(step) for step in steps]
    first = shows.index(True)
    assert any(isinstance(step, Prediction) for step in steps[:first])
    for before, step in pairwise(steps):
        if isinstance(step, Prediction):
            assert isinstance(before, str)
            assert re.search(r"\*\*Predict \d\.\*\*[^\n]*$", before)


@BY_LESSON
def test_the_sweeps_of_a_lesson_can_be_planned(
    labctl: Labctl, one: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_on(monkeypatch, hosts.TWO_CPUS)
    assert len(one.live) == len(one.runs)
    for command in one.live:
        said = labctl(*command.words, "--plan-only", "--accel", "tcg")
        assert said.code == 0, said.err


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ("1,c", "--answers: expected 3 predictions, got 2"),
        ("much,c,b", "prediction: expected a number, got 'much'"),
        ("1,d,b", "prediction: expected one of a, b, c, got 'd'"),
    ],
)
def test_wrong_answers_are_wrong_usage(labctl: Labctl, answers: str, says: str) -> None:
    said = labctl("lesson", "start", "1", "--answers", answers)
    assert (said.code, says in said.err) == (2, True)


@pytest.mark.parametrize("answers", ["1,c,b", "411,a,b", "411,c,a", "-5,c,b"])
def test_a_wrong_prediction_is_graded_as_such(labctl: Labctl, answers: str) -> None:
    said = labctl("lesson", "start", "1", "--answers", answers)
    assert (said.code, said.out.count(": wrong\n")) == (0, 1)
    assert "2 of 3 predictions were right." in said.out


def test_a_student_is_asked_until_the_answer_can_be_graded(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["many", "400", "c", "b"])
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: next(typed))
    said = labctl("lesson", "start", "1")
    assert said.code == 0, said.err
    assert "expected a number, got 'many'" in said.out
    assert "3 of 3 predictions were right." in said.out


def test_a_lesson_that_is_missing_is_wrong_usage(labctl: Labctl) -> None:
    said = labctl("lesson", "start", "99")
    assert (said.code, "no lesson 99" in said.err) == (2, True)


def test_live_needs_root(labctl: Labctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said = labctl("lesson", "start", "1", "--live")
    assert (said.code, "--live needs root" in said.err) == (3, True)


def test_live_needs_the_guest_image(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    said = labctl("--state-dir", str(tmp_path), "lesson", "start", "1", "--live")
    assert (said.code, "Run 'labctl image build debian-13'" in said.err) == (3, True)


def test_live_measures_first_and_works_on_the_new_run(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(lesson, "_check_host", lambda context: None)
    judged = lesson._judged("example")
    monkeypatch.setattr(lesson, "_judged", lambda name: judged)
    monkeypatch.setattr(lesson, "_newest", lambda: "mine")
    monkeypatch.setattr(lesson, "_labctl", lambda words: called.append(list(words)) or 0)
    state = ["--state-dir", str(tmp_path)]
    said = labctl(*state, "lesson", "start", "1", "--live", "--answers", "411,c,b")
    assert called[0][:4] == [*state, "sweep", "pinning"]
    assert called[1] == [*state, "report", "mine", "--metric", "exits"]
    # Emulated guests make no exits.
    assert said.out.count("measured not measured: not graded") == 3


def test_lessons_are_listed(labctl: Labctl) -> None:
    found = json.loads(labctl("lesson", "list", "--json").out)
    assert [one["number"] for one in found["lessons"]] == list(range(1, len(PAGES) + 1))
    shown = labctl("lesson", "list").out
    assert all(one["title"] in shown for one in found["lessons"])
    index = (lessons.LESSONS / "README.md").read_text()
    assert re.findall(r"\]\((\d-.*\.md)\)", index) == [path.name for path in PAGES]


def test_a_lesson_ends_where_its_sweep_cannot_measure(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lesson, "_check_host", lambda context: None)
    monkeypatch.setattr(lesson, "_labctl", lambda words: 3)
    said = labctl("lesson", "start", "7", "--live", "--answers", "b,b,7,b")
    assert said.code == 1
    assert said.out.count("\n$ labctl sweep") == 1
    assert "predictions were right" not in said.out


def test_a_command_that_ends_otherwise_is_a_finding(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lesson, "_labctl", lambda words: 4)
    said = labctl("lesson", "start", "1", "--answers", "411,c,b")
    assert said.code == 1
    assert "expected exit code 0, got 4" in said.err


@pytest.mark.parametrize("name", ["", "-disk", "-kvm", "-slices", "-traced"])
def test_a_recorded_run_is_found_from_anywhere(
    labctl: Labctl, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert labctl("run", "show", f"example{name}").code == 0


def test_the_archive_holds_all_that_a_room_needs_and_not_the_key(tmp_path: Path) -> None:
    target = tmp_path / "lessons.tar.xz"
    result = CliRunner().invoke(lessons.main, ["--to", str(target)], catch_exceptions=False)
    assert result.exit_code == 0
    with tarfile.open(target) as archive:
        names = {name.removeprefix("labctl-lessons/") for name in archive.getnames()}
        files = {name: archive.extractfile(f"labctl-lessons/{name}") for name in names}
        pages = {
            name: file.read().decode()
            for name, file in files.items()
            if file is not None and "/" not in name
        }
    assert {"index.html", "1-vm-exits.html", "pictures/1.svg"} <= names
    assert {"runs/example.tar.xz", "pages/example.html"} <= names
    assert "answers.html" not in names
    for name, text in pages.items():
        assert "<!--" not in text
        for link in re.findall(r'(?:href|src)="([^"#:]*)"', text):
            assert link in names, (name, link)


def test_each_lesson_is_printed_as_a_handout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    browser = tmp_path / "bin" / "chromium"
    browser.parent.mkdir()
    browser.write_text(
        "#!/bin/sh\n"
        "for word; do case $word in --print-to-pdf=*) to=${word#*=};; esac; done\n"
        "page=${word#file://}\n"
        'grep "<h1>" "$page" > "$to"\n'
    )
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", f"{browser.parent}:{os.environ['PATH']}")
    folder = tmp_path / "handouts"
    result = CliRunner().invoke(lessons.main, ["--handouts", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0
    printed = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(printed) == {f"{path.stem}.pdf" for path in PAGES}
    assert all(f"Lesson {name[0]}: " in text for name, text in printed.items())


def test_handouts_need_a_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(lessons.main, ["--handouts", str(tmp_path / "handouts")])
    assert result.exit_code == 1
    assert "install chromium" in result.output


def test_the_pictures_are_what_the_recorded_runs_draw(labctl: Labctl, tmp_path: Path) -> None:
    drawn = set()
    for run in ("example", "example-kvm"):
        assert labctl("report", run, "--pictures", str(tmp_path / run)).code == 0
        drawn |= {path.read_text() for path in (tmp_path / run).glob("*.svg")}
    ours = {path.name: path.read_text() for path in (lessons.LESSONS / "pictures").glob("*.svg")}
    assert len(ours) >= 5
    assert [name for name, text in ours.items() if text not in drawn] == []
