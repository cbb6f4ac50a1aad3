"""Values and designs that allow no judgement: a sentence each in every form that has sentences, and
no form that breaks."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families_of
from rich.console import Console

from labctl.analysis.judge import judge
from labctl.base.errors import UsageError
from labctl.cli.compare import command as compare_command
from labctl.cli.report import command as report_command
from labctl.report.export.formats import FORMATS
from labctl.report.export.json_report import report_json
from labctl.report.export.openmetrics import openmetrics
from labctl.report.page.report_page import page
from labctl.report.terminal.tables import print_report
from labctl.store.run_folder import RunFolder
from tests.unit.report.conftest import unmarked
from tests.unit.synthetic import WORKLOADS, synthetic_run, write_run

ARMS = ["native", "baseline", "control", "handicap", "pinned"]
ONE_WORKLOAD = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}


def made(tmp_path: Path, **other: Any) -> RunFolder:
    shape = {"blocks": 10, "tunings": ARMS, "workloads": ONE_WORKLOAD, **other}
    return write_run(tmp_path / "example", synthetic_run(**shape))


def with_primary(value: float) -> Callable[[Path], RunFolder]:
    """A run of which the tuning's primary metric has this value in one block."""

    def make(tmp_path: Path) -> RunFolder:
        folder = made(tmp_path)
        trial = next(
            t.folder
            for t in folder.load().trials
            if t.record.cell["tuning"] == "pinned" and t.record.block == 4
        )
        data = trial.read_json("samples.json")
        data["samples"][0]["value"] = value
        trial.write_raw("samples.json", json.dumps(data))
        return folder

    return make


def everything_invalid(tmp_path: Path) -> RunFolder:
    every = [(arm, "sysbench-cpu", block) for arm in ARMS for block in range(1, 11)]
    return made(tmp_path, invalid=every)


CASES: dict[str, tuple[Callable[[Path], RunFolder], str]] = {
    "NaN": (with_primary(math.nan), "is not a finite number: 1 values left out"),
    "infinite": (with_primary(math.inf), "is not a finite number: 1 values left out"),
    "zero": (with_primary(0.0), "is 0 or less in some block"),
    "negative": (with_primary(-5.0), "is 0 or less in some block"),
    "largest": (with_primary(1.7e308), ""),
    "smallest": (with_primary(5e-324), ""),
    "one block": (lambda path: made(path, blocks=1), "1 block; a verdict needs 10"),
    "no baseline": (
        lambda path: made(path, tunings=["native", "pinned"]),
        "The run has no baseline, so no tuning can be judged.",
    ),
    "everything invalid": (everything_invalid, "no valid trial with a measured value"),
    "no trial": (
        lambda path: made(path, tunings=[]),
        "The run has no valid trial with a measured value.",
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_it_is_said_in_a_sentence_and_no_form_breaks(tmp_path: Path, name: str) -> None:
    make, sentence = CASES[name]
    folder = make(tmp_path)
    run = folder.load()
    judgement = judge(run)
    report = report_json(run, judgement)
    json.dumps(report, allow_nan=False)
    assert any(sentence in warning for warning in report["warnings"])
    out = io.StringIO()
    print_report(Console(file=out, width=80), run, judgement, html=None)
    for text in (out.getvalue(), unmarked(page(run, judgement, folder.path))):
        assert "".join(sentence.split()) in "".join(text.split()).replace("&#39;", "'")
    assert list(families_of(openmetrics(run, judgement).decode()))
    for one in FORMATS:
        assert b"".join(one.pieces(run, ()))


READERS: dict[str, str] = {
    "the run": "run.json",
    "its plan": "plan.json",
    "a trial": "trials/0003/trial.json",
    "its samples": "trials/0003/samples.json",
}


@pytest.mark.parametrize("what", list(READERS))
@pytest.mark.parametrize("words", [*([one.option] for one in FORMATS), []])
def test_what_a_newer_labctl_wrote_is_refused_by_name(
    tmp_path: Path, what: str, words: list[str]
) -> None:
    folder = made(tmp_path, blocks=1)
    file = folder.path / READERS[what]
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 2}))
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(
            report_command,
            [str(folder.path), *words],
            standalone_mode=False,
            catch_exceptions=False,
        )
    expected = f"{file} was written by a newer labctl (schema 2, this one reads up to 1)"
    assert caught.value.message == expected
    assert caught.value.hint == "Update labctl."


def test_a_comparison_with_a_newer_run_is_refused_too(tmp_path: Path) -> None:
    folder = made(tmp_path, blocks=1)
    newer = write_run(tmp_path / "newer", synthetic_run(blocks=1, tunings=ARMS))
    samples = newer.path / "trials/0001/samples.json"
    samples.write_text(json.dumps({**json.loads(samples.read_text()), "schema": 7}))
    with pytest.raises(UsageError, match="newer/trials/0001/samples.json was written by a newer"):
        CliRunner().invoke(
            compare_command,
            [str(folder.path), str(newer.path)],
            standalone_mode=False,
            catch_exceptions=False,
        )
