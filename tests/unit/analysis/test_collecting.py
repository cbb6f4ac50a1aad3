from collections.abc import Iterator
from dataclasses import replace
from math import exp

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.caveats.run import collecting_caveats
from labctl.analysis.compare.two_runs import compare_runs
from labctl.analysis.effects.cells import read_cells
from labctl.analysis.times import cost, costs_said
from labctl.base.notation import shares
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Unavailable
from tests.unit.records import plan_of, run_of
from tests.unit.synthetic import synthetic_run

COST = {
    "level": "trace",
    "side": "guest",
    "workload": "sysbench-cpu",
    "estimate": 0.031,
    "low": 0.02,
    "high": 0.042,
    "measured_at": "2026-11-21T22:35:22+00:00",
}


def _run(level: str | None, costs: list[dict[str, object]] | None = None) -> LoadedRun:
    run = synthetic_run()
    plan = {key: value for key, value in run.plan.to_json().items() if key != "collect"}
    record = {**run.run.to_json(), "collecting_costs": costs or []}
    if level is not None:
        plan["collect"] = record["collect"] = level
    return replace(run, plan=plan_of(plan), run=run_of(record))


def _said(run: LoadedRun) -> Iterator[str]:
    return collecting_caveats(run, read_cells(run))


def test_a_cost_is_the_share_that_is_lost_with_student_s_interval_on_the_pairs() -> None:
    rng = np.random.default_rng(1)
    bare = rng.normal(1000, 50, 20)
    effects = rng.normal(-0.03, 0.01, 20)
    found = cost(list(bare * np.exp(effects)), list(bare))
    t = stats.ttest_1samp(effects, 0).confidence_interval(0.95)
    assert found.estimate == pytest.approx(1 - exp(effects.mean()))
    assert found.low == pytest.approx(1 - exp(t.high))
    assert found.high == pytest.approx(1 - exp(t.low))


def test_what_is_faster_with_collecting_costs_less_than_nothing() -> None:
    assert cost([110.0, 120.0], [100.0, 110.0]).estimate < 0


def test_one_pair_and_pairs_that_are_all_alike_have_no_interval() -> None:
    assert cost([90.0], [100.0])[1:] == (None, None)
    assert cost([90.0, 90.0], [100.0, 100.0])[1:] == (None, None)


def test_windows_without_their_other_half_have_no_cost() -> None:
    with pytest.raises(ValueError, match="no effects"):
        cost([], [])
    with pytest.raises(ValueError, match="longer"):
        cost([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("estimate", "low", "high", "words"),
    [
        (0.031, 0.02, 0.042, "3.1 % (2.0 to 4.2 %)"),
        (0.0012, -0.0004, 0.0028, "0.12 % (−0.04 to 0.28 %)"),
        (0.5, -12.0, 0.9, "not estimable"),
        (-0.00001, None, None, "0.00 %"),
    ],
)
def test_costs_in_words(estimate: float, low: float | None, high: float | None, words: str) -> None:
    assert shares(estimate, low, high) == words


def test_a_run_says_what_its_level_was_measured_to_cost() -> None:
    said = costs_said(
        _run("trace", [COST, {**COST, "side": "native", "estimate": 0.001, "labctl_cpu": 0.002}])
    )
    assert said == (
        "Collected at level 'trace', which cost 3.1 % (2.0 to 4.2 %) of sysbench-cpu's throughput "
        "in the guest (measured 2026-11-21) and 0.10 % (2.0 to 4.2 %) of sysbench-cpu's throughput "
        "natively and 0.20 % of a CPU for labctl itself (measured 2026-11-21) here."
    )


def test_a_cost_that_was_never_measured_names_the_command_that_does() -> None:
    assert "labctl collectors --overhead --level exits" in costs_said(_run("exits"))


def test_only_levels_above_counters_are_a_caveat() -> None:
    assert list(_said(_run("trace"))) == [costs_said(_run("trace"))]
    assert not list(_said(_run("counters")))
    assert not list(_said(_run(None)))


def test_runs_of_two_levels_differ_in_that_fact() -> None:
    (found,) = (
        fact
        for fact in compare_runs(_run("counters"), _run("trace")).facts
        if fact.name == "level of collecting"
    )
    assert (found.a, found.b) == ("counters", "trace")


def test_a_run_from_before_there_were_levels_collected_counters() -> None:
    assert not compare_runs(_run(None), _run("counters")).facts


def test_trials_that_found_no_room_for_a_trace_are_counted_with_the_reason() -> None:
    run = _run("trace")
    lacks = Unavailable(metric="lost_events", reason="there was no room.")
    trials = tuple(
        replace(trial, readings=[*trial.readings, lacks]) if number < 3 else trial
        for number, trial in enumerate(run.trials)
    )
    _, said = _said(replace(run, trials=trials))
    assert said.startswith("3 trials have no trace of the host")
    assert said.endswith("there was no room.")


def test_trials_whose_guest_recorded_more_than_it_may_are_counted_in_the_report() -> None:
    reasons = iter(
        [
            "the guest's recording met its size limit of 64 MiB before the end.",
            "perf in the guest ended before the trial: perf size limit reached (65,540 KB).",
            "there is no trace of the guest.",
        ]
    )
    run = _run("trace")
    trials = [
        replace(
            trial,
            readings=(
                *trial.readings,
                Unavailable(metric="lost_events{of=guest}", reason=next(reasons, "no perf.")),
            ),
        )
        for trial in run.trials
    ]
    said = list(_said(replace(run, trials=tuple(trials))))
    assert [one for one in said if "size limit" in one] == [
        (
            "In 2 trials the guest's recording reached its size limit before the measured "
            "window ended, so its figures are missing. Use shorter windows."
        )
    ]
