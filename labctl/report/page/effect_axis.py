"""Scale effects: the axis of a forest plot, in percent of the plot's width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from labctl.base.notation import difference, ticks
from labctl.base.units import Better, Unit

_LEAST_REACH = math.log(1.1)
"""A ratio axis shows at least -9 % to +10 %, so that noise doesn't look like an effect."""
_TICK_GAP = 14.0
"""Percent of the width between tick labels: they must not touch on a 360 px screen."""
_RATIO_LADDERS = (
    (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0),
    (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0),
    (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0),
    (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5),
    (0.9, 0.95, 1.0, 1.05, 1.1),
)


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    label: str


@dataclass(frozen=True, slots=True)
class EffectAxis:
    low: float
    high: float
    scale: Callable[[float], float]
    mirrored: bool = False
    """True where less lies to the right, as what is better does in every picture."""

    def x(self, value: float) -> float:
        """Percent of the width, held inside the picture."""
        share = (self.scale(value) - self.low) / (self.high - self.low)
        share = min(1.0, max(0.0, share))
        return round(100 * (1 - share if self.mirrored else share), 2)

    def reach(self, one: float, other: float) -> tuple[float, float]:
        """Return where what lies between two values begins and ends, from left to right."""
        first, second = sorted((self.x(one), self.x(other)))
        return first, second

    def holds(self, value: float) -> bool:
        return self.low <= self.scale(value) <= self.high

    def reaching(self, *values: float | None) -> EffectAxis:
        """Wide enough for `values` too, unless they lie so far out that the rest would shrink to
        less than two thirds."""
        scaled = [self.scale(value) for value in values if value is not None]
        points = [point for point in scaled if math.isfinite(point)]
        more = (self.high - self.low) / 2
        if not points or min(points) < self.low - more or max(points) > self.high + more:
            return self
        spare = 0.02 * (self.high - self.low)
        low, high = min(self.low, min(points) - spare), max(self.high, max(points) + spare)
        return replace(self, low=low, high=high)


def spanning(
    points: Iterable[float],
    ends: Iterable[float | None],
    *,
    ratio: bool,
    least: float = 0.0,
    better: Better = Better.HIGHER,
) -> EffectAxis:
    """Return an axis wide enough for all `points`, and for `ends` of intervals up to three times as
    far out: with few blocks an interval may span everything and would squeeze the rest to a
    point. `least`: how far one of differences reaches at least; `better`:
    what lies to the right."""
    scale = log_scale if ratio else float
    inside = [point for point in map(scale, points) if math.isfinite(point)]
    reach = max(map(abs, inside), default=0.0)
    reach = max(reach, _LEAST_REACH if ratio else least, 1e-12)
    outer = [scale(end) for end in ends if end is not None]
    inside += [max(-3 * reach, min(3 * reach, end)) for end in outer if math.isfinite(end)]
    shown = _LEAST_REACH if ratio else reach
    low, high = min([*inside, -shown]), max([*inside, shown])
    spare = 0.07 * (high - low)
    return EffectAxis(low - spare, high + spare, scale, mirrored=better is Better.LOWER)


def log_scale(ratio: float) -> float:
    return math.log(ratio) if ratio > 0 else -math.inf


def direction(better: Better) -> str:
    """Return the clause of a caption that says where better effects lie."""
    return "No direction is better" if better is Better.NEITHER else "Right is better"


def axis_ticks(axis: EffectAxis, ratio: bool, unit: Unit) -> Iterable[Tick]:
    """Return the tick for no change, and on both sides those that fit without touching."""
    none = 1.0 if ratio else 0.0
    yield Tick(axis.x(none), "no change" if ratio else "0")
    places, values = [axis.x(none)], []
    for value in _candidates(axis, ratio):
        x = axis.x(value)
        if 3 <= x <= 97 and all(abs(x - other) >= _TICK_GAP for other in places):
            places.append(x)
            values.append(value)
    labels = ticks(values) if ratio else [difference(value, unit) for value in values]
    yield from map(Tick, places[1:], labels)


def _candidates(axis: EffectAxis, ratio: bool) -> list[float]:
    if ratio:
        inside = [[v for v in ladder if axis.holds(v)] for ladder in _RATIO_LADDERS]
        best = next((ladder for ladder in inside if len(ladder) >= 4), inside[-1])
        return sorted(best, key=lambda value: abs(math.log(value)))
    step = 10 ** math.floor(math.log10((axis.high - axis.low) / 2))
    return [sign * n * step for n in (1, 2, 5, 10) for sign in (-1, 1)]
