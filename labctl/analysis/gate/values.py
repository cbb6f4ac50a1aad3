"""Reduce an arm's values to what a rule of a policy is tested on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labctl.analysis.cells import Series
from labctl.analysis.effects import Effects, alone, by_ratio, ratio_of
from labctl.analysis.gate.policy import Rule
from labctl.analysis.intervals import Interval, Spread, t_interval, welch_interval
from labctl.analysis.model import EffectKind
from labctl.base.units import Better


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Hold what a test is made on, in natural direction. `interval(alpha)`: two-sided."""

    kind: EffectKind | None
    logs: bool
    mean: float
    n: int
    interval: Callable[[float], Interval | None]

    def shown(self, value: float) -> float:
        return ratio_of(value) if self.logs else value


def of_itself(series: Series) -> Values:
    """Return what a limit on an arm's own values is tested on."""
    logs = min(series.values.values()) > 0
    return _of_spread(alone(series, logs=logs), None, logs)


def _of_spread(of: Spread, kind: EffectKind | None, logs: bool) -> Values:
    return Values(
        kind=kind, logs=logs, mean=of.mean, n=of.n, interval=lambda alpha: t_interval(of, alpha)
    )


def of_effects(effects: Effects) -> Values:
    """Return what a limit on an arm's effects against another is tested on."""
    return _of_spread(effects.spread, effects.kind, effects.kind is EffectKind.RATIO)


def between_runs(other: Series, series: Series) -> Values:
    """Return what a limit on the change since another run is tested on."""
    logs = by_ratio([other, series])
    theirs, ours = (alone(side, logs=logs) for side in (other, series))
    return Values(
        kind=EffectKind.RATIO if logs else EffectKind.DIFFERENCE,
        logs=logs,
        mean=ours.mean - theirs.mean,
        n=min(ours.n, theirs.n),
        interval=lambda alpha: welch_interval(theirs, ours, alpha),
    )


def mismatch_of(rule: Rule, values: Values, series: Series) -> str:
    """Return why the rule's limit says nothing of these values."""
    if rule.unit is not None and rule.unit is not series.sample.unit:
        return f"{series.sample.metric} is in {series.sample.unit}, and the limit in {rule.unit}"
    if values.kind is EffectKind.DIFFERENCE and rule.is_share:
        return (
            f"{series.sample.metric} is compared by difference, as 0 is a usual value of it: "
            f"the limit must be a number in {series.sample.unit}"
        )
    if values.kind is EffectKind.RATIO and not rule.is_share:
        return f"{series.sample.metric} is compared by ratio: the limit must be a share ('5 %')"
    if series.is_maximum and rule.limit != "below":
        return "a maximum can only be held against 'below'"
    if series.sample.better is Better.NEITHER and rule.limit.startswith(("worse", "better")):
        return f"{series.sample.metric} has no better direction"
    return ""
