"""`labctl.api`, which docs/api.md documents."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from labctl import api
from tests.unit.synthetic import write_run

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs/examples/run.ipynb"
PAGE = (ROOT / "docs" / "api.md").read_text()


@pytest.fixture(scope="module")
def run() -> api.Run:
    return api.load("example", results=ROOT / "none")


def test_the_pages_example_prints_what_the_page_says(tmp_path: Path) -> None:
    code, shown = re.findall(r"```(?:python|text)\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "LABCTL_RESULTS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stderr, done.stdout) == ("", shown)


def executed(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a notebook's cells with what they print and show now."""
    names: dict[str, Any] = {}
    done = []
    for cell in cells:
        if cell["cell_type"] == "code":
            tree, printed = ast.parse("".join(cell["source"])), io.StringIO()
            outputs: list[dict[str, Any]] = []
            shows = not ast.unparse(tree.body[-1]).startswith(("print(", "for "))
            last = tree.body.pop() if shows else None
            with contextlib.redirect_stdout(printed):
                exec(compile(tree, "notebook", "exec"), names)  # noqa: S102
            if text := printed.getvalue().splitlines(keepends=True):
                outputs.append({"output_type": "stream", "name": "stdout", "text": text})
            if isinstance(last, ast.Expr):
                shown = eval(ast.unparse(last), names)  # noqa: S307
                data = {"image/svg+xml": shown._repr_svg_().splitlines(keepends=True)}
                result = {"output_type": "execute_result", "metadata": {}, "data": data}
                outputs.append(result | {"execution_count": cell["execution_count"]})
            cell = {**cell, "outputs": outputs}
        done.append(cell)
    return done


def test_the_notebook_shows_what_its_cells_print(regenerate_golden: bool) -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    cells = executed(notebook["cells"])
    if regenerate_golden:
        text = json.dumps({**notebook, "cells": cells}, indent=1, ensure_ascii=False)
        NOTEBOOK.write_text(f"{text}\n")
    assert cells == json.loads(NOTEBOOK.read_text())["cells"], "run: pytest --regenerate-golden"
    assert sum(len(cell.get("outputs", ())) for cell in cells) == 4


def test_the_page_names_everything_that_is_public() -> None:
    for name in ("load", "LabctlError", "SampleRow", "Comparison", "Decision", "Table"):
        assert name in api.__all__
        assert f"`{name}" in PAGE or f"api.{name}`" in PAGE
    methods = [name for name in vars(api.Run) if not name.startswith("_")]
    assert [name for name in methods if f"Run.{name}" not in PAGE] == []


def test_rows_become_data_frames(run: api.Run) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    samples, compared = run.samples().to_arrow(), run.comparisons().to_arrow()
    assert samples.num_rows == len(run.samples())
    assert pyarrow.types.is_floating(samples.schema.field("value").type)
    assert {"trial", "metric", "value"} <= set(samples.column_names)
    first = run.comparisons()[0]
    assert dict(compared["blocks"][0].as_py()) == first.blocks


@pytest.mark.parametrize(("method", "library"), [("to_pandas", "pandas"), ("to_arrow", "pyarrow")])
def test_a_library_that_is_missing_is_named(
    run: api.Run, method: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(api.LabctlError, match=f"{library} is not installed"):
        getattr(run.comparisons(), method)()


def test_pandas_gets_the_records(run: api.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class DataFrame:
        from_records = staticmethod(lambda records: records)

    monkeypatch.setitem(sys.modules, "pandas", DataFrame)
    monkeypatch.setattr(DataFrame, "DataFrame", DataFrame, raising=False)
    (first, *_) = run.comparisons().to_pandas()
    assert first == dataclasses.asdict(run.comparisons()[0])


def test_a_table_is_a_sequence(run: api.Run) -> None:
    table = run.comparisons()
    assert table[:2][1] == table[1]
    assert repr(table) == f"<Table of {len(table)} rows>"


def test_an_absence_has_a_reason_and_no_value(run: api.Run) -> None:
    absent = [row for row in run.samples() if row.unavailable]
    assert absent
    assert {row.value for row in absent} == {None}


def test_the_answer_is_the_reports(run: api.Run) -> None:
    answer = run.decision()
    assert (answer.tuning, answer.grade) == (answer.record["tuning"], answer.record["grade"])
    assert answer.text.startswith(str(answer.record["lead"]))


def test_a_picture_is_shown_by_notebooks(run: api.Run) -> None:
    (first, *_) = run.plot()
    assert first._repr_svg_().startswith("<svg")
    assert run.plot("no such picture") == ()


def test_a_run_is_found_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert api.load(Path("mine")).name == "mine"
    assert api.load("latest", results=tmp_path).name == "mine"


def test_an_unknown_run_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(api.LabctlError, match="no run named 'exmaple'") as found:
        api.load("exmaple", results=tmp_path)
    assert found.value.hint
