import math
import re

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.effects.cells import Scenario, read_cells, scenario_of
from labctl.analysis.effects.design import read_design
from labctl.analysis.effects.intervals import spread
from labctl.analysis.judge import judge
from labctl.analysis.verdicts.checks import Checked, check
from labctl.analysis.verdicts.rules import sees_from
from labctl.analysis.verdicts.table import Verdict
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import primaries, with_plan, with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run

SYSBENCH = Scenario("sysbench-cpu", "neighbour")
QUIET = {"noise": 0.005, "workloads": {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}}


def checked(run: LoadedRun) -> Checked:
    design = read_design(run)
    return check(design, read_cells(run), SYSBENCH, design.primaries["sysbench-cpu"])


def test_the_controls_interval_is_the_95_percent_one_of_control_over_baseline() -> None:
    run = synthetic_run(**QUIET)
    cells = read_cells(run)
    baseline, control = (
        cells.get(name, SYSBENCH, "events_per_s") for name in ("baseline", "control")
    )
    assert baseline is not None
    assert control is not None
    logs = np.log([control.values[b] / baseline.values[b] for b in range(1, 11)])
    expected = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    found = checked(run).control
    assert found.estimate == pytest.approx(math.exp(logs.mean()))
    assert found.low == pytest.approx(math.exp(expected.low))
    assert found.high == pytest.approx(math.exp(expected.high))


def test_the_controls_checks_are_one_family_over_the_places() -> None:
    """Of four places each has 5 % / 4, or one of them would fail in a fifth of sound runs."""
    run = synthetic_run(noise=0.005, conditions=["quiet", "neighbour"])
    assert len(read_design(run).places) == 4
    found = checked(run)
    assert found.control.confidence == pytest.approx(1 - 0.05 / 4)
    # One-sided at 5 %.
    assert found.known_loss.confidence == pytest.approx(0.90)


def test_equal_arms_with_little_noise_pass() -> None:
    found = checked(synthetic_run(**QUIET))
    assert found.control.passed is True
    assert found.eligibility.judges


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_a_control_that_always_differs_fails_and_suspends_its_workload_only(factor: float) -> None:
    run = with_values(
        synthetic_run(noise=0.005), "control", "events_per_s", lambda block, old: factor * old
    )
    assert checked(run).control.passed is False
    judgement = judge(run)
    by_workload: dict[str, set[Verdict | None]] = {}
    for comparison in primaries(judgement):
        by_workload.setdefault(comparison.workload, set()).add(comparison.verdict)
    assert by_workload["sysbench-cpu"] == {Verdict.SUSPENDED}
    assert Verdict.SUSPENDED not in by_workload["fio-randread"]
    assert judgement.warnings[0].startswith("The A/A control failed in sysbench-cpu")


def test_a_noisy_control_is_neither_passed_nor_failed_and_still_licenses_large_effects() -> None:
    run = synthetic_run(noise=0.2, seed=1)
    found = checked(run)
    assert found.control.passed is None
    assert found.eligibility.judges
    assert found.eligibility.reach > 0.05
    verdicts = {(c.tuning, c.workload): c.verdict for c in primaries(judge(run))}
    assert verdicts["pinned+fifo", "sysbench-cpu"] is Verdict.IMPROVES


def test_a_handicap_of_5_percent_is_found_with_little_noise() -> None:
    found = checked(synthetic_run(**QUIET))
    assert found.known_loss.passed is True
    assert found.eligibility.sees(math.log(1.05))
    assert found.known_loss.estimate == pytest.approx(0.95, abs=0.01)


def test_a_handicap_of_5_percent_is_lost_in_noise_of_20_percent() -> None:
    found = checked(synthetic_run(noise=0.2))
    assert found.known_loss.passed is False
    assert found.eligibility.sees_from == math.inf


def known_loss(factor: float, *, noise: float) -> tuple[Checked, set[Verdict | None]]:
    """A run of which a tuning that does nothing was called equivalent once its loss was found."""
    arms = ("baseline", "control", "handicap", "pinned")
    shape = {**QUIET, "noise": noise, "tunings": arms, "effects": {"handicap": factor}}
    run = synthetic_run(**shape)
    return checked(run), {c.verdict for c in primaries(judge(run))}


def test_a_loss_that_shows_as_threefold_proves_no_sensitivity_to_5_percent() -> None:
    small, equal = known_loss(0.95, noise=0.03)
    assert (small.known_loss.passed, equal) == (True, {Verdict.EQUIVALENT})
    large, equal = known_loss(0.3, noise=0.03)
    assert (large.known_loss.passed, equal) == (None, {Verdict.INCONCLUSIVE})
    assert large.known_loss.high is not None
    assert large.known_loss.high < 0.5  # it was found, beyond doubt
    assert "The known loss was detected" in large.known_loss.sentence
    assert "more than twice the threshold" in large.known_loss.sentence
    assert "minimum detectable effect 6.7 %, threshold 5 %" in large.known_loss.sentence
    assert '"equivalent" is withheld' in large.known_loss.sentence


def test_nor_need_it_where_equal_arms_would_have_shown_as_small_a_difference() -> None:
    found, equal = known_loss(0.3, noise=0.01)
    assert (found.known_loss.passed, equal) == (True, {Verdict.EQUIVALENT})
    assert found.eligibility.sees_from < math.log(1.05)


def test_a_loss_that_was_not_found_is_no_matter_of_noise() -> None:
    """A metric that is steady and sees nothing proves nothing, however steady it is."""
    found, equal = known_loss(1.0, noise=0.001)
    assert (found.known_loss.passed, equal) == (False, {Verdict.INCONCLUSIVE})
    assert found.eligibility.sees_from == math.inf


def test_the_smallest_loss_that_a_run_sees_is_half_of_the_known_one_or_what_noise_leaves() -> None:
    """By hand: ten blocks, t(0.975) + t(0.8) = 2.262 + 0.883 at 9 degrees of freedom."""
    control = spread([0.01, -0.01] * 5, 0.0)
    visible = (2.262 + 0.883) * control.sd / math.sqrt(10)
    assert sees_from(0.02, control, 0.05) == pytest.approx(0.01)
    assert sees_from(1.2, control, 0.05) == pytest.approx(visible, rel=1e-3)
    assert sees_from(1.2, control, 0.01) > visible  # held to more, as those are that it judges
    assert sees_from(None, control, 0.05) == math.inf
    assert sees_from(0.02, None, 0.05) == pytest.approx(0.01)
    assert sees_from(0.02, spread([0.0] * 10, 0.0), 0.05) == pytest.approx(0.01)


def test_a_handicap_that_is_faster_than_baseline_is_not_found() -> None:
    found = checked(synthetic_run(**QUIET, effects={"handicap": 1.05}))
    assert found.known_loss.passed is False


def test_a_handicap_on_a_latency_is_a_rise() -> None:
    workload = {**WORKLOADS["sysbench-cpu"], "primary": "latency_p95"}
    run = synthetic_run(noise=0.005)
    run = with_plan(run, workloads={**run.plan.to_json()["workloads"], "sysbench-cpu": workload})
    found = checked(run)
    assert found.known_loss.passed is True
    assert found.known_loss.estimate == pytest.approx(1 / 0.95, abs=0.01)


def test_without_the_handicap_equal_tunings_are_inconclusive_not_equivalent() -> None:
    with_it = judge(synthetic_run(**QUIET, effects={"handicap": 0.95}))
    without = judge(synthetic_run(**QUIET, effects={}))
    assert {c.verdict for c in primaries(with_it)} == {Verdict.EQUIVALENT}
    assert {c.verdict for c in primaries(without)} == {Verdict.INCONCLUSIVE}
    assert "cannot show there that two tunings are equivalent" in without.warnings[0]


@pytest.mark.parametrize("arm", ["control", "handicap"])
def test_an_arm_that_is_missing_is_not_checked(arm: str) -> None:
    tunings = [t for t in ("baseline", "control", "handicap", "pinned") if t != arm]
    found = checked(synthetic_run(**QUIET, tunings=tunings))
    here = found.control if arm == "control" else found.known_loss
    assert here.passed is None
    assert here.estimate is None
    assert re.search("could not be (checked|made)", here.sentence)


def test_without_a_control_every_verdict_is_suspended() -> None:
    judgement = judge(synthetic_run(tunings=["baseline", "handicap", "pinned+fifo"]))
    assert {c.verdict for c in primaries(judgement)} == {Verdict.SUSPENDED}


def test_nine_blocks_are_too_few_for_a_check_but_show_their_estimate() -> None:
    found = checked(synthetic_run(**QUIET, blocks=9))
    assert found.control.passed is None
    assert found.known_loss.passed is None
    assert found.known_loss.estimate == pytest.approx(0.95, abs=0.01)
    assert found.known_loss.low is not None


def test_a_control_that_is_the_same_number_in_every_block_is_not_checked() -> None:
    run = synthetic_run(**QUIET)
    for arm in ("baseline", "control"):
        run = with_values(run, arm, "events_per_s", lambda block, old: 100.0)
    found = checked(run)
    assert found.control.passed is None
    assert not found.eligibility.judges
    assert "too coarse" in found.control.sentence


def test_a_check_that_ended_like_no_other_hides_none_of_them() -> None:
    run = synthetic_run(noise=0.05, effects={"handicap": 0.3})
    warnings = judge(with_values(run, "handicap", "iops", lambda block, old: old / 0.3)).warnings
    for said in ("detected in sysbench-cpu", "not detected in fio-randread"):
        assert any(f"The known loss was {said}" in warning for warning in warnings), warnings


def test_checks_that_differ_in_place_and_numbers_alone_are_one_warning() -> None:
    judgement = judge(synthetic_run(noise=0.2, seed=1))
    unsure = [check for check in judgement.control if check.passed is None]
    assert len(unsure) > 1
    (said,) = [
        text for text in judgement.warnings if text.startswith("The A/A control is too noisy")
    ]
    for found in unsure:
        assert found.said is not None
        assert str(scenario_of(found)) in said
        assert found.said.found in said
        assert found.sentence not in said
    assert said.count(": effects smaller than its possible bias") == 1


def test_a_check_of_one_place_alone_keeps_its_own_sentence() -> None:
    run = with_values(
        synthetic_run(noise=0.005), "control", "events_per_s", lambda block, old: 0.97 * old
    )
    judgement = judge(run)
    (failed,) = [check for check in judgement.control if check.passed is False]
    assert failed.sentence in judgement.warnings
