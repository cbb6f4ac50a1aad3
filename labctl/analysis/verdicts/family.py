"""Apply Holm's step-down procedure to the family of primaries (METHOD 19: it may only add).

S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
Statistics 6 (1979): with m tests the smallest p is held to alpha / m; once it is rejected, the
next smallest to alpha / (m - 1), and so on to the first that stays. The chance of any false
rejection is at most alpha for any dependence between the tests. That the signs of rejected effects
are wrong no more often is proven for independent tests (J. P. Shaffer, Annals of Statistics 8,
1980), and simulated for tests that share a baseline, like these (tests/unit/analysis/test_holm.py).

A rejection shows that an effect is not 0, and its sign. It does not show the size of the effect, so
it can't give a verdict that depends on a margin: "real but small" and "equivalent" come only from
the simultaneous interval. "Improves" and "regresses" need a sign and an estimate of at least the
margin (METHOD 20), and these two may be added.

A tuning lends its share of alpha to the others only if it has one of these two verdicts. This is
Holm's procedure with some p-values set to 1, which can only reject less. It prevents the double use
of a share: for a claim about a margin, and for later tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from labctl.analysis.effects.cells import Scenario
from labctl.analysis.effects.compare import Compared, verdict_at
from labctl.analysis.effects.design import Design
from labctl.analysis.effects.intervals import p_value
from labctl.analysis.verdicts.rules import Eligibility
from labctl.analysis.verdicts.table import Says, Verdict, says

_ANY_SIGN = 0.5
"""Level at which the sign of every effect that a test could distinguish from 0 is known."""


def rejected_at(p_values: Sequence[float], alpha: float, family: int) -> list[float | None]:
    """Return for each p-value the level at which Holm's procedure rejects it, None if it does not.

    `family`: the number of tests, including those without a p-value here.
    """
    levels: list[float | None] = [None] * len(p_values)
    by_size = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for step, index in enumerate(by_size[:family]):
        level = alpha / (family - step)
        if p_values[index] > level:
            break
        levels[index] = level
    return levels


def stepped_down(
    made: Sequence[Compared], design: Design, eligibilities: Mapping[Scenario, Eligibility]
) -> Iterator[Compared]:
    """Yield the comparisons, with the verdicts that Holm's procedure adds."""
    claims = [_claim(one, design, eligibilities) for one in made]
    p_values = [
        1.0 if claim is None else p_value(one.effects.spread)
        for one, claim in zip(made, claims, strict=True)
    ]
    levels = rejected_at(p_values, design.level, design.family)
    for one, claim, level in zip(made, claims, levels, strict=True):
        if level is None or claim in (None, one.comparison.verdict):
            yield one
        else:
            added = replace(
                one.comparison,
                verdict=claim,
                by_holm=True,
                smallest_visible=None,
                blocks_needed=None,
            )
            yield replace(one, comparison=added)


def _claim(
    one: Compared, design: Design, eligibilities: Mapping[Scenario, Eligibility]
) -> Verdict | None:
    """Return the verdict that a rejection would give: the one that the estimate warrants once its
    sign is known, if control and eligibility allow it. None for comparisons that are not tests, and
    without such a verdict."""
    found = one.comparison.verdict
    if found is not Verdict.INCONCLUSIVE and not says(found, Says.EFFECT):
        return None
    claim = verdict_at(
        one.effects,
        one.comparison.better,
        _ANY_SIGN,
        design.primaries[one.comparison.workload].margin,
        eligibilities[one.place],
    )
    return claim if says(claim, Says.EFFECT) else None
