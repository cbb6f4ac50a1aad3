"""Run `labctl lesson`: walk through a lesson, ask for predictions and grade them."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import HostError, UsageError, nearest
from labctl.base.paths import LATEST, recorded_runs, shipped_data
from labctl.base.yaml import FileModel
from labctl.cli.parts.common import Group, console, listing, print_json, runs_folder, state_paths

if TYPE_CHECKING:
    from labctl.analysis.model import Judgement

# A lesson is a Markdown page in docs/lessons. Its comments hold what a reader need not see: its
# recorded runs ("<!-- run NAME NAME -->"), and how the prediction above is graded ("<!-- predict",
# then YAML). Indented lines that begin with "labctl" are its commands. Those of its last section,
# LIVE, measure on a host: a sweep for each recorded run, in the same order.

SCHEMA = 1
LIVE = "On your own host"
IMAGE = "debian-13"
"""The guest image of the live sweeps."""
ANSWERS = "answers.md"
"""The file beside the lessons with the answers to their questions."""

_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended."""

_TITLE = re.compile(r"# Lesson (\d+): (.*)\n+<!-- run (\S.*) -->\n")
_STEP = re.compile(
    r"^    labctl (?P<words>.*?)(?:  # exit code (?P<code>\d))?$"
    r"|^<!-- predict\n(?P<rule>[^>]*)-->$",
    re.MULTILINE,
)


class Prediction(FileModel):
    """Define how an answer is graded: by the typical value of a metric in an arm, by its ratio to
    that of `against` (another arm) or `over` (another metric), or by the verdict of a tuning.

    `run`: one of the lesson's, its first by default. `factor`: how far a number may be off.
    Otherwise the answer is a letter: of the ranges between `limits`, or of `verdicts`.
    """

    tuning: str
    metric: str
    workload: str = "sysbench-cpu"
    run: str | None = None
    against: str | None = None
    over: str | None = None
    factor: float | None = None
    limits: list[float] = []
    verdicts: list[str] = []


@dataclass(frozen=True, slots=True)
class Command:
    """Hold a command of a lesson: its words after `labctl`, and its exit code."""

    words: tuple[str, ...]
    code: int = 0


@dataclass(frozen=True, slots=True)
class Lesson:
    """Hold a lesson: number, title, recorded runs and steps. `live`: the sweeps that measure each
    of the runs on a host."""

    number: int
    title: str
    runs: tuple[str, ...]
    steps: tuple[str | Command | Prediction, ...]
    live: tuple[Command, ...]


def lessons_folder() -> Path:
    """Return the folder of the lessons that labctl brings."""
    return shipped_data() / "docs" / "lessons"


def all_lessons() -> list[Lesson]:
    """Return the lessons, by number."""
    return [load_lesson(path) for path in sorted(lessons_folder().glob("[0-9]-*.md"))]


def load_lesson(path: Path) -> Lesson:
    """Return the lesson in a Markdown file. Raises UsageError without its title and run."""
    text = path.read_text(encoding="utf-8")
    found = _TITLE.match(text)
    if found is None:
        raise UsageError(f"{path}: expected '# Lesson N: TITLE' and '<!-- run NAME -->'")
    recorded, _, live = text[found.end() :].partition(f"## {LIVE}\n")
    return Lesson(
        int(found.group(1)),
        found.group(2),
        tuple(found.group(3).split()),
        tuple(_steps(recorded)),
        tuple(step for step in _steps(live) if isinstance(step, Command)),
    )


def _steps(text: str) -> Iterator[str | Command | Prediction]:
    from labctl.base.yamltext import parse_yaml

    at = 0
    for found in _STEP.finditer(text):
        if said := text[at : found.start()].strip("\n"):
            yield said
        at = found.end()
        if rule := found.group("rule"):
            yield Prediction.model_validate(parse_yaml(rule))
        else:
            yield Command(tuple(shlex.split(found.group("words"))), int(found.group("code") or 0))
    if said := text[at:].strip("\n"):
        yield said


@dataclass(frozen=True, slots=True)
class Grade:
    """Hold a graded answer: whether it `is_right` (None if the run lacks the value), and the
    `measured` value in words."""

    is_right: bool | None
    measured: str


def grade(prediction: Prediction, answer: str, judgement: Judgement) -> Grade:
    """Return the grade of an answer. Raises UsageError for one that is neither a number nor one of
    the letters."""
    from labctl.base.notation import quantity, significant

    if prediction.factor is None:
        count = len(prediction.verdicts) or len(prediction.limits) + 1
        letters = "abcdefgh"[:count]
        if answer not in tuple(letters):
            raise UsageError(f"prediction: expected one of {', '.join(letters)}, got '{answer}'")
    if prediction.verdicts:
        found = [
            str(one.verdict)
            for one in judgement.comparisons
            if (one.tuning, one.workload, one.metric)
            == (prediction.tuning, prediction.workload, prediction.metric)
            and one.verdict is not None
        ]
        if not found:
            return Grade(None, "not measured")
        right = found[0] == prediction.verdicts["abcdefgh".index(answer)]
        return Grade(right, found[0])
    levels = {
        (level.tuning, level.metric): level
        for level in judgement.levels
        if level.workload == prediction.workload
    }
    level = levels.get((prediction.tuning, prediction.metric))
    if level is None:
        return Grade(None, "not measured")
    value, measured = level.typical, quantity(level.typical, level.unit)
    if prediction.against or prediction.over:
        arm = prediction.against or prediction.tuning
        other = levels.get((arm, prediction.over or prediction.metric))
        if other is None or other.typical == 0:
            return Grade(None, "not measured")
        value /= other.typical
        measured += f", {significant(value)} times {quantity(other.typical, other.unit)}"
    if prediction.factor is None:
        place = sum(value >= limit for limit in prediction.limits)
        return Grade(place == "abcdefgh".index(answer), measured)
    number = _number(answer)
    near = number > 0 and abs(math.log(number / value)) <= math.log(prediction.factor)
    return Grade(near, measured)


def _number(answer: str) -> float:
    try:
        number = float(answer.removesuffix("%"))
    except ValueError:
        raise UsageError(f"prediction: expected a number, got '{answer}'") from None
    return number / 100 if answer.endswith("%") else number


@click.group("lesson", cls=Group)
def command() -> None:
    """List the lessons on scheduling and virtualization, or walk through one."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List the lessons and their recorded runs."""
    found = all_lessons()
    if as_json:
        rows = [{"number": one.number, "title": one.title, "runs": one.runs} for one in found]
        print_json({"schema": SCHEMA, "lessons": rows})
        return
    table = listing("lesson", "title", "recorded runs")
    for one in found:
        table.add_row(str(one.number), one.title, ", ".join(one.runs))
    console(listing=True).print(table)
    click.echo("\nFor example: labctl lesson start 1")


@command.command("start")
@click.argument("number", metavar="N", type=int)
@click.option(
    "--answers",
    metavar="A,B,…",
    help="Your predictions, in order; the lesson then asks nothing.",
)
@click.option("--live", is_flag=True, help="Measure on this host first, and use those runs.")
@click.pass_context
def start_command(context: click.Context, number: int, answers: str | None, live: bool) -> int:
    """Walk through lesson N: read, predict, run its commands and grade the predictions.

    Exit code: 0 done, 1 a command ended otherwise than the lesson says.
    """
    by_number = {one.number: one for one in all_lessons()}
    if number not in by_number:
        hint = nearest(str(number), map(str, by_number))
        raise UsageError(f"no lesson {number}", hint=hint)
    lesson = by_number[number]
    asked = sum(isinstance(step, Prediction) for step in lesson.steps)
    given = None if answers is None else answers.split(",")
    if given is not None and len(given) != asked:
        raise UsageError(f"--answers: expected {asked} predictions, got {len(given)}")
    walk = _Walk(_own_options(context), given)
    names = {name: name for name in lesson.runs}
    if live:
        _check_host(context)
        for name, step in zip(lesson.runs, lesson.live, strict=True):
            walk.run(step)
            if walk.surprises:
                return 1
            names[name] = _newest()
    walk.through(lesson, names)
    return 1 if walk.surprises else 0


def _own_options(context: click.Context) -> list[str]:
    """Return the options before the command, for the lesson's commands too."""
    given = context.find_root().params
    named = {"--state-dir": given.get("state_dir"), "--lab": given.get("lab")}
    return [word for option, value in named.items() if value for word in (option, str(value))]


def _check_host(context: click.Context) -> None:
    from labctl.guest import images
    from labctl.guest.recipe import load_recipe

    if os.geteuid() != 0:
        raise HostError(
            "--live needs root, because it starts guests",
            hint="Without --live the lesson uses a recorded run.",
        )
    if images.find(load_recipe(IMAGE), state_paths(context)) is None:
        raise HostError(
            f"the guest image '{IMAGE}' is not built", hint=f"Run 'labctl image build {IMAGE}'."
        )


def _newest() -> str:
    """Return the name of the newest run."""
    from labctl.store.run_places import find_run

    return find_run(runs_folder(None), LATEST).name


def _judged(name: str) -> Judgement:
    """Return the results of a recorded run, or of the newest of one's own. Raises UsageError if it
    cannot be read."""
    from labctl.analysis.judge import judge
    from labctl.store.run_folder import RunFolder
    from labctl.store.run_places import find_run

    recorded = recorded_runs()
    if name in recorded:
        return judge(RunFolder.in_archive(recorded[name]).load_planned())
    return judge(find_run(runs_folder(None), name).load_planned())


def _labctl(words: Sequence[str]) -> int:
    from labctl.cli.main import call  # which loads this module

    return call(words)


class _Walk:
    """Walk through a lesson, with the answers that are `given`, or asked for if None."""

    def __init__(self, options: Sequence[str], given: list[str] | None) -> None:
        self._options = options
        self._given = given
        self._open: list[tuple[Prediction, str, Judgement]] = []
        self._grades: list[Grade] = []
        self.surprises = 0

    def through(self, lesson: Lesson, names: Mapping[str, str]) -> None:
        """Show each step; grade predictions after the next command. `names`: of the runs that
        stand for the lesson's."""
        from rich.markdown import Markdown

        judged = {run: _judged(name) for run, name in names.items()}
        out = console()
        out.print(Markdown(f"# Lesson {lesson.number}: {lesson.title}"))
        for step in lesson.steps:
            if isinstance(step, str):
                out.print()
                out.print(Markdown(step))
            elif isinstance(step, Prediction):
                judgement = judged[step.run or lesson.runs[0]]
                self._open.append((step, self._answer(step, judgement), judgement))
            else:
                words = tuple(names.get(word, word) for word in step.words)
                if self._given is None:
                    click.pause(f"\nPress a key to run: labctl {shlex.join(words)}")
                self.run(replace(step, words=words))
                self._grade_open()
        self._grade_open()
        right = sum(one.is_right is True for one in self._grades)
        click.echo(f"\n{right} of {len(self._grades)} predictions were right.")
        click.echo(f"Answers to the questions: {lessons_folder() / ANSWERS}")

    def _answer(self, prediction: Prediction, judgement: Judgement) -> str:
        if self._given is not None:
            answer = self._given.pop(0).strip().lower()
            grade(prediction, answer, judgement)
            click.echo(f"Your prediction: {answer}")
            return answer
        while True:
            answer = str(click.prompt("Your prediction")).strip().lower()
            try:
                grade(prediction, answer, judgement)
            except UsageError as error:
                click.echo(error.message)
            else:
                return answer

    def _grade_open(self) -> None:
        words = {True: "right", False: "wrong", None: "not graded"}
        for prediction, answer, judgement in self._open:
            found = grade(prediction, answer, judgement)
            self._grades.append(found)
            click.echo(f"→ predicted {answer}; measured {found.measured}: {words[found.is_right]}")
        self._open.clear()

    def run(self, step: Command) -> None:
        """Run a command of a lesson, and say whether its exit code is another than expected."""
        click.echo(f"\n$ labctl {shlex.join(step.words)}")
        code = _labctl([*self._options, *step.words])
        if code == _INTERRUPTED:
            raise click.Abort
        if code != step.code:
            self.surprises += 1
            click.echo(f"labctl: expected exit code {step.code}, got {code}", err=True)
