"""A run folder that was edited by hand, or cut off by a full disk: what is whole is reported, what
isn't is named with file and place, and nothing ends in a traceback."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from labctl.analysis.judge import judge
from labctl.analysis.model import Judgement
from labctl.base.errors import UsageError
from labctl.report.export.json_report import report_json
from labctl.report.page.report_page import page
from labctl.report.terminal.tables import print_report
from labctl.store.run_folder import LoadedRun, RunFolder
from tests.unit.synthetic import WORKLOADS, synthetic_run, write_run

# One of each kind is enough: a value of a wrong type looks the same in every list and object.
SMALL = {
    "blocks": 1,
    "tunings": ["native", "baseline", "control", "handicap", "pinned"],
    "workloads": {"sysbench-cpu": WORKLOADS["sysbench-cpu"]},
}
OTHERS: tuple[Any, ...] = (None, -5, "x", [5], {"x": 5}, 10**400)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "example", synthetic_run(**SMALL))


def all_of_it(folder: RunFolder) -> tuple[LoadedRun, Judgement, str]:
    """The run, its judgement, and its report in all forms as one text."""
    run = folder.load()
    judgement = judge(run)
    out = io.StringIO()
    print_report(Console(file=out, width=80), run, judgement, html=None)
    return (
        run,
        judgement,
        out.getvalue()
        + json.dumps(report_json(run, judgement))
        + page(run, judgement, folder.path),
    )


def places(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """The path to each value inside, of lists the first item only."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, *path, key)
    elif isinstance(value, list) and value:
        yield from places(value[0], *path, 0)


def mutants(whole: Any) -> Iterator[tuple[str, Any]]:
    """The document with one value taken out or of another kind, and what was done to it."""
    for path in places(whole):
        *outer, last = path
        for other in (*OTHERS, "taken out"):
            mutant = copy.deepcopy(whole)
            inner = mutant
            for key in outer:
                inner = inner[key]
            if other == "taken out":
                del inner[last]
            else:
                inner[last] = other
            yield f"{path} {str(other)[:9]}", mutant


@pytest.mark.parametrize(
    "name", ["plan.json", "run.json", "trials/0002/trial.json", "trials/0002/samples.json"]
)
def test_any_value_may_be_missing_or_of_another_kind(folder: RunFolder, name: str) -> None:
    file = folder.path / name
    for number, (what, mutant) in enumerate(mutants(json.loads(file.read_text()))):
        file.write_text(json.dumps(mutant))
        try:
            if number % 20 == 0:  # a page takes thirty times as long as all else
                all_of_it(folder)
            else:
                run = folder.load()
                report_json(run, judge(run))
        except UsageError as error:
            if "newer labctl" not in error.message:
                raise
        except Exception as error:
            error.add_note(f"{name}: {what}")
            raise


@pytest.mark.parametrize(
    "name", ["plan.json", "run.json", "trials/0002/trial.json", "trials/0002/samples.json"]
)
@pytest.mark.parametrize("kept", [0.0, 0.02, 0.3, 0.7, 0.999])
def test_a_file_may_end_anywhere(folder: RunFolder, name: str, kept: float) -> None:
    file = folder.path / name
    text = file.read_text()
    file.write_text(text[: int(kept * (len(text) - 2))])
    run, _, shown = all_of_it(folder)
    assert any(str(file) in problem for problem in run.problems)
    assert name.rpartition("/")[2] in shown


@pytest.mark.parametrize(
    ("name", "path", "value", "said"),
    [
        (
            "plan.json",
            ["tunings", "pinned", "kind"],
            5,
            "'tunings.pinned.kind': expected a text, got 5",
        ),
        ("plan.json", ["trials", 0, "cell"], "x", "'trials[0].cell': expected an object, got 'x'"),
        ("plan.json", ["workloads"], [], "'workloads': expected an object, got []"),
        ("run.json", ["skipped"], "all", "'skipped': expected an object, got 'all'"),
        ("run.json", ["warnings", 0], 5, "'warnings[0]': expected a text, got 5"),
    ],
)
def test_what_is_left_out_is_named_with_its_file_and_place(
    folder: RunFolder, name: str, path: list[Any], value: Any, said: str
) -> None:
    file = folder.path / name
    data = json.loads(file.read_text())
    data.setdefault("warnings", []).append("one")
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text(json.dumps(data))
    problem, *others = folder.load().problems
    # A trial whose plan is not whole has nothing to be held against.
    assert all("is left out: the plan has no trial" in other for other in others)
    assert problem.startswith(f"{file}: {said}")
    assert problem.endswith("; it is left out")


def edited_plan(folder: RunFolder, **changes: Any) -> Judgement:
    file = folder.path / "plan.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return all_of_it(folder)[1]


def test_a_plan_that_was_changed_after_it_was_made_is_no_plan_to_judge_by(
    folder: RunFolder,
) -> None:
    assert folder.load().problems == ()
    workloads = {"sysbench-cpu": {**WORKLOADS["sysbench-cpu"], "margin": 0.001}}
    judgement = edited_plan(folder, workloads=workloads)
    assert any("was changed after it was made" in warning for warning in judgement.warnings)


def test_names_and_kinds_that_the_plan_does_not_know_are_said(folder: RunFolder) -> None:
    tunings = json.loads((folder.path / "plan.json").read_text())["tunings"]
    del tunings["handicap"]
    tunings["pinned"]["kind"] = "gast"
    warnings = " ".join(edited_plan(folder, tunings=tunings, control="contrl").warnings)
    assert "The plan's control is 'contrl', which is not one of its tunings." in warnings
    assert "Tuning 'pinned' is of kind 'gast', expected guest or native" in warnings
    assert "Trials of 'handicap' are not judged: the plan has no such tuning." in warnings
