"""Holm's step-down procedure, which may only add verdicts."""

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.answer.words import effect
from labctl.analysis.judge import judge
from labctl.analysis.model import Comparison
from labctl.analysis.verdicts.family import rejected_at
from labctl.analysis.verdicts.table import Verdict
from labctl.base.stopping import Looks, Stopping
from tests.unit.analysis.alter import only, primaries, with_values
from tests.unit.synthetic import WORKLOADS, synthetic_run

ONE = {"sysbench-cpu": WORKLOADS["sysbench-cpu"]}

ARMS = ["baseline", "control", "handicap", "one", "other", "third", "fourth"]


def test_the_levels_are_those_computed_by_hand() -> None:
    """0.01 <= 0.05/4, then 0.015 <= 0.05/3, then 0.03 > 0.05/2: the last two stay."""
    assert rejected_at([0.03, 0.01, 0.04, 0.015], 0.05, 4) == [
        None,
        pytest.approx(0.0125),
        None,
        pytest.approx(0.05 / 3),
    ]


def test_a_p_value_at_its_level_is_rejected() -> None:
    assert rejected_at([0.05, 0.025], 0.05, 2) == [0.05, 0.025]


def test_the_first_p_value_that_stays_keeps_all_larger_ones() -> None:
    """0.02 is above 0.05/3, so that 0.024 is not held to 0.05/2 at all."""
    assert rejected_at([0.02, 0.024, 0.04], 0.05, 3) == [None, None, None]


def test_a_test_that_was_planned_and_gave_no_value_still_counts() -> None:
    assert rejected_at([0.02], 0.05, 2) == [pytest.approx(0.025)]
    assert rejected_at([0.02], 0.05, 3) == [None]
    assert rejected_at([1.0, 0.01], 0.05, 1) == [None, pytest.approx(0.05)]


@pytest.mark.parametrize("equal", [1, 2, 4])
def test_any_false_finding_stays_as_rare_as_promised_whatever_else_differs(equal: int) -> None:
    """10,000 families of four arms that share a baseline; some are equal to it, the others have
    effects that are always found and lend their share. 5 % give or take 0.65 (three standard
    errors) is the most; Bonferroni alone would spend a quarter of it on one equal arm."""
    generator = np.random.default_rng(21)
    blocks = generator.normal(size=(10_000, 10, 4)) + generator.normal(size=(10_000, 10, 1))
    blocks[:, :, equal:] += 20.0
    error = blocks.std(axis=1, ddof=1) / np.sqrt(10)
    p_values = 2 * stats.t.sf(np.abs(blocks.mean(axis=1)) / error, 9)
    false = sum(
        any(level is not None for level in rejected_at(row, 0.05, 4)[:equal])
        for row in p_values.tolist()
    )
    assert false / 10_000 <= 0.0565
    assert false / 10_000 >= 0.03


@pytest.mark.parametrize("small", [0.001, 0.1, 0.3, 0.6])
def test_signs_are_wrong_no_more_often_than_promised(small: float) -> None:
    """Two arms with effects of some share of a block's standard deviation, two with huge ones."""
    generator = np.random.default_rng(22)
    blocks = generator.normal(size=(5_000, 10, 4)) + generator.normal(size=(5_000, 10, 1))
    blocks += np.array([small, small, 20.0, -20.0])
    means, error = blocks.mean(axis=1), blocks.std(axis=1, ddof=1) / np.sqrt(10)
    p_values = 2 * stats.t.sf(np.abs(means) / error, 9)
    wrong = sum(
        any(level is not None and mean < 0 for level, mean in zip(levels, row, strict=True))
        for levels, row in (
            (rejected_at(p, 0.05, 4)[:2], mean[:2])
            for p, mean in zip(p_values.tolist(), means.tolist(), strict=True)
        )
    )
    assert wrong / 5_000 <= 0.035  # half of 5 %, give or take


def by_tuning(
    effects: dict[str, float], swing: float = 0.09, stopping: Stopping | None = None
) -> dict[str, Comparison]:
    """The primaries of one workload: three arms at +30 %, so that the fourth is tested at 5 %. It
    swings from block to block, so that a standard error is `swing` / 3."""
    given = {"handicap": 0.9, "one": 1.3, "other": 1.3, "third": 1.3, **effects}
    run = synthetic_run(
        tunings=ARMS,
        effects=given,
        workloads=ONE,
        primary_only=True,
        noise=0.002,
        stopping=stopping,
    )
    noisy = with_values(
        run, "fourth", "events_per_s", lambda block, old: old * (1 + swing) ** ((-1) ** block)
    )
    return {c.tuning: c for c in primaries(judge(noisy))}


def test_a_tuning_that_the_simultaneous_interval_misses_may_be_found_stepping_down() -> None:
    """9 % is 3 standard errors: beyond t(0.975, 9), 2.26, and within t(1 - 0.05/8, 9), 3.11."""
    found = by_tuning({"fourth": 1.09})["fourth"]
    assert found.low is not None
    assert found.low < 1
    assert found.verdict is Verdict.IMPROVES
    assert found.by_holm
    assert effect(found).endswith(", by Holm")
    assert found.smallest_visible is None


def test_with_declared_looks_the_steps_share_what_one_look_may_use() -> None:
    """The last step is held to alpha / 6 then: t(1 - 0.05/12, 9) is 3.36, above 3."""
    six = Looks(at=(10, 11, 12, 13, 14, 15), drops=False)
    assert by_tuning({"fourth": 1.09}, stopping=six)["fourth"].verdict is Verdict.INCONCLUSIVE


def test_only_a_verdict_that_the_step_added_is_marked() -> None:
    others = by_tuning({"fourth": 1.09})
    del others["fourth"]
    assert not any(c.by_holm or "Holm" in effect(c) for c in others.values())


def test_a_sign_alone_makes_no_verdict_of_an_effect_below_the_margin() -> None:
    """As above with noise of half the size: 4.5 % is 3 standard errors, and the margin is 5 %."""
    found = by_tuning({"fourth": 1.045}, swing=0.045)["fourth"]
    assert found.low is not None
    assert found.low < 1
    assert found.verdict is Verdict.INCONCLUSIVE
    assert not found.by_holm


def test_without_large_effects_elsewhere_nothing_is_added() -> None:
    """Nobody's share of alpha is free, so the fourth arm stays at 0.05/4."""
    quiet = by_tuning({"one": 1.0, "other": 1.0, "third": 1.0, "fourth": 1.09})["fourth"]
    assert quiet.verdict is Verdict.INCONCLUSIVE


def test_a_place_whose_control_failed_lends_nothing() -> None:
    """Its p-values are of a baseline that differs from itself."""
    run = synthetic_run(
        tunings=ARMS,
        effects={"handicap": 0.9, "one": 1.3, "other": 1.3, "third": 1.3, "fourth": 1.09},
        workloads=ONE,
        primary_only=True,
        noise=0.002,
    )
    run = with_values(run, "control", "events_per_s", lambda _, old: 0.9 * old)
    judged = judge(run)
    assert {c.verdict for c in primaries(judged)} == {Verdict.SUSPENDED}
    assert not only(judged, "fourth", "baseline", "events_per_s").by_holm
