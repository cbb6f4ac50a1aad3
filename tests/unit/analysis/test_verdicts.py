import math

import pytest

from labctl.analysis.effects.intervals import Interval
from labctl.analysis.verdicts.rules import Eligibility, decide, excludes_loss
from labctl.analysis.verdicts.table import VERDICTS, Says, Tone, Verdict, classes_of

MARGIN = 0.05
FULL = Eligibility(judges=True, reach=0.01, sees_from=0.0)


def verdict(
    low: float, estimate: float, high: float, *, eligibility: Eligibility = FULL, blocks: int = 10
) -> Verdict:
    """With a narrow interval of nine tenths of the width."""
    narrow = Interval(estimate - 0.9 * (estimate - low), estimate + 0.9 * (high - estimate))
    return decide(
        blocks=blocks,
        estimate=estimate,
        interval=Interval(low, high),
        narrow=narrow,
        margin=MARGIN,
        eligibility=eligibility,
    )


@pytest.mark.parametrize(
    ("low", "estimate", "high", "expected"),
    [
        (0.02, 0.10, 0.18, Verdict.IMPROVES),
        (0.04, 0.05, 0.06, Verdict.IMPROVES),  # the estimate is the margin itself
        (0.001, 0.05, 0.099, Verdict.IMPROVES),
        (0.0, 0.10, 0.20, Verdict.INCONCLUSIVE),  # touches 0
        (-0.001, 0.10, 0.2, Verdict.INCONCLUSIVE),
        (0.01, 0.03, 0.049, Verdict.SMALL),
        (0.01, 0.03, 0.05, Verdict.EQUIVALENT),  # the narrow one ends at 0.048
        (0.01, 0.04, 0.07, Verdict.INCONCLUSIVE),  # real, but may be larger than the margin
        (-0.18, -0.10, -0.02, Verdict.REGRESSES),
        (-0.06, -0.05, -0.04, Verdict.REGRESSES),
        (-0.049, -0.03, -0.01, Verdict.SMALL),
        (-0.07, -0.04, -0.01, Verdict.INCONCLUSIVE),
        (-0.20, -0.10, 0.0, Verdict.INCONCLUSIVE),  # touches 0
        (-0.20, -0.10, 0.001, Verdict.INCONCLUSIVE),
        (0.0, 0.02, 0.04, Verdict.EQUIVALENT),  # may be 0, so it is not real
        (-0.04, -0.02, 0.0, Verdict.EQUIVALENT),
        (-0.05, -0.03, -0.01, Verdict.EQUIVALENT),  # as for gains
        (-0.03, 0.0, 0.03, Verdict.EQUIVALENT),
        (-0.052, 0.0, 0.052, Verdict.EQUIVALENT),  # the narrow one lies within 0.0468
        (-0.06, 0.0, 0.06, Verdict.INCONCLUSIVE),
        (-0.04, 0.01, 0.07, Verdict.INCONCLUSIVE),
    ],
)
def test_the_table_of_verdicts(low: float, estimate: float, high: float, expected: Verdict) -> None:
    assert verdict(low, estimate, high) is expected


def test_nine_blocks_give_no_verdict_however_clear_the_effect() -> None:
    assert verdict(0.9, 1.0, 1.1, blocks=9) is Verdict.DEMONSTRATION
    assert verdict(0.9, 1.0, 1.1, blocks=10) is Verdict.IMPROVES


def test_a_blind_run_withholds_equivalent_and_nothing_else() -> None:
    blind = Eligibility(judges=True, reach=0.01, sees_from=math.inf)
    assert verdict(-0.03, 0.0, 0.03, eligibility=blind) is Verdict.INCONCLUSIVE
    assert verdict(0.02, 0.10, 0.18, eligibility=blind) is Verdict.IMPROVES
    assert verdict(0.01, 0.03, 0.049, eligibility=blind) is Verdict.SMALL


@pytest.mark.parametrize(
    ("sees_from", "expected"),
    [
        (MARGIN / 2, Verdict.EQUIVALENT),
        (MARGIN, Verdict.EQUIVALENT),
        (1.001 * MARGIN, Verdict.INCONCLUSIVE),
    ],
)
def test_equivalent_takes_a_run_that_sees_losses_as_small_as_the_margin(
    sees_from: float, expected: Verdict
) -> None:
    eligibility = Eligibility(judges=True, reach=0.01, sees_from=sees_from)
    assert verdict(-0.03, 0.0, 0.03, eligibility=eligibility) is expected


@pytest.mark.parametrize("estimate", [-1.0, -0.03, 0.0, 0.03, 1.0])
def test_a_control_that_differs_from_baseline_suspends_every_verdict(estimate: float) -> None:
    failed = Eligibility(judges=False, reach=0.0, sees_from=0.0)
    found = verdict(estimate - 0.01, estimate, estimate + 0.01, eligibility=failed)
    assert found is Verdict.SUSPENDED


@pytest.mark.parametrize(
    ("low", "estimate", "high", "expected"),
    [
        (0.5, 1.0, 1.5, Verdict.IMPROVES),
        (-1.5, -1.0, -0.5, Verdict.REGRESSES),
        (0.1, 0.2, 0.3, Verdict.SUSPENDED),  # as large as what the control leaves open
        (0.1, 0.201, 0.3, Verdict.IMPROVES),
        (-0.3, -0.2, -0.1, Verdict.SUSPENDED),
        (0.01, 0.02, 0.03, Verdict.SUSPENDED),
        (-0.03, 0.0, 0.03, Verdict.SUSPENDED),
        (-0.3, 0.0, 0.3, Verdict.INCONCLUSIVE),  # claims nothing, so nothing to suspend
    ],
)
def test_a_wide_control_leaves_only_effects_beyond_its_reach(
    low: float, estimate: float, high: float, expected: Verdict
) -> None:
    wide = Eligibility(judges=True, reach=0.2, sees_from=0.0)
    assert verdict(low, estimate, high, eligibility=wide) is expected


def test_a_control_that_reaches_just_to_the_margin_is_not_wide() -> None:
    edge = Eligibility(judges=True, reach=MARGIN, sees_from=0.0)
    assert verdict(-0.03, 0.0, 0.03, eligibility=edge) is Verdict.EQUIVALENT
    assert verdict(0.04, 0.05, 0.06, eligibility=edge) is Verdict.IMPROVES


@pytest.mark.parametrize(
    ("low", "estimate", "excluded"),
    [
        (-0.124, 0.0, True),
        (-0.125, 0.0, False),  # the interval ends at the loss itself
        (-0.2, 0.0, False),
        (-0.12, -0.09, True),
        (-0.12, -0.09375, False),  # only 1/32 above the loss: the control may have given that
        (0.01, 0.02, True),
    ],
)
def test_a_loss_is_excluded_if_neither_noise_nor_the_control_could_hide_it(
    low: float, estimate: float, excluded: bool
) -> None:
    interval = Interval(low, estimate + 0.01)
    for judges in (True, False):
        eligibility = Eligibility(judges=judges, reach=1 / 32, sees_from=0.0)
        found = excludes_loss(
            estimate=estimate, interval=interval, loss=1 / 8, eligibility=eligibility
        )
        assert found is (excluded and judges)


def test_tied_effects_are_inconclusive() -> None:
    found = decide(
        blocks=10, estimate=1.0, interval=None, narrow=None, margin=MARGIN, eligibility=FULL
    )
    assert found is Verdict.INCONCLUSIVE


def test_every_verdict_has_a_row_and_a_class_of_its_colour() -> None:
    assert set(VERDICTS) == set(Verdict)
    coloured = {name for tone in Tone for name in classes_of(tone)}
    assert coloured == {v.css_class for v in Verdict if VERDICTS[v].tone is not None}


@pytest.mark.parametrize("verdict", Verdict)
def test_what_was_not_shown_says_why(verdict: Verdict) -> None:
    row = VERDICTS[verdict]
    assert bool(row.advice) is (row.says is not Says.EFFECT)
    assert bool(row.unshown) is (row.says is Says.NOTHING)
    assert "{places}" in row.clause or row.says is not Says.NOTHING
    assert row.is_final or row.says in (Says.OPEN, Says.NOTHING)
