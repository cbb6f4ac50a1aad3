"""What got worse stands beside what got better, maxima included, and says how sure it is."""

from __future__ import annotations

from pathlib import Path

from labctl.analysis.answer.record import Basis, Statistic, Worse
from labctl.analysis.judge import judge
from labctl.store.run_folder import LoadedRun
from labctl.store.run_places import find_run
from tests.unit.analysis.alter import with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run

SYSBENCH = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}
RESULTS = Path(__file__).parents[3] / "results"


def made() -> LoadedRun:
    return synthetic_run(
        noise=0.01,
        accelerator="kvm",
        boots=5,
        tunings=["baseline", "control", "handicap", "pinned"],
        effects={"handicap": 0.95, "pinned": 1.5},
        workloads=SYSBENCH,
    )


def worse(run: LoadedRun) -> tuple[Worse, ...]:
    found = judge(run).decision.of("pinned")
    assert found is not None
    return found.worse


def test_a_tuning_that_makes_everything_faster_makes_nothing_worse() -> None:
    assert worse(made()) == ()


def test_a_metric_without_a_verdict_that_surely_got_worse_is_named_with_its_interval() -> None:
    run = with_values(made(), "pinned", "latency_p99", lambda _, old: 4 * old)
    [found] = worse(run)
    assert (found.metric, found.tested) == ("latency_p99", Basis.INTERVAL)
    assert found.statistic is Statistic.TYPICAL
    assert "no verdict" in found.text
    assert found.text in judge(run).decision.worse.replace("P99", "p99")


def test_what_got_worse_by_less_than_matters_is_not_named() -> None:
    run = with_values(made(), "pinned", "latency_p99", lambda _, old: 1.5 * 1.03 * old)
    assert worse(run) == ()


def test_a_maximum_that_stands_out_is_named_as_the_largest_of_its_trials_and_not_tested() -> None:
    run = with_values(made(), "pinned", "latency_max", lambda b, old: old * (9 if b == 4 else 1))
    [found] = worse(run)
    assert (found.metric, found.tested, found.trials) == ("latency_max", Basis.NOT_TESTED, 10)
    assert found.statistic is Statistic.LARGEST
    assert found.after is not None
    assert found.before is not None
    assert found.after > 1.5 * found.before
    assert "(the largest of 10 trials each: not tested)" in judge(run).decision.worse


def test_a_maximum_is_measured_by_the_larger_one_of_baseline_and_control() -> None:
    run = with_values(made(), "pinned", "latency_max", lambda b, old: old * (9 if b == 4 else 1))
    wild = with_values(run, "control", "latency_max", lambda b, old: old * (9 if b == 2 else 1))
    assert worse(wild) == ()


def test_where_the_control_failed_no_interval_of_another_metric_counts() -> None:
    run = with_values(made(), "pinned", "latency_p99", lambda _, old: 4 * old)
    failed = with_values(run, "control", "events_per_s", lambda _, old: 0.8 * old)
    assert worse(failed) == ()


def test_a_maximum_that_one_stall_of_the_host_hides_is_shown_by_the_median_of_its_trials() -> None:
    run = with_values(made(), "pinned", "latency_max", lambda _, old: 3 * old)
    wild = with_values(run, "control", "latency_max", lambda b, old: old * (9 if b == 2 else 1))
    [found] = worse(wild)
    assert (found.tested, found.statistic) == (Basis.NOT_TESTED, Statistic.MEDIAN)
    assert "(the median of 10 trials each: not tested)" in found.text
    assert found.after is not None
    assert found.before is not None
    assert 1.8 < found.after / found.before < 2.2  # pinned is half as fast again
    often = with_values(run, "control", "latency_max", lambda b, old: old * (9 if b > 4 else 1))
    assert worse(often) == ()


def test_in_the_recorded_example_the_longest_latency_more_than_doubles() -> None:
    decision = judge(find_run(RESULTS, "example").load()).decision
    assert "Longest latency 18.2 ms → 48.4 ms in sysbench-cpu" in decision.worse
    assert "the median of 10 trials each: not tested" in decision.worse
