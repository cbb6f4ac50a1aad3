"""Where a run's time went adds up to all of it, and is unknown where a file can't be right."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import pytest

from labctl.analysis.times import OVERHEAD_S, OWN_BOOT_S, expected_time, wall_time
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialStatus
from tests.unit.analysis.alter import with_plan, with_run
from tests.unit.synthetic import synthetic_run

START = "2026-11-22T21:00:00+00:00"
END = "2026-11-22T21:00:40+00:00"


def timed(*trials: tuple[TrialStatus, float, float, float], **run: Any) -> LoadedRun:
    """A run of such trials: status, measured, warm-up and all seconds."""
    some = synthetic_run(blocks=1, primary_only=True)
    made = [
        replace(
            trial,
            record=replace(
                trial.record, status=status, measured_s=measured, warmup_s=warmup, wall_s=wall
            ),
        )
        for trial, (status, measured, warmup, wall) in zip(some.trials, trials, strict=False)
    ]
    changes = {"status": "done", "started_at": START, "ended_at": END, **run}
    return with_run(replace(some, trials=tuple(made)), **changes)


DONE, INVALID = TrialStatus.DONE, TrialStatus.INVALID
TRIALS = ((DONE, 10.0, 2.0, 13.0), (DONE, 10.0, 1.0, 12.0), (INVALID, 10.0, 1.0, 5.0))


def test_the_parts_of_a_runs_time_add_up_to_all_of_it() -> None:
    spent = wall_time(timed(*TRIALS, waited_for_quiet_s=4.0))
    assert spent is not None
    assert (spent.windows, spent.warmups, spent.around) == (20, 3, 2)
    assert (spent.invalid, spent.waited, spent.between) == (5, 4, 6)
    assert sum(astuple(spent)[1:]) + spent.between == spent.total == 40
    assert spent.share == pytest.approx(20 / 40)
    assert spent.share_without_warmups == pytest.approx(20 / 37)


@pytest.mark.parametrize(
    "run",
    [
        {"status": "running"},
        {"ended_at": None},
        {"ended_at": "yesterday"},
        {"ended_at": "2026-11-22T21:00:40"},
        {"ended_at": START},
        {"waited_for_quiet_s": 100.0},
        {"waited_for_quiet_s": -1.0},
    ],
)
def test_a_run_whose_times_cannot_be_says_none(run: dict[str, Any]) -> None:
    assert wall_time(timed(*TRIALS, **run)) is None


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf"), -5.0, 0.0])
def test_trials_whose_times_cannot_be_say_none(wrong: float) -> None:
    assert wall_time(timed((DONE, wrong, 0.0, 13.0))) is None
    assert wall_time(timed((DONE, 20.0, 0.0, wrong), (DONE, 0.0, -wrong, 0.0))) is None


def test_a_plan_takes_its_windows_and_what_the_trials_of_an_earlier_run_took_beside() -> None:
    earlier = timed(*TRIALS, waited_for_quiet_s=4.0)
    plan = synthetic_run(blocks=10, primary_only=True).plan
    windows = sum(plan.workloads[trial.cell["workload"]].duration_s or 0 for trial in plan.trials)
    expected = expected_time(plan, earlier)
    assert expected.windows == windows
    # 40 s, of them 20 measured, 4 waited and 5 lost, and two trials that count.
    assert expected.total == pytest.approx(windows + 11 / 2 * len(plan.trials))
    assert expected.paced_by == earlier.name


def test_a_plan_without_an_earlier_run_is_paced_by_the_recorded_one() -> None:
    plan = synthetic_run(blocks=10, primary_only=True).plan
    for earlier in (None, timed(*TRIALS, status="interrupted")):
        expected = expected_time(plan, earlier)
        assert expected.total == pytest.approx(expected.windows + OVERHEAD_S * len(plan.trials))
        assert expected.paced_by is None


def test_a_tuning_that_boots_for_itself_takes_a_boot_in_each_block() -> None:
    run = synthetic_run(blocks=10, primary_only=True)
    tunings = run.plan.to_json()["tunings"]
    boots = with_plan(run, tunings={**tunings, "pinned": {**tunings["pinned"], "restore": False}})
    earlier = timed(*TRIALS)
    for paced in (None, earlier):
        more = expected_time(boots.plan, paced).total - expected_time(run.plan, paced).total
        assert more == pytest.approx(10 * OWN_BOOT_S), "once for all its workloads"
    # Such an earlier run's trials took their share of its own boots.
    alike = replace(earlier, plan=boots.plan)
    assert expected_time(boots.plan, alike).total == expected_time(run.plan, earlier).total
