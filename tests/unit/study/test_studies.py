"""Every study that labctl brings loads, and makes a plan on a host that has everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.base.paths import data_files
from labctl.base.units import OPEN_MEAN, SKIP_PERIODS
from labctl.study.load_study import load_study
from labctl.study.make_plan import make_plan
from labctl.study.plan import Plan
from labctl.study.study import study_names
from labctl.study.tunings import load_tunings, tuning_names
from labctl.workloads.registry import checkers

JUDGING = [name for name in study_names() if name != "selftest"]
"""The self-test compares nothing: it has one block and no quick selection."""


@pytest.mark.parametrize("name", study_names())
def test_a_study_loads_and_plans(name: str) -> None:
    plan = _plan(name, quick=False)
    assert {trial.cell["tuning"] for trial in plan.trials} == set(plan.tunings)


@pytest.mark.parametrize("name", JUDGING)
def test_a_quick_selection_can_judge(name: str) -> None:
    plan = _plan(name, quick=True)
    assert plan.blocks >= 10
    assert {"baseline", "control", "handicap"} <= set(plan.tunings)
    assert any(tuning.exercised_by for tuning in plan.tunings.values())


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", JUDGING)
def test_a_study_that_judges_has_five_boots_at_least_and_spares(name: str, quick: bool) -> None:
    plan = _plan(name, quick=quick)
    assert plan.boots >= 5
    assert len(plan.spare_blocks) == 3
    boots = {trial.boot for trial in plan.spares}
    assert len(boots) == 3
    assert not boots & {trial.boot for trial in plan.trials}


def _plan(name: str, *, quick: bool) -> Plan:
    study = load_study(name, programs=checkers(), quick=quick)
    return make_plan(study, load_tunings(study.tunings), seed=1, host_digest="", skipped={})


def test_everything_is_every_tuning_that_there_is() -> None:
    assert set(load_study("everything", programs=checkers()).tunings) == set(tuning_names())


@pytest.mark.parametrize("name", study_names())
def test_latencies_that_leave_out_what_a_stall_hid_decide_nowhere(name: str) -> None:
    """METHOD 26, as far as it is known what a stall hid."""
    for workload in load_study(name, programs=checkers()).workloads.values():
        if workload.program in SKIP_PERIODS:
            assert workload.primary == OPEN_MEAN


@pytest.mark.parametrize(
    ("metric", "allowed"),
    [("open_latency_p95", True), ("latency_p95", True), ("open_latency_p9", False)],
)
def test_percentiles_of_either_loop_may_decide_where_a_study_says_so(
    tmp_path: Path, metric: str, allowed: bool
) -> None:
    text = data_files("benchmarks")["realtime"].read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(f"primary: {OPEN_MEAN}", f"primary: {metric}"))
    if allowed:
        assert load_study(str(path), programs=checkers()).workloads["cyclictest"].primary == metric
    else:
        with pytest.raises(UsageError, match="no metric 'open_latency_p9'"):
            load_study(str(path), programs=checkers())


def test_a_program_that_puts_no_periods_back_has_no_open_loop_percentile(tmp_path: Path) -> None:
    text = data_files("benchmarks")["realtime"].read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("primary: ops_per_s", "primary: open_latency_p95"))
    with pytest.raises(UsageError, match="no metric 'open_latency_p95'"):
        load_study(str(path), programs=checkers())


def test_all_is_a_word_of_its_own(tmp_path: Path) -> None:
    text = data_files("benchmarks")["everything"].read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("tunings: all", "tunings: al"))
    with pytest.raises(UsageError, match="tunings"):
        load_study(str(path), programs=checkers())


@pytest.mark.parametrize("name", JUDGING)
def test_a_study_that_judges_latency_declares_the_loss_that_must_be_excluded(name: str) -> None:
    """The margin of a latency is far below what ten blocks can exclude: whoever writes the study
    knows what loss would do harm."""
    workloads = load_study(name, programs=checkers()).workloads
    silent = [
        key
        for key, workload in workloads.items()
        if workload.primary.startswith("latency") and workload.no_worse_than is None
    ]
    assert silent == []
