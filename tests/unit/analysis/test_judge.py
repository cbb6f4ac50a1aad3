import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.judge import judge
from labctl.analysis.model import EffectKind, Judgement, Role
from labctl.analysis.verdicts.table import Verdict
from labctl.base import hostfacts
from labctl.base.units import Better, Unit
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialStatus
from tests.unit.analysis.alter import (
    only,
    primaries,
    with_plan,
    with_readings,
    with_run,
    with_values,
)
from tests.unit.synthetic import WORKLOADS, synthetic_run

SYSBENCH = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}


def values(run: LoadedRun, tuning: str, metric: str) -> list[float]:
    """By block; of runs with one workload."""
    return [
        reading.value
        for trial in sorted(run.trials, key=lambda t: t.record.block)
        for reading in trial.readings
        if trial.record.cell["tuning"] == tuning
        and isinstance(reading, Sample)
        and reading.key == metric
    ]


def pairs(judgement: Judgement) -> set[tuple[str, str]]:
    return {(c.tuning, c.against) for c in judgement.comparisons}


def test_a_primary_interval_is_the_simultaneous_one_of_the_paired_log_ratios() -> None:
    """Two candidates under one workload and condition: m = 2, so 97.5 %."""
    run = synthetic_run(workloads=SYSBENCH)
    logs = {
        name: np.log(values(run, name, "events_per_s"))
        for name in ("pinned", "baseline", "control")
    }
    effects = logs["pinned"] - (logs["baseline"] + logs["control"]) / 2
    error = effects.std(ddof=1) / math.sqrt(10)
    half = stats.t.ppf(1 - 0.05 / 2 / 2, 9) * error
    found = only(judge(run), "pinned", "baseline", "events_per_s")
    assert found.role is Role.PRIMARY
    assert found.kind is EffectKind.RATIO
    assert found.confidence == pytest.approx(0.975)
    assert found.estimate == pytest.approx(math.exp(effects.mean()))
    assert found.low == pytest.approx(math.exp(effects.mean() - half))
    assert found.high == pytest.approx(math.exp(effects.mean() + half))
    assert list(found.blocks.values()) == pytest.approx(list(np.exp(effects)))
    assert found.margin == 0.05


def test_the_family_is_candidates_times_workloads_times_conditions() -> None:
    judgement = judge(synthetic_run(conditions=["quiet", "neighbour"]))
    family = primaries(judgement)
    assert len(family) == 2 * 2 * 2
    assert {c.confidence for c in family} == {1 - 0.05 / 8}
    assert {c.tuning for c in family} == {"pinned", "pinned+fifo"}


def test_a_tuning_that_never_ran_stays_in_the_family() -> None:
    lost = [("pinned", workload, b) for workload in WORKLOADS for b in range(1, 11)]
    judgement = judge(synthetic_run(invalid=lost))
    assert {c.confidence for c in primaries(judgement)} == {1 - 0.05 / 4}


def test_what_is_compared_with_what() -> None:
    assert pairs(judge(synthetic_run(blocks=2))) == {
        ("pinned", "baseline"),
        ("pinned+fifo", "baseline"),
        ("handicap", "baseline"),
        ("baseline", "native"),
        ("pinned", "native+pinned"),
        ("pinned+fifo", "native+fifo"),
        ("native+pinned", "native"),
        ("native+fifo", "native"),
    }


def test_only_candidates_against_baseline_in_the_primary_metric_get_a_verdict() -> None:
    judgement = judge(synthetic_run())
    for c in judgement.comparisons:
        judged = (
            c.against == "baseline"
            and c.tuning.startswith("pinned")
            and c.metric in ("events_per_s", "iops")
        )
        assert (c.verdict is not None) is judged
        assert (c.role is Role.PRIMARY) is judged
        if not judged:
            assert c.confidence == 0.95


def test_a_lower_latency_improves_and_keeps_its_natural_direction() -> None:
    workload = {**WORKLOADS["sysbench-cpu"], "primary": "latency_p95"}
    run = with_plan(synthetic_run(workloads=SYSBENCH), workloads={"sysbench-cpu": workload})
    found = only(judge(run), "pinned+fifo", "baseline", "latency_p95")
    assert found.estimate == pytest.approx(1 / 2.73, rel=0.1)
    assert found.better is Better.LOWER
    assert found.verdict is Verdict.IMPROVES


def test_swapping_tuning_and_baseline_inverts_the_ratio() -> None:
    run = synthetic_run(workloads=SYSBENCH, tunings=["baseline", "pinned"])
    swapped = with_plan(run, baseline="pinned")
    there = only(judge(run), "pinned", "baseline", "events_per_s")
    back = only(judge(swapped), "baseline", "pinned", "events_per_s")
    assert there.low is not None
    assert back.high is not None
    assert there.estimate == pytest.approx(1 / back.estimate)
    assert there.low == pytest.approx(1 / back.high)


def test_zeros_live_in_natural_units() -> None:
    judgement = judge(synthetic_run(workloads=SYSBENCH))
    assert only(judgement, "pinned", "baseline", "run_delay").kind is EffectKind.DIFFERENCE
    iothread = only(judgement, "pinned", "baseline", "host_cpu{thread=iothread}")
    assert iothread.estimate == 0.0
    assert iothread.low is None


def test_ipc_of_different_sources_is_never_compared() -> None:
    def measured(trial: LoadedTrial, reading: Reading) -> Reading:
        native = trial.record.cell["tuning"].startswith("native")
        if native and isinstance(reading, Sample) and reading.metric == "ipc":
            return replace(reading, labels={"source": "pmu"}, source="perf-stat.txt")
        return reading

    judgement = judge(with_readings(synthetic_run(workloads=SYSBENCH), measured))
    compared = {(c.tuning, c.against) for c in judgement.comparisons if c.metric.startswith("ipc")}
    assert ("pinned", "baseline") in compared
    assert ("pinned", "native+pinned") not in compared
    assert ("native+pinned", "native") in compared
    assert only(judgement, "pinned", "baseline", "ipc{source=calibrated}").source == "calibrated"


def test_calibrated_ipc_gets_no_verdict_even_when_a_study_asks_for_one() -> None:
    run = synthetic_run(workloads=SYSBENCH)
    workload = {**WORKLOADS["sysbench-cpu"], "primary": "ipc{source=calibrated}"}
    judgement = judge(with_plan(run, workloads={"sysbench-cpu": workload}))
    assert not primaries(judgement)
    assert "calibrated IPC" in judgement.warnings[0]
    assert "calibrated IPC" in judgement.answer


def test_a_block_with_an_invalid_side_is_left_out_and_named() -> None:
    run = synthetic_run(blocks=12, invalid=[("pinned", "sysbench-cpu", 3)])
    judgement = judge(run)
    (found,) = [
        c for c in primaries(judgement) if (c.tuning, c.workload) == ("pinned", "sysbench-cpu")
    ]
    assert sorted(found.blocks) == [1, 2, *range(4, 13)]
    assert found.verdict is Verdict.REGRESSES
    assert any(
        w.startswith("'pinned' in sysbench-cpu") and "block 3" in w for w in judgement.warnings
    )
    assert judgement.invalid == 1


def test_ten_planned_blocks_of_which_one_is_invalid_give_no_verdict() -> None:
    judgement = judge(synthetic_run(invalid=[("baseline", "sysbench-cpu", 3)]))
    verdicts = {c.workload: c.verdict for c in primaries(judgement)}
    assert verdicts["sysbench-cpu"] is Verdict.DEMONSTRATION
    assert verdicts["fio-randread"] is not Verdict.DEMONSTRATION


def test_an_inconclusive_comparison_says_what_could_have_been_seen() -> None:
    judgement = judge(synthetic_run(noise=0.1, effects={}, workloads=SYSBENCH))
    for c in primaries(judgement):
        assert c.verdict is Verdict.INCONCLUSIVE
        assert c.smallest_visible is not None
        assert c.smallest_visible > 0.05
        assert c.blocks_needed is not None
        assert c.blocks_needed > 10


def test_counts_of_trials_blocks_and_boots() -> None:
    run = synthetic_run(
        blocks=4, boots=2,
        invalid=[("pinned", "sysbench-cpu", 1)], repeated=[("pinned", "sysbench-cpu", 2)],
    )  # fmt: skip
    judgement = judge(run)
    assert (judgement.blocks, judgement.boots) == (4, 2)
    assert (judgement.planned, judgement.done, judgement.invalid) == (64, 63, 2)
    assert judgement.primaries == {"sysbench-cpu": "events_per_s", "fio-randread": "iops"}


def test_judging_twice_gives_the_same() -> None:
    run = synthetic_run(noise=0.2)
    assert judge(run) == judge(run)


# What a run shouldn't be but may be: a sentence each, never a traceback.


def all_finite(judgement: Judgement) -> bool:
    numbers = [
        number
        for c in judgement.comparisons
        for number in (c.estimate, c.low, c.high, *c.blocks.values())
        if number is not None
    ]
    json.dumps(numbers, allow_nan=False)
    return True


def test_one_block_shows_estimates_without_intervals() -> None:
    judgement = judge(synthetic_run(blocks=1))
    assert {c.verdict for c in primaries(judgement)} == {Verdict.DEMONSTRATION}
    assert all(c.low is None and c.high is None for c in judgement.comparisons)
    assert judgement.answer.startswith("Demonstration, no verdict. A verdict needs 10 blocks")


def test_two_wild_blocks_have_finite_intervals() -> None:
    judgement = judge(synthetic_run(blocks=2, noise=3.0))
    assert all_finite(judgement)


def test_no_trials_at_all() -> None:
    judgement = judge(replace(synthetic_run(), trials=()))
    assert judgement.comparisons == ()
    assert judgement.done == 0
    assert "no valid trial" in judgement.answer


def test_every_trial_invalid() -> None:
    run = synthetic_run()
    trials = tuple(
        replace(t, record=replace(t.record, status=TrialStatus.INVALID, reasons=("it slept",)))
        for t in run.trials
    )
    judgement = judge(replace(run, trials=trials))
    assert "no valid trial" in judgement.answer
    assert "Most frequent failure (160 of 160): it slept." in judgement.answer
    assert any("160 invalid trials: it slept (160×)" in w for w in judgement.warnings)


def test_a_metric_that_no_trial_has_is_named_with_the_command_that_shows_more() -> None:
    run = synthetic_run()
    reason = "/runs/a b/trials/0001: stdout.txt: metric 'v': the pattern 'x' matches nothing"
    trials = tuple(
        replace(t, record=replace(t.record, status=TrialStatus.INVALID, reasons=(reason,)))
        for t in run.trials
    )
    answer = judge(replace(run, trials=trials)).answer
    assert "(160 of 160): stdout.txt: metric 'v': the pattern 'x' matches nothing." in answer
    assert "'labctl workload try' shows how the program's output is read." in answer


def _said_of_invalid(reasons: list[str]) -> str:
    """What is said of a run whose first trials are invalid, each for one of these reasons."""
    run = synthetic_run()
    trials = tuple(
        replace(t, record=replace(t.record, status=TrialStatus.INVALID, reasons=(reason,)))
        for t, reason in zip(run.trials, reasons, strict=False)
    )
    (said,) = (w for w in judge(replace(run, trials=trials)).warnings if "invalid trials" in w)
    return said


def test_invalid_trials_of_one_reason_with_other_figures_are_told_of_once() -> None:
    reasons = ["others took 0.14 CPUs.", "others took 0.20 CPUs.", "it slept."]
    said = _said_of_invalid(2 * reasons)
    assert said == "6 invalid trials: others took 0.14 CPUs and the like (4×); it slept (2×)."


def test_guests_that_died_alike_are_one_reason_whatever_their_logs_say() -> None:
    logs = [f"QEMU's log ends:\n  09:{at}Z: line {'x' * at}" for at in range(6)]
    said = _said_of_invalid([f"the guest: ended.\n{text}" for text in logs])
    assert said == "6 invalid trials: the guest: ended (6×)."


def test_no_plan() -> None:
    run = replace(synthetic_run(), plan=PlanRecord(), problems=("plan.json is missing",))
    judgement = judge(run)
    assert judgement.comparisons == ()
    assert judgement.levels
    assert "no plan" in judgement.answer
    assert "plan.json is missing" in judgement.warnings


def test_no_baseline() -> None:
    judgement = judge(synthetic_run(tunings=["native", "native+pinned", "pinned"]))
    assert "no baseline" in judgement.answer
    assert ("pinned", "native+pinned") in pairs(judgement)


def test_a_baseline_that_was_never_measured() -> None:
    lost = [("baseline", workload, b) for workload in WORKLOADS for b in range(1, 11)]
    judgement = judge(synthetic_run(invalid=lost))
    assert not [c for c in judgement.comparisons if c.against == "baseline"]
    assert judgement.answer.startswith("Nothing can be recommended.")
    assert any("any block" in w for w in judgement.warnings)


def test_a_primary_metric_that_nothing_measured_is_named_with_what_was() -> None:
    workload = {**WORKLOADS["sysbench-cpu"], "primary": "evnts"}
    judgement = judge(
        with_plan(synthetic_run(workloads=SYSBENCH), workloads={"sysbench-cpu": workload})
    )
    assert not primaries(judgement)
    assert "'evnts'" in judgement.answer
    assert "events_per_s" in judgement.answer


def test_a_primary_metric_that_could_not_be_had_says_why() -> None:
    def lost(trial: LoadedTrial, reading: Reading) -> Reading:
        if isinstance(reading, Sample) and reading.key == "events_per_s":
            return Unavailable(metric="events_per_s", reason="sysbench printed garbage")
        return reading

    judgement = judge(with_readings(synthetic_run(workloads=SYSBENCH), lost))
    assert "sysbench printed garbage" in judgement.answer


@pytest.mark.parametrize("bad", [0.0, -5.0])
def test_a_primary_metric_of_zero_is_a_difference_without_a_claim(bad: float) -> None:
    run = with_values(
        synthetic_run(workloads=SYSBENCH), "pinned", "events_per_s",
        lambda block, old: bad if block == 4 else old,
    )  # fmt: skip
    judgement = judge(run)
    found = only(judgement, "pinned", "baseline", "events_per_s")
    assert found.kind is EffectKind.DIFFERENCE
    assert found.verdict is Verdict.INCONCLUSIVE
    assert any("0 or less" in w and "'pinned'" in w for w in judgement.warnings)
    other = only(judgement, "pinned+fifo", "baseline", "events_per_s")
    assert other.verdict is Verdict.IMPROVES


def test_nan_is_left_out_with_its_block() -> None:
    run = with_values(
        synthetic_run(workloads=SYSBENCH, blocks=11), "pinned", "events_per_s",
        lambda block, old: math.nan if block == 4 else old,
    )  # fmt: skip
    judgement = judge(run)
    assert 4 not in only(judgement, "pinned", "baseline", "events_per_s").blocks
    assert all_finite(judgement)
    assert any("not a finite number" in w for w in judgement.warnings)


def test_tied_values_are_no_certainty() -> None:
    run = synthetic_run(workloads=SYSBENCH)
    run = with_values(run, "pinned", "events_per_s", lambda block, old: 110.0)
    for arm in ("baseline", "control"):
        run = with_values(run, arm, "events_per_s", lambda block, old: 100.0)
    judgement = judge(run)
    found = only(judgement, "pinned", "baseline", "events_per_s")
    assert found.low is None
    assert found.verdict is Verdict.SUSPENDED
    assert any("too coarse" in w for w in judgement.warnings)


def test_a_workload_without_a_margin_is_not_judged() -> None:
    workload = {key: v for key, v in WORKLOADS["sysbench-cpu"].items() if key != "margin"}
    judgement = judge(
        with_plan(synthetic_run(workloads=SYSBENCH), workloads={"sysbench-cpu": workload})
    )
    assert not primaries(judgement)
    assert "threshold" in judgement.answer


def test_a_metric_without_a_better_direction_gets_no_claim() -> None:
    workload = {**WORKLOADS["sysbench-cpu"], "primary": "ctx_switches{kind=voluntary,of=workload}"}
    judgement = judge(
        with_plan(synthetic_run(workloads=SYSBENCH), workloads={"sysbench-cpu": workload})
    )
    assert {c.verdict for c in primaries(judgement)} <= {Verdict.INCONCLUSIVE}
    assert any("no better direction" in w for w in judgement.warnings)


def test_an_empty_run_record() -> None:
    judgement = judge(replace(synthetic_run(), run=RunRecord()))
    assert judgement.answer.startswith(
        "160 of 160 trials done; it is unknown whether the run finished"
    )
    assert any("not finished (status: unknown)" in w for w in judgement.warnings)


def test_warnings_come_with_the_gravest_first() -> None:
    run = with_values(
        synthetic_run(noise=0.005, effects={}, boots=2, status="interrupted",
                      invalid=[("pinned", "sysbench-cpu", 3)]),
        "control", "events_per_s", lambda block, old: 0.9 * old,
    )  # fmt: skip
    warning = "pinned+fifo: real-time throttling may stop SCHED_FIFO threads"
    run = with_run(run, skipped={"rr": "no real-time bandwidth in this cgroup"}, warnings=[warning])
    run = replace(run, problems=("trials/0007/trial.json cannot be read",))
    warnings = judge(run).warnings
    expected = [
        "The A/A control failed",
        "The known loss was not detected",
        "10 blocks share 2 boots",
        "native-versus-guest ratio shows emulation, not virtualization",
        "stack difference",
        "Restored state",
        "1 invalid trial: vCPU 0 ran on CPUs 0-1",
        "'rr' was skipped: No real-time",
        "pinned+fifo: real-time throttling may stop SCHED_FIFO threads.",
        "no usable value in block 3",
        "trials/0007/trial.json cannot be read",
        "not finished (status: interrupted)",
    ]
    places = [next(i for i, w in enumerate(warnings) if text in w) for text in expected]
    assert places == sorted(places)


def test_a_run_with_hardware_counters_is_warned_of_until_a_pmu_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = synthetic_run(noise=0.005, boots=10)
    ipc = Sample(
        metric="ipc",
        value=1.5,
        unit=Unit.INSTRUCTIONS_PER_CYCLE,
        better=Better.HIGHER,
        labels={"source": "pmu"},
        source="perf-stat.jsonl",
    )
    with_ipc = (LoadedTrial(t.record, (*t.readings, ipc), t.folder) for t in run.trials)
    counted = replace(run, trials=tuple(with_ipc))
    assert hostfacts.pmu_caveat() in judge(counted).warnings
    assert hostfacts.pmu_caveat() not in judge(run).warnings
    assert hostfacts.pmu_caveat() not in judge(with_run(counted, imported={"file": "a"})).warnings
    monkeypatch.setattr(hostfacts, "PMU_BUNDLES", ("a-host",))
    assert not any("Hardware counters" in caveat for caveat in judge(counted).warnings)


def test_a_clean_run_under_kvm_with_one_kernel_is_warned_of_as_long_as_no_such_host_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = synthetic_run(noise=0.005, accelerator="kvm", boots=10)
    run = with_run(run, same_kernel=True, restored_state=False)
    (warning,) = judge(run).warnings
    assert warning.startswith("KVM figures are unverified on hardware")
    monkeypatch.setattr(hostfacts, "KVM_BUNDLES", ("a-bundle",))
    assert judge(run).warnings == ()


def test_many_skipped_tunings_are_one_warning() -> None:
    skipped = {f"t{number}": "it needs KVM" for number in range(9)}
    warnings = [w for w in judge(with_run(synthetic_run(), skipped=skipped)).warnings if "t1" in w]
    assert warnings == [
        (
            "'t0', 't1', 't2' and 6 more were skipped because this host does not support them: "
            "see the table of skipped tunings."
        )
    ]


def test_blocks_that_a_comparison_lacks_are_named_in_it() -> None:
    """Of the tuning's own and of those that it is compared with; nothing is imputed."""
    run = synthetic_run(
        primary_only=True,
        invalid=[
            ("pinned", "sysbench-cpu", 3),
            ("pinned", "sysbench-cpu", 7),
            ("control", "sysbench-cpu", 5),
        ],
    )
    judgement = judge(run)
    found = [c for c in primaries(judgement) if c.workload == "sysbench-cpu"]
    assert {c.tuning: c.left_out for c in found} == {"pinned": (3, 5, 7), "pinned+fifo": (5,)}
    assert all(c.left_out == () for c in primaries(judgement) if c.workload != "sysbench-cpu")
    assert set(found[0].blocks) == {1, 2, 4, 6, 8, 9, 10}


def test_blocks_that_were_never_reached_are_not_called_missing() -> None:
    run = synthetic_run(primary_only=True)
    begun = replace(run, trials=tuple(t for t in run.trials if t.record.block <= 4))
    assert all(c.left_out == () for c in judge(begun).comparisons)


def test_a_comparison_has_the_error_that_its_interval_is_made_of() -> None:
    run = synthetic_run(blocks=10, boots=5, boot_noise={"pinned": 0.1})
    for item in judge(run).comparisons:
        if item.low is None or item.high is None:
            assert item.error is None
            continue
        ends = (item.low, item.high)
        if item.kind is EffectKind.RATIO:
            ends = (math.log(item.low), math.log(item.high))
        t = stats.t.ppf(0.5 + item.confidence / 2, item.units - 1)
        assert item.error is not None
        assert ends[1] - ends[0] == pytest.approx(2 * t * item.error)
    pinned = next(i for i in judge(run).comparisons if i.tuning == "pinned" and i.error)
    assert pinned.units == 5
