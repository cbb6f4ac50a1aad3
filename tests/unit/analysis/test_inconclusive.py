from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.answer.words import Reason, why_inconclusive
from labctl.analysis.judge import judge
from labctl.analysis.model import Comparison, EffectKind, Role
from labctl.analysis.verdicts.table import Verdict
from labctl.base.units import Better, Unit
from tests.unit.synthetic import synthetic_run


@pytest.fixture(scope="module")
def compared() -> Comparison:
    """Return an inconclusive comparison of ten blocks with a threshold of 5 %."""
    found = judge(synthetic_run(noise=0.1, effects={})).comparisons
    return next(c for c in found if c.role is Role.PRIMARY)


def why(of: Comparison, **values: Any) -> tuple[Reason, str, str]:
    given = {"verdict": Verdict.INCONCLUSIVE, "kind": EffectKind.RATIO, "margin": 0.05}
    found = why_inconclusive(replace(of, **{**given, **values}))
    assert found is not None
    return found.reason, found.found, found.remedy


def test_only_an_inconclusive_comparison_has_a_reason(compared: Comparison) -> None:
    for verdict in (None, *Verdict):
        found = why_inconclusive(replace(compared, verdict=verdict))
        assert (found is not None) == (verdict is Verdict.INCONCLUSIVE)


def test_a_significant_effect_that_may_be_small_is_not_called_too_small_to_see(
    compared: Comparison,
) -> None:
    reason, found, remedy = why(
        compared, estimate=1.032, low=1.013, high=1.052, smallest_visible=0.023, blocks_needed=None
    )
    assert reason is Reason.MAY_BE_SMALL
    assert (
        found
        == "+1.3 to +5.2 % excludes no change, but includes changes below the threshold of 5 %"
    )
    assert remedy.startswith("Plan a run of 18 blocks to see on which side of 5 % it lies")
    worse = why(compared, estimate=0.97, low=0.94, high=0.99, smallest_visible=None)
    assert worse[0] is Reason.MAY_BE_SMALL


def test_an_interval_is_too_wide_where_no_feasible_number_of_blocks_would_do(
    compared: Comparison,
) -> None:
    values = {"estimate": 1.088, "low": 0.923, "high": 1.28, "smallest_visible": 0.23}
    reason, found, remedy = why(compared, **values, blocks_needed=1340)
    blocks = len(compared.blocks)
    assert reason is Reason.TOO_WIDE
    assert found == (
        f"−7.7 to +28 % after {blocks} blocks; minimum detectable effect: 23 %; "
        "detecting 5 % needs 1,340 blocks"
    )
    assert "doctor" in remedy


def test_blocks_are_too_few_where_some_more_would_do(compared: Comparison) -> None:
    values = {"estimate": 1.01, "low": 0.94, "high": 1.08, "smallest_visible": 0.08}
    reason, _, remedy = why(compared, **values, blocks_needed=4 * len(compared.blocks))
    assert (reason, remedy) == (
        Reason.TOO_FEW_BLOCKS,
        f"Plan a run of {4 * len(compared.blocks)} blocks.",
    )
    again = why(compared, **values, blocks_needed=None)
    assert again[0] is Reason.TOO_FEW_BLOCKS
    assert "includes both no change and more than 5 %" in again[1]


def test_an_interval_within_the_threshold_lacks_the_sensitivity_check(
    compared: Comparison,
) -> None:
    reason, found, remedy = why(compared, estimate=1.0, low=0.98, high=1.02)
    assert reason is Reason.NOT_SENSITIVE
    assert "the known-loss arm did not show" in found
    assert "known loss" in remedy


def test_what_has_no_interval_or_no_threshold_says_so(compared: Comparison) -> None:
    assert why(compared, low=None, high=None)[0] is Reason.NO_INTERVAL
    assert why(compared, fallback="is 0 or less in some block")[0] is Reason.NO_THRESHOLD
    assert why(compared, better=Better.NEITHER)[0] is Reason.NO_THRESHOLD


def test_a_difference_is_told_apart_in_its_unit(compared: Comparison) -> None:
    values = {"kind": EffectKind.DIFFERENCE, "unit": Unit.CPUS, "margin": 0.1}
    found = why(compared, **values, estimate=0.09, low=0.02, high=0.16)
    assert found[0] is Reason.MAY_BE_SMALL
    assert found[1].startswith("+0.020 to +0.16 CPUs excludes no change")
