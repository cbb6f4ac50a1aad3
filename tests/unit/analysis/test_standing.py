"""What may be recommended: a claim about everything that the plan declares."""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt
from typing import Any

import pytest

from labctl.analysis.answer.record import Grade
from labctl.analysis.judge import judge
from labctl.analysis.model import AnswerCode, Judgement, Standing
from labctl.analysis.verdicts.table import Verdict
from labctl.report.export.json_report import report_json
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.samples import Reading
from tests.unit.analysis.alter import with_readings
from tests.unit.records import plan_of
from tests.unit.synthetic import WORKLOADS, synthetic_run
from tools.calibrate.sweeps import Latency, Sweep, simulate

GAIN = {"handicap": 0.95, "pinned": {"sysbench-cpu": 1.6}}
"""'pinned' improves sysbench, and does nothing else."""

HERE = "fio-randread with a noisy neighbour"


def allowing(loss: float | None) -> dict[str, dict[str, Any]]:
    """The workloads, with a loss that fio declares."""
    declared = {} if loss is None else {"no_worse_than": loss}
    return {**WORKLOADS, "fio-randread": {**WORKLOADS["fio-randread"], **declared}}  # type: ignore[dict-item]


def made(loss: float | None = None, **options: Any) -> LoadedRun:
    tunings = ["baseline", "control", "handicap", "pinned"]
    options = {"seed": 2, "tunings": tunings, "noise": 0.03, "boots": 10, **options}
    return synthetic_run(
        **{"effects": GAIN, "accelerator": "kvm", "workloads": allowing(loss), **options}
    )


def without(run: LoadedRun, metric: str, *, after: int = 0) -> LoadedRun:
    """The run in which the blocks of 'pinned' beyond `after` have no value of the metric."""

    def kept(trial: LoadedTrial, reading: Reading) -> Reading | None:
        record = trial.record
        gone = record.cell["tuning"] == "pinned" and record.block > after
        return None if gone and reading.metric == metric else reading

    return with_readings(run, kept)


def of(judgement: Judgement, tuning: str = "pinned") -> Standing:
    return next(one for one in judgement.standings if one.tuning == tuning)


def test_a_tuning_that_doubles_a_noisy_latency_is_never_recommended() -> None:
    """The noise of a small busy host: 12 % in a trial's rate, and a p95 whose control has a
    standard deviation of 1.19. One that improves and no one that regresses is not enough."""
    doubled = Latency(effects={"pinned": 2.0}, sd=1.19 / sqrt(2), no_worse_than=0.5)
    sweep = Sweep(effects={"pinned": 1.62}, sd=0.12, workloads=1, conditions=1, latencies=[doubled])
    found = [judge(run) for run in simulate(sweep, runs=150, seed=20, name="doubled")]
    assert sum("improves workload 1" in judgement.answer for judgement in found) > 100
    assert sum(of(judgement).code is AnswerCode.RECOMMENDED for judgement in found) <= 1
    assert sum(judgement.decision.grade is not Grade.NOT_SHOWN for judgement in found) <= 1


def test_a_loss_that_is_not_excluded_is_named_as_the_price() -> None:
    judgement = judge(made(noise=0.1))
    low = next(c.low for c in of(judgement).judged if c.workload == "fio-randread")
    assert low is not None
    assert low < 1 / 1.05
    assert of(judgement).code is AnswerCode.PRICED
    assert judgement.answer.startswith("Not shown: 'pinned' improves something, but harm elsewhere")
    price = f"if {HERE} does not matter: this run could not exclude IOPS −"
    assert price in judgement.answer
    assert "there (the study allows 5 %); it improves sysbench-cpu" in judgement.answer
    assert judgement.decision.grade is Grade.NOT_SHOWN


def test_the_study_says_what_loss_does_harm() -> None:
    """The same run, once of a study that declares nothing: then a loss of its margin does harm."""
    strict, mild = judge(made(noise=0.1)), judge(made(0.5, noise=0.1))
    assert (of(strict).code, of(mild).code) == (AnswerCode.PRICED, AnswerCode.RECOMMENDED)
    assert mild.answer.startswith("Promising, not confirmed: 'pinned'. It improves sysbench-cpu")
    assert f"is no more than 50 % worse in {HERE} (IOPS " in mild.answer
    [fio] = [c for c in of(mild).judged if c.workload == "fio-randread"]
    assert (fio.verdict, fio.no_worse_than, fio.no_worse) == (Verdict.INCONCLUSIVE, 0.5, True)


def test_of_a_latency_the_upper_end_of_the_interval_is_the_price() -> None:
    def found(allowed: float) -> Standing:
        later = Latency(effects={}, sd=0.05, no_worse_than=allowed)
        rate = Sweep(
            effects={"pinned": 1.6},
            sds={"pinned": 3.0},
            workloads=1,
            conditions=1,
            latencies=[later],
        )
        [run] = simulate(rate, runs=1, seed=1, name="latency")
        return of(judge(run))

    [open_] = found(0.01).unshown
    [latency] = [c for c in found(0.01).judged if c.metric == "latency_mean"]
    assert open_.loss == latency.high
    assert latency.high is not None
    assert latency.high > 1.01
    assert found(latency.high - 1 + 1e-6).code is AnswerCode.RECOMMENDED
    assert found(latency.high - 1 - 1e-6).code is AnswerCode.PRICED


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (without(made(0.5), "iops"), "no block has a value for both it and the baseline there"),
        (without(made(0.5), "iops", after=9), "it has fewer than 10 blocks there"),
        (
            made(0.5, effects={**GAIN, "control": {"fio-randread": 1.3}}),
            "the A/A control failed there",
        ),
        (
            made(0.5, tunings=["baseline", "handicap", "pinned"]),
            "the A/A control could not be checked there",
        ),
    ],
    ids=["missing", "nine blocks", "control failed", "no control"],
)
def test_what_was_not_shown_is_no_recommendation(run: LoadedRun, why: str) -> None:
    judgement = judge(run)
    assert of(judgement).code is not AnswerCode.RECOMMENDED
    assert "fio-randread" in {one.workload for one in of(judgement).unshown}
    assert judgement.decision.grade is Grade.NOT_SHOWN
    if of(judgement).code is AnswerCode.PRICED:
        assert f"if {HERE} does not matter: {why}" in judgement.answer


def test_where_a_tuning_was_not_measured_baseline_is_not_what_to_keep() -> None:
    nothing = {"handicap": 0.9}
    whole = made(effects=nothing, noise=0.005)
    assert judge(whole).answer.startswith("Keep baseline: nothing improves. 'pinned' equals")
    assert judge(without(whole, "iops")).answer.startswith("Not shown: this run can't")


def test_what_no_guest_was_to_run_need_not_be_shown() -> None:
    """A workload that this host can't have in guests has no trial of theirs in the plan."""
    run = made(0.5, tunings=["native", "baseline", "control", "handicap", "pinned"])

    def runs(cell: Any) -> bool:
        return cell["workload"] == "sysbench-cpu" or cell["tuning"] == "native"

    trials = [trial for trial in run.plan.to_json()["trials"] if runs(trial["cell"])]
    lacking = replace(
        run,
        plan=plan_of({**run.plan.to_json(), "trials": trials}),
        trials=tuple(trial for trial in run.trials if runs(trial.record.cell)),
    )
    assert judge(lacking).answer.startswith("Promising, not confirmed: 'pinned'")


def test_a_smaller_gain_that_is_harmless_comes_before_a_larger_one_with_a_price() -> None:
    effects = {"handicap": 0.95, "pinned": 5.0, "pinned+fifo": {"sysbench-cpu": 1.2}}
    tunings = ["baseline", "control", "handicap", "pinned", "pinned+fifo"]
    run = without(made(0.5, effects=effects, tunings=tunings), "iops")
    judgement = judge(run)
    assert [one.tuning for one in judgement.standings] == ["pinned+fifo", "pinned"]
    assert judgement.answer.startswith("Promising, not confirmed: 'pinned+fifo'")
    assert f"'pinned', if {HERE} does not matter" in judgement.answer


def test_what_regresses_is_never_recommended_however_much_the_study_allows() -> None:
    effects = {"handicap": 0.95, "pinned": {"sysbench-cpu": 1.6, "fio-randread": 0.8}}
    judgement = judge(made(2.0, effects=effects))
    assert of(judgement).unshown == ()
    assert of(judgement).code is AnswerCode.NONE
    assert "'pinned' is a trade-off" in judgement.answer


def test_a_bias_that_the_control_leaves_open_may_not_have_hidden_the_loss() -> None:
    """The interval excludes the loss, but a control as far off would bring a tuning that makes it
    to the same estimate."""
    run = made(0.12, noise=0.01, effects={**GAIN, "pinned": {"sysbench-cpu": 1.6}})
    steady = of(judge(run))
    assert steady.code is AnswerCode.RECOMMENDED

    def spread(trial: LoadedTrial, reading: Reading) -> Reading:
        if trial.record.cell["workload"] != "fio-randread" or reading.metric != "iops":
            return reading
        # Baseline and control are off in opposite directions, which their mean doesn't see.
        off = 0.25 * (-1) ** trial.record.block
        signs = {"baseline": 1, "control": -1}
        factor = 1 + off * signs.get(trial.record.cell["tuning"], 0)
        return replace(reading, value=reading.value * factor)  # type: ignore[union-attr]

    [unshown] = of(judge(with_readings(run, spread))).unshown
    assert unshown.why == "the A/A control cannot exclude a bias that could hide a loss of 12 %"
    assert unshown.loss is None


@pytest.mark.parametrize("declared", [0.0, -0.5, float("inf")])
def test_a_loss_that_is_none_leaves_the_margin_and_is_told(declared: float) -> None:
    judgement = judge(made(declared))
    [fio] = [c for c in of(judgement).judged if c.workload == "fio-randread"]
    assert fio.no_worse_than == fio.margin == 0.05
    said = "Workload 'fio-randread' declares 'no_worse_than', but not a loss above 0"
    assert any(warning.startswith(said) for warning in judgement.warnings)


def test_programs_get_the_answer_as_a_code() -> None:
    def found(run: LoadedRun) -> dict[str, Any]:
        made_of: dict[str, Any] = report_json(run, judge(run))["recommendation"]
        return made_of

    priced, best = found(made(noise=0.1)), found(made(0.5, noise=0.1))
    none = found(made(effects={"handicap": 0.9}))
    assert (best["code"], best["tuning"]) == ("recommended", "pinned")
    assert (priced["code"], priced["tuning"]) == ("trade-off-not-excluded", "pinned")
    assert (none["code"], none["tuning"]) == ("none", None)
    [tuning] = priced["tunings"]
    assert tuning["price"].startswith(f"if {HERE} does not matter")
    [unshown] = tuning["unshown"]
    assert (unshown["workload"], unshown["metric"]) == ("fio-randread", "iops")
    assert log(unshown["loss"]) < -log(1.05)
