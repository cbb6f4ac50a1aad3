"""Small judged runs, made once."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.analysis.judge import judge
from labctl.analysis.model import Diagnostic, DiagnosticKind, Judgement, Precision, Role
from labctl.store.run_folder import LoadedRun, RunFolder
from tests.unit.synthetic import synthetic_run, write_run
from tools.browser import Browser, chromium

Judged = tuple[LoadedRun, Judgement]

INVALID = ("pinned", "sysbench-cpu", 3)


def unmarked(page: str) -> str:
    """The page without the marks of words that explain themselves."""
    return re.sub(r'<span class="term"[^>]*>(.*?)</span>', r"\1", page)


def with_all_that_analysis_can_say(judged: Judged) -> Judged:
    """The run with diagnostics, a proposal, blocks left out and Holm's findings."""
    run, judgement = judged
    place = {"workload": "sysbench-cpu", "condition": "neighbour", "metric": "events_per_s"}
    drift = Diagnostic(
        kind=DiagnosticKind.DRIFT,
        tuning="pinned",
        sentence="its effect grows from block to block",
        blocks=(3, 7),
        **place,
    )
    wild = Diagnostic(
        kind=DiagnosticKind.OUTLIER, tuning=None, sentence="Block 3 stands out.", **place
    )
    precision = Precision(
        between_boots=0.08,
        between_blocks=0.03,
        within_trials=None,
        boots=4,
        blocks_per_boot=3,
        seconds=30.0,
        sentence="Boots differ more than blocks do.",
        **place,
    )
    comparisons = tuple(
        replace(
            item,
            boots=2,
            left_out=(4, 5),
            by_holm=item.tuning == "pinned",
        )
        if item.role is Role.PRIMARY
        else item
        for item in judgement.comparisons
    )
    return run, replace(
        judgement, comparisons=comparisons, diagnostics=(drift, wild), precision=(precision,)
    )


@pytest.fixture(scope="session")
def judged() -> Judged:
    """Eleven blocks under TCG; one trial is invalid in all attempts, one was repeated."""
    run = synthetic_run(blocks=11, invalid=[INVALID], repeated=[("native", "fio-randread", 2)])
    return run, judge(run)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory, judged: Judged) -> RunFolder:
    return write_run(tmp_path_factory.mktemp("written") / "example", judged[0])


@pytest.fixture
def folder(tmp_path: Path, written: RunFolder) -> RunFolder:
    """The same run on disk, in `results/example`, to be changed at will."""
    return RunFolder(Path(shutil.copytree(written.path, tmp_path / "results" / "example")))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found
