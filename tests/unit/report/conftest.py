"""Small judged runs, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from labctl.analysis.judge import judge
from labctl.analysis.model import Judgement
from labctl.store.run_folder import LoadedRun, RunFolder
from tests.unit.synthetic import synthetic_run, write_run

Judged = tuple[LoadedRun, Judgement]

INVALID = ("pinned", "sysbench-cpu", 3)


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
