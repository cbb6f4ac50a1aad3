"""What a run's control and handicap let a gate say of a rule against baseline.

A rule about a primary metric is a claim as a verdict is one, so the run's licence binds it as
`verdicts.decide` has it (METHOD 5, 18, 20). Other metrics have no check of their own: of them
nothing is decided where the place's control failed, and the rest is theirs to show. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from labctl.analysis.cells import Cells, Place
from labctl.analysis.checks import CONTROL_FAILED, Checked, check
from labctl.analysis.design import Design
from labctl.analysis.effects import Effects, on_scale, ratio_of
from labctl.analysis.model import EffectKind
from labctl.analysis.words import size_text
from labctl.base.units import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Reasons to leave a rule undecided; by default none.

    `refused`: nothing may be said. `blind`: no absence of an effect, since the handicap wasn't
    found. `open`: the control leaves a difference as large as `reach` (on the scale of effects)
    between equal arms, beyond the threshold; no reach where it keeps to the threshold.
    """

    refused: str = ""
    blind: str = ""
    open: str = ""
    reach: float = 0.0

    def of_absence(self) -> str:
        """Why "no effect beyond the limit" can't be called kept; "" if it can."""
        return self.blind or self.open

    def of_effect(self, size: float) -> str:
        """Why a claim that a bias of `size` makes by itself can't stand; "" if it can."""
        return self.open if size <= self.reach else ""


def leave(
    design: Design, cells: Cells, place: Place, tuning: str, key: str, effects: Effects, unit: Unit
) -> Leave:
    """What may be said of a tuning's effects against baseline, or against the control.

    Of baseline and control themselves the control's check is not asked: the rule is about that
    very difference.
    """
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
    blind = _blind(checked)
    if itself:
        return Leave(blind=blind)
    if not checked.licence.judges:
        return Leave(refused=_refusal(checked))
    reach, margin = checked.licence.reach, on_scale(primary.margin, effects.kind)
    if reach <= margin:
        return Leave(blind=blind)
    beyond, threshold = (
        size_text(ratio_of(v) - 1 if effects.kind is EffectKind.RATIO else v, effects.kind, unit)
        for v in (reach, margin)
    )
    return Leave(
        blind=blind,
        open=(
            f"the control leaves up to {beyond} between baseline and itself open, more than the "
            f"threshold of {threshold}"
        ),
        reach=reach,
    )


def _refusal(checked: Checked) -> str:
    if checked.control.passed is False:
        return CONTROL_FAILED
    told = checked.control.sentence.rstrip(".")
    return told[:1].lower() + told[1:]


def _blind(checked: Checked) -> str:
    if checked.licence.sees:
        return ""
    why = "was not found" if checked.handicap.passed is False else "could not be checked"
    return f"the handicap {why}, so this run may be blind to a loss"
