"""What got worse stands beside what got better, maxima included, and says how sure it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.analysis.answer.record import Basis, Statistic, Worse
from labctl.analysis.judge import judge
from labctl.store.run_folder import LoadedRun, LoadedTrial, RunFolder
from labctl.store.samples import sample
from tests.unit.analysis.alter import with_values
from tests.unit.example import EXAMPLE
from tests.unit.synthetic import WORKLOADS, synthetic_run

SYSBENCH = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}


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


def stalled() -> LoadedRun:
    """The recorded run, as if the FIFO vCPU had been stopped for as long in each trial."""
    run = RunFolder(EXAMPLE).load()
    once = with_values(run, "control", "latency_max", lambda b, old: 0.04 if b == 1 else old)
    return with_values(once, "pinned+fifo", "latency_max", lambda *_: 0.0484)


def test_a_longest_latency_that_more_than_doubles_is_named_with_its_cause() -> None:
    decision = judge(stalled()).decision
    assert " → 48.4 ms in sysbench-cpu" in decision.worse
    assert "the median of 10 trials each: not tested" in decision.worse
    assert "; real-time throttling stops its vCPUs for up to 50 ms in each second" in decision.worse


@pytest.mark.parametrize(("slept_s", "is_named"), [(0.3, True), (0.1, False), (None, False)])
def test_a_stall_through_which_the_vcpu_slept_is_not_called_throttling(
    slept_s: float | None, is_named: bool
) -> None:
    """Its trace tells; where it has none, or the vCPU slept for less than half of it, nothing."""
    run = with_values(stalled(), "pinned+fifo", "latency_max", lambda b, _: 0.389 if b == 4 else 0)

    def traced(trial: LoadedTrial) -> LoadedTrial:
        if slept_s is None or trial.record.cell["tuning"] != "pinned+fifo":
            return trial
        value = slept_s if trial.record.block == 4 else 0.0
        return replace(
            trial, readings=(*trial.readings, sample("vcpu_blocked_max", value, source="trace"))
        )

    decision = judge(replace(run, trials=tuple(map(traced, run.trials)))).decision
    assert " → 389 ms in sysbench-cpu" in decision.worse
    told = "; for 300 ms of the longest its vCPU slept in the host ('labctl timeline example' names"
    assert (told in decision.worse) is is_named
    advised = "; with '--collect trace' a run finds the cause"
    assert (advised in decision.worse) is (slept_s is None)
    assert "throttling" not in decision.worse


@pytest.mark.parametrize(
    ("policy", "runtime_us", "is_named"),
    [
        ("fifo", "950000", True),
        ("rr", "960000", True),  # 40 ms: within a quarter of 48.4
        ("rr", "900000", False),  # 100 ms
        ("fifo", "-1", False),  # no throttling
        ("fifo", "0", False),
        ("fifo", None, False),
        ("other", "950000", False),
        (None, "950000", False),
    ],
)
def test_throttling_is_named_where_the_kernel_stops_such_threads_for_as_long(
    policy: str | None, runtime_us: str | None, is_named: bool
) -> None:
    run = stalled()
    told = {"policy": policy, "priority": 1} if policy else None
    tunings = {
        name: one.model_copy(update={"vcpu_sched": told}) if name == "pinned+fifo" else one
        for name, one in run.run.tunings.items()
    }
    host = {**run.run.host, "sched_rt_runtime_us": runtime_us}
    changed = replace(run, run=run.run.but(tunings=tunings, host=host))
    assert ("real-time throttling" in judge(changed).decision.worse) is is_named
