"""Decide what a run's control and known loss let a gate say of a rule against baseline.

A rule about a primary metric is a claim as a verdict is one, so the run's eligibility binds it as
it does those (METHOD 5, 18, 20), but by the rule's own limit. Other metrics have no check of their
own: nothing is decided about them where the scenario's control failed, and the rest is theirs to
show.
Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from labctl.analysis.cells import Cell, Cells
from labctl.analysis.checks import CONTROL_FAILED, Checked, check
from labctl.analysis.design import Design
from labctl.analysis.effects import Effects, on_scale, ratio_of
from labctl.analysis.gate.claims import Claim, tolerance
from labctl.analysis.gate.policy import Rule
from labctl.analysis.model import EffectKind
from labctl.analysis.words import size_text
from labctl.base.units import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Hold reasons to leave a rule undecided; by default none.

    `refused`: nothing may be said. `blind`: no absence of an effect, since nothing shows that it
    would have been seen. `open`: the control leaves a bias as large as `reach` (on the scale of
    effects) between equal arms, which is more than may be neglected; no reach where it is less.
    """

    refused: str = ""
    blind: str = ""
    open: str = ""
    reach: float = 0.0

    def why_not(self, claim: Claim) -> str:
        """Return why a claim can't stand; "" if it can. It can't where such a bias may have brought
        the estimate across the rule's own limit."""
        if claim.of_absence and self.blind:
            return self.blind
        return self.open if claim.slack <= self.reach else ""


def leave(
    rule: Rule,
    design: Design,
    cells: Cells,
    cell: Cell,
    key: str,
    effects: Effects,
    unit: Unit,
) -> Leave:
    """Return what a rule may say of a tuning's effects against baseline, or against the control.

    A bias may be neglected up to the workload's threshold, as verdicts do, but not where the rule
    itself asks for less: what is small to the study need not be to the rule.

    Of baseline and control themselves the control's check is not asked: the rule is about that
    very difference.
    """
    tuning, place = cell
    primary = design.primaries.get(place.workload)
    if primary is None:
        return Leave()
    checked = check(design, cells, place, primary)
    itself = tuning in (design.baseline, design.control)
    if key != primary.metric:
        failed = checked.control.passed is False and not itself
        return Leave(refused=CONTROL_FAILED if failed else "")
    if effects.fallback is not None:
        # Its threshold is a share, and there is none of 0.
        return Leave(refused=f"{key} {effects.fallback}")
    limit = tolerance(rule, effects.kind)
    blind = _blind(checked, limit)
    if itself:
        return Leave(blind=blind)
    if not checked.eligibility.judges:
        return Leave(refused=_refusal(checked))
    reach = checked.eligibility.reach
    small = min(on_scale(primary.margin, effects.kind), limit)
    if reach <= small:
        return Leave(blind=blind)
    size = ratio_of(reach) - 1 if effects.kind is EffectKind.RATIO else reach
    return Leave(
        blind=blind,
        open=(
            f"the A/A control can't rule out a bias up to {size_text(size, effects.kind, unit)}, "
            "and so much may have brought it across the limit"
        ),
        reach=reach,
    )


def _refusal(checked: Checked) -> str:
    if checked.control.passed is False:
        return CONTROL_FAILED
    told = checked.control.sentence.rstrip(".")
    return told[:1].lower() + told[1:]


def _blind(checked: Checked, loss: float) -> str:
    """Return why a loss as large as the rule's limit may have gone unseen."""
    if checked.eligibility.sees(loss):
        return ""
    if math.isfinite(checked.eligibility.sees_from):
        return (
            "the known loss was detected, which does not prove that a loss as small as the limit "
            "would have been"
        )
    failed = checked.known_loss.passed is False
    why = "the known loss was not detected" if failed else "the known-loss arm was not checked"
    return f"{why}, so this run may be blind to a loss"
