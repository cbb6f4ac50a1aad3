"""Decide what values say of a rule's limit: that it is kept, that it is not, or neither. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from labctl.analysis.effects import on_scale, towards_better
from labctl.analysis.gate.policy import Rule
from labctl.analysis.intervals import Interval
from labctl.analysis.model import EffectKind
from labctl.base.units import Better


@dataclass(frozen=True, slots=True)
class Claim:
    """Hold a claim's outcome. `kept`: None where neither is shown. `of_absence`: the claim is that
    no effect exceeds the limit, which a blind run would show as well.

    `slack`: the least bias that makes the claim by itself, on the scale of effects: how far the
    estimate lies from the rule's own limit. Of an absence how far the interval's nearer end does,
    as a bias may hide whatever noise leaves open.
    """

    kept: bool | None
    slack: float = 0.0
    of_absence: bool = False


_NEITHER = Claim(None)


def decide(
    rule: Rule,
    mean: float,
    kind: EffectKind | None,
    better: Better,
    holds: Interval,
    violated: Interval,
    *,
    logs: bool,
) -> Claim:
    """Decide a claim: `holds` is the interval to show the demand by, `violated` the one for its
    contrary; all are on the log scale if `logs`."""
    if rule.limit in ("below", "above"):
        shift, turned = _logged(rule.amount) if logs else rule.amount, rule.limit == "below"
        kept_lacks = broken_lacks = False
    else:
        margin = tolerance(rule, kind)
        if rule.limit == "within":
            if holds.within(margin):
                return Claim(True, margin - holds.reach, of_absence=True)
            outside = violated.low > margin or violated.high < -margin
            return Claim(False, abs(mean) - margin) if outside else _NEITHER
        # Towards better, the effect must lie above a bound: -margin, or +margin.
        turned = better is Better.LOWER
        bound = margin if rule.limit == "better_by_at_least" else -margin
        shift = -bound if turned else bound
        # What is shown to be better, or worse, is an effect; what is only not much better, or not
        # much worse, is the lack of one.
        kept_lacks = bound < 0 and towards_better(holds, better).low <= 0
        broken_lacks = bound > 0 and towards_better(violated, better).high >= 0
    slack = abs(mean - shift)
    if turned:
        holds, violated, shift = holds.mirrored(), violated.mirrored(), -shift
    if holds.low > shift:
        return Claim(True, holds.low - shift if kept_lacks else slack, kept_lacks)
    if violated.high < shift:
        return Claim(False, shift - violated.high if broken_lacks else slack, broken_lacks)
    return _NEITHER


def tolerance(rule: Rule, kind: EffectKind | None) -> float:
    """Return a rule's limit on the scale of effects, of one that compares."""
    return on_scale(rule.amount, kind or EffectKind.DIFFERENCE)


def _logged(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
