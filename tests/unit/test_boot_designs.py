"""What other numbers of boots would have given a run."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from labctl.analysis.decide import decide
from labctl.analysis.variance import Components
from labctl.base.errors import UsageError
from labctl.store.run_folder import LoadedRun
from tests.unit.synthetic import synthetic_run
from tools.boot_designs import Layout, components_of, costs, expected_half_width, judged_by, table

ALPHA = 0.05 / 4


def shared(**options: Any) -> LoadedRun:
    """Ten blocks over five boots."""
    arms = ["native", "baseline", "control", "handicap", "pinned"]
    return synthetic_run(tunings=arms, boots=5, boot_noise={"pinned": 0.05}, **options)


def timed(run: LoadedRun) -> LoadedRun:
    """Trials of 3.4 s one second apart, and eleven more where another boot is made."""
    now, trials = datetime(2024, 1, 1, tzinfo=UTC), []
    boot = 1
    for trial in sorted(run.trials, key=lambda t: t.record.number):
        if trial.record.boot != boot and trial.record.cell["tuning"] != "native":
            boot, now = trial.record.boot, now + timedelta(seconds=11)
        record = replace(trial.record, started_at=now.isoformat())
        trials.append(replace(trial, record=record))
        now += timedelta(seconds=4.4)
    return replace(run, trials=tuple(trials))


def test_ten_boots_give_more_than_five_even_where_boots_add_nothing() -> None:
    nothing = Components(0.0, 0.01)
    five, ten = (expected_half_width(nothing, of, ALPHA) for of in (Layout(5, 2), Layout(10, 1)))
    # t at 1 - 0.05/8: 4.315 with four degrees of freedom, 3.111 with nine.
    assert five == pytest.approx(4.315 * 0.1 / math.sqrt(10), rel=1e-3)
    assert ten == pytest.approx(3.111 * 0.1 / math.sqrt(10), rel=1e-3)


def test_longer_trials_narrow_what_blocks_add_and_nothing_else() -> None:
    both = Components(0.01, 0.01)
    longer = expected_half_width(both, Layout(5, 2, 2.0), ALPHA)
    assert longer == pytest.approx(4.315 * math.sqrt(0.01 / 5 + 0.01 / 20), rel=1e-3)
    boots_alone = (
        expected_half_width(Components(0.01, 0.0), Layout(5, 2, by), 0.05) for by in (1, 2)
    )
    assert len(set(boots_alone)) == 1


def test_blocks_and_boots_take_what_they_took() -> None:
    taken = costs(timed(shared(workloads={"sysbench-cpu": synthetic_workload()})))
    assert taken.boot == pytest.approx(11.0)
    assert taken.measured == pytest.approx(5 * 2.0)
    assert taken.of(Layout(10, 1)) - taken.of(Layout(5, 2)) == pytest.approx(5 * 11.0)
    assert taken.of(Layout(5, 2, 1.5)) - taken.of(Layout(5, 2)) == pytest.approx(10 * 5.0)


def synthetic_workload() -> dict[str, Any]:
    workloads: dict[str, Any] = dict(shared().plan.to_json()["workloads"])
    return dict(workloads["sysbench-cpu"])


def test_the_table_has_a_row_for_each_layout() -> None:
    lines = list(table(timed(shared())))
    assert sum(line.startswith("| 10 × 1") for line in lines) == 2
    assert any("sysbench-cpu, events_per_s: sd between boots" in line for line in lines)


def test_another_metric_may_decide() -> None:
    run = judged_by(shared(), ["sysbench-cpu=latency_p95"])
    assert run.plan.to_json()["workloads"]["sysbench-cpu"]["primary"] == "latency_p95"


@pytest.mark.parametrize("boots", [1, 10])
def test_a_run_whose_boots_are_its_blocks_or_one_tells_nothing(boots: int) -> None:
    made = [one for one in decide(synthetic_run(boots=boots)).made if one.is_primary]
    with pytest.raises(UsageError, match="can't be told"):
        components_of(made)
