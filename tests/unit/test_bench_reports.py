"""`make bench` on reports: the runs that it makes up, and what it makes of measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.analysis.judge import judge
from labctl.store.run_folder import RunFolder
from tools.bench import reports
from tools.bench.reports import Measured, report_figures
from tools.bench.runs import ARMS, SAMPLES_PER_TRIAL, TRIALS_PER_BLOCK, WORKLOADS, write_run


def test_a_made_up_run_is_whole_judged_and_of_the_size_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path / "made-up", 2 * TRIALS_PER_BLOCK)
    run = RunFolder(tmp_path / "made-up").load()
    assert run.problems == ()
    assert len(run.trials) == 2 * TRIALS_PER_BLOCK
    assert {len(trial.readings) for trial in run.trials} == {SAMPLES_PER_TRIAL}
    judgement = judge(run)
    assert (judgement.done, judgement.blocks) == (2 * TRIALS_PER_BLOCK, 2)
    assert {level.tuning for level in judgement.levels} == set(ARMS)
    assert set(judgement.primaries) == set(WORKLOADS)


def test_the_same_size_is_the_same_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, TRIALS_PER_BLOCK)
    texts = [
        {str(f.relative_to(tmp_path / name)): f.read_text() for f in (tmp_path / name).rglob("*.*")}
        for name in ("a", "b")
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("trials", [0, TRIALS_PER_BLOCK + 1])
def test_half_a_block_is_refused(tmp_path: Path, trials: int) -> None:
    with pytest.raises(ValueError, match="no whole number of blocks"):
        write_run(tmp_path / "made-up", trials)


def measured(trials: int, seconds: float, peak: int = 10**8) -> Measured:
    return Measured(trials, (0.5, seconds - 1.5, 0.5, 0.5), seconds, peak, 10**6)


def test_the_figures_are_those_of_10_000_trials_and_the_worst_step() -> None:
    first = [measured(1_000, 3.0), measured(10_000, 9.0), measured(100_000, 96.0)]
    later = [measured(1_000, 2.0), measured(10_000, 4.0, 290_000_000), measured(100_000, 44.0)]
    time, memory, cold, linear = report_figures(first, later)
    assert (time.value, time.met) == (4.0, True)
    assert (memory.value, memory.met) == (290.0, True)
    assert (cold.value, cold.met) == (9.0, True)
    assert linear.value == pytest.approx(11.0)
    assert "1,000,000 samples" in time.note


def test_a_report_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    write_run(tmp_path / "made-up", TRIALS_PER_BLOCK)
    found = reports.measure(tmp_path / "made-up", TRIALS_PER_BLOCK)
    assert len(found.seconds) == 4
    assert found.peak_bytes > 10**7
    assert found.html_bytes > 1000
