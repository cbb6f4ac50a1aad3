"""Scale a picture's values: their places, and the labels of its axis."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from labctl.base.notation import difference, quantity, ticks
from labctl.base.units import Better, Unit

_SPARE = 0.06
"""Share of the height that stays free at both ends, so that no mark touches an edge."""
_LADDERS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0))
_LEAST = 1e-300
"""Smallest magnitude drawn; its inverse is the largest. No tool measures beyond them and arithmetic
would overflow, so such values stay at the edge."""
_ZEROS = re.compile(r"(\d+\.\d+)")
_FEWEST_TICKS = 3


@dataclass(frozen=True, slots=True)
class Axis:
    """Scale values from `low` to `high` on its scale: logarithms where `log`, so that equal factors
    are equally far apart, as in the judgement."""

    low: float
    high: float
    log: bool

    def share(self, value: float) -> float:
        """Return the height of `value`, from 0 to 1; values outside stay at the edge."""
        if self.log and value <= 0:
            return 0.0
        scaled = math.log(value) if self.log else value
        return min(1.0, max(0.0, (scaled - self.low) / (self.high - self.low)))

    def holds(self, value: float) -> bool:
        if self.log and value <= 0:
            return False
        return self.low <= (math.log(value) if self.log else value) <= self.high

    def ticks(self, unit: Unit, gap: float) -> list[tuple[float, str]]:
        """Return round values inside with their text, at least `gap` of the height apart: two or
        more if there is room."""
        kept: list[float] = []
        for candidates in self._candidates():
            inside = self._apart([value for value in candidates if self.holds(value)], gap)
            if len(inside) > len(kept):
                kept = inside
            if len(kept) >= _FEWEST_TICKS:
                break
        return [(value, _short(quantity(value, unit))) for value in kept]

    def _apart(self, values: Iterable[float], gap: float) -> list[float]:
        kept: list[float] = []
        for value in values:
            if not kept or self.share(value) - self.share(kept[-1]) >= gap:
                kept.append(value)
        return kept

    def _candidates(self) -> Iterable[list[float]]:
        if self.log:
            decades = range(
                math.floor(self.low / math.log(10)), math.ceil(self.high / math.log(10)) + 1
            )
            for ladder in _LADDERS:
                yield [step * 10.0**decade for decade in decades for step in ladder]
        low, high = (math.exp(self.low), math.exp(self.high)) if self.log else (self.low, self.high)
        magnitude = 10.0 ** math.floor(math.log10(high - low))
        for step in (1.0, 0.5, 0.2, 0.1):
            width = step * magnitude
            first = math.ceil(low / width)
            yield [n * width for n in range(first, math.floor(high / width) + 1)]


def _short(text: str) -> str:
    """Return a round value without the zeros after its point: "1.50 ms" is "1.5 ms"."""
    return _ZEROS.sub(lambda found: found[1].rstrip("0").rstrip("."), text)


def y_of(axis: Axis | None, value: float, height: float) -> float:
    """Return the distance of a value from a picture's top; the middle without an axis."""
    return round(height * (1 - axis.share(value)), 1) if axis else height / 2


def axis_of(values: Iterable[float]) -> Axis | None:
    """Return an axis for all `values` that a tool can measure, with room at both ends; None without
    any.

    It is logarithmic if all are positive.
    """
    finite = [value for value in values if value == 0 or _LEAST < abs(value) < 1 / _LEAST]
    if not finite:
        return None
    log = min(finite) > 0
    low, high = min(finite), max(finite)
    if log:
        low, high = math.log(low), math.log(high)
    least = 0.2 if log else 0.2 * max(abs(low), abs(high), 1e-12)
    if high - low < least:
        middle = (low + high) / 2
        low, high = middle - least / 2, middle + least / 2
    spare = _SPARE * (high - low)
    return Axis(low - spare, high + spare, log)


# Scale effects: the axis of a forest plot, in percent of the plot's width.


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
    """True if lower values lie to the right: in every picture better values do."""

    def x(self, value: float) -> float:
        """Return the place in percent of the width, held inside the picture."""
        share = (self.scale(value) - self.low) / (self.high - self.low)
        share = min(1.0, max(0.0, share))
        return round(100 * (1 - share if self.mirrored else share), 2)

    def reach(self, one: float, other: float) -> tuple[float, float]:
        """Return both ends of the range between two values, from left to right."""
        first, second = sorted((self.x(one), self.x(other)))
        return first, second

    def holds(self, value: float) -> bool:
        return self.low <= self.scale(value) <= self.high

    def reaching(self, *values: float | None) -> EffectAxis:
        """Return an axis wide enough for `values` too, unless they lie so far out that the rest
        would shrink to less than two thirds."""
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
    point. `least`: the smallest reach of an axis of differences. `better`: the direction that lies
    to the right."""
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
    """Return the clause of a caption about the side of better effects."""
    return "No direction is better" if better is Better.NEITHER else "Right is better"


def axis_ticks(axis: EffectAxis, ratio: bool, unit: Unit) -> Iterable[Tick]:
    """Return the tick for no change, and on both sides the ticks that fit without touching."""
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
