"""Estimate the harm that a plan can exclude, before it runs (METHOD 25).

For a tuning without effect in a place, the run excludes a loss M if the interval's lower end lies
above -M, the control does not fail, and its reach is shorter than the estimate's distance from -M.
With equal normal noise in all arms, the chance of that depends only on M divided by the standard
error of the effects: estimates and standard errors of the tuning's effect and of the control's are
four independent variables. So there is a largest spread of the blocks' effects at which the chance
is `POWER`, and a smallest loss for the spread of an earlier run.

Pure. If blocks share boots, the boots are assumed not to add variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np

from labctl.analysis.compare.two_runs import MADE_BY
from labctl.analysis.effects.cells import Scenario, scenario_of
from labctl.analysis.effects.design import Design, read_design
from labctl.analysis.effects.intervals import POWER, quantile
from labctl.analysis.model import Comparison, EffectKind, Role
from labctl.analysis.special import chdtr, chdtri, ndtr, ndtri
from labctl.analysis.verdicts.decide import decide
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun

_GRID = 200
"""Points of equal probability that represent a variable: the chance is accurate to about 0.002."""

_CONTROL = 2 / math.sqrt(3)
"""Spread of the control's effect, y_C - y_B, in spreads of a tuning's, y_T - (y_B + y_C) / 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """Hold the spread of an earlier run in a place. `spread`: the standard deviation of its blocks'
    effects (median over its tunings), on the scale of effects; `excludes`: the loss that the plan
    could exclude at that spread, a share or in the metric's unit."""

    run: str
    spread: float
    excludes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """Hold the loss that a plan can exclude in a place, with a chance of 80 % for a tuning without
    effect. `spread`: the largest standard deviation of the blocks' effects at which this loss is
    `no_worse_than`, on the scale of logarithms."""

    workload: str
    condition: str
    metric: str
    no_worse_than: float
    spread: float
    earlier: Earlier | None


@dataclass(frozen=True, slots=True)
class Spreading:
    """Hold the spread of blocks' effects in a place of a run, and whether they were ratios."""

    run: str
    spread: float
    kind: EffectKind


def foresee(plan: PlanRecord, earlier: Mapping[Scenario, Spreading]) -> list[Foreseen]:
    """Return the forecast for each place with planned guests; none for a plan that can't recommend:
    without tunings on trial, without a control, or with fewer than ten blocks."""
    design = read_design(LoadedRun("planned", RunRecord(), plan, (), ()))
    blocks, boots = plan.blocks or 0, plan.boots or 0
    if not design.candidates or design.control is None or blocks < FEWEST_BLOCKS:
        return []
    errors = errors_needed(_units(blocks, boots), design.alpha, design.control_alpha)
    return [
        _foreseen(design, place, errors / math.sqrt(blocks), earlier.get(place))
        for place in design.harmless_in
    ]


def _foreseen(design: Design, place: Scenario, spreads: float, then: Spreading | None) -> Foreseen:
    """Return the forecast for a place. `spreads`: the loss that can be excluded, in standard
    deviations of the blocks."""
    primary = design.primaries[place.workload]
    known = None
    if then is not None:
        reached = then.spread * spreads
        excludes = math.expm1(reached) if then.kind is EffectKind.RATIO else reached
        known = Earlier(run=then.run, spread=then.spread, excludes=excludes)
    return Foreseen(
        workload=place.workload,
        condition=place.condition,
        metric=primary.metric,
        no_worse_than=primary.no_worse_than,
        spread=math.log1p(primary.no_worse_than) / spreads,
        earlier=known,
    )


def spreads(run: LoadedRun, plan: PlanRecord) -> dict[Scenario, Spreading]:
    """Return the spreads of effects in the places that a run shares with the plan: the same
    program, parameters, duration and primary metric."""
    found: dict[Scenario, list[Spreading]] = {}
    for c in decide(run).comparisons:
        then, now = (of.workloads.get(c.workload) for of in (run.plan, plan))
        if c.role is not Role.PRIMARY or not (then and now):
            continue
        if any(getattr(then, key) != getattr(now, key) for key in MADE_BY):
            continue
        if (spread := _spread(c)) is not None:
            found.setdefault(scenario_of(c), []).append(Spreading(run.name, spread, c.kind))
    return {
        place: Spreading(run.name, median(one.spread for one in of), of[0].kind)
        for place, of in found.items()
    }


def _spread(c: Comparison) -> float | None:
    """Return the standard deviation of a comparison's blocks from its interval, half of which is
    t sd / sqrt(n). If boots are the unit, it includes their variance."""
    if c.low is None or c.high is None or c.fallback is not None:
        return None
    ratio = c.kind is EffectKind.RATIO
    if ratio and c.low <= 0:
        return None
    half = math.log(c.high / c.low) / 2 if ratio else (c.high - c.low) / 2
    blocks = len(c.blocks)
    t = quantile((1 + c.confidence) / 2, _units(blocks, c.boots) - 1)
    return half * math.sqrt(blocks) / t


def _units(blocks: int, boots: int) -> int:
    """Return the boots if several have several blocks each (`intervals.Spread`)."""
    return boots if 1 < boots < blocks else blocks


@cache
def errors_needed(units: int, alpha: float, control_alpha: float) -> float:
    """Return the loss, in standard errors of the tuning's effect, that is excluded with a chance of
    `POWER` if the tuning has no effect."""
    low, high = 0.0, 1.0
    while chance(high, units, alpha, control_alpha) < POWER:
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if chance(middle, units, alpha, control_alpha) < POWER:
            low = middle
        else:
            high = middle
    return high


def chance(loss: float, units: int, alpha: float, control_alpha: float) -> float:
    """Return the chance that a loss of so many standard errors is excluded, if the tuning has no
    effect.

    With x the estimate in standard errors and s the run's standard error divided by the true one,
    the interval excludes the loss if t s < x + loss. The control's effect has `_CONTROL` times the
    standard error. It passes if |z| < t' s', and its reach, |z| + t' s', must be shorter than the
    distance from x to the loss.
    """
    degrees = units - 1
    points = (np.arange(_GRID) + 0.5) / _GRID
    way = ndtri(points) + loss
    found = np.sqrt(chdtri(degrees, 1 - points) / degrees)
    t, half = quantile(1 - alpha / 2, degrees), quantile(1 - control_alpha / 2, degrees) * found
    shown = np.where(way > 0, chdtr(degrees, degrees * (way / t) ** 2), 0.0)
    room = np.minimum(way[:, np.newaxis] / _CONTROL - half, half)
    passed = np.maximum(0.0, 2 * ndtr(room) - 1).mean(axis=1)
    return float((shown * passed).mean())
