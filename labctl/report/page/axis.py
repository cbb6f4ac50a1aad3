"""Scale a picture's values: where each lies, and which are written beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from labctl.base.notation import quantity
from labctl.base.units import Unit

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
        """Return how far up `value` lies, from 0 to 1; what lies outside is held at the edge."""
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
        more where there is room for them."""
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
    """Return how far below the top of a picture a value lies; the middle without an axis."""
    return round(height * (1 - axis.share(value)), 1) if axis else height / 2


def axis_of(values: Iterable[float]) -> Axis | None:
    """Return an axis that holds all `values` that a tool can measure, with room at both ends; None
    without any.

    Logarithmic where all are positive.
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
