"""Lay out a forest plot, in percent of the plot's width.

Positions are percentages so that the SVG can be as wide as the page while its letters keep
their size: a scaled viewBox would be unreadable on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import quantiles

from labctl.analysis.cells import Scenario
from labctl.analysis.model import Comparison, EffectKind
from labctl.analysis.verdict_table import verdict_text
from labctl.analysis.view import View, primary_column
from labctl.analysis.words import effect_text
from labctl.base.notation import difference, ticks
from labctl.base.units import Better, Unit

ROW_HEIGHT = 48
AXIS_HEIGHT = 34
_MOST_DOTS = 200
"""Blocks up to which each is a dot; of more, a line shows where nine of ten lie."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Draw one arm. `x` is its estimate, `low` and `high` the ends of its interval (both or none);
    `beyond` says that the interval goes on outside of the picture, `outside` that the estimate
    itself does. `dots` is an SVG path, a dot for each of `blocks` blocks, `bulk` the reach of nine
    in ten of them where they are too many for dots."""

    name: str
    text: str
    verdict_class: str
    kind: str
    """"tuning", "check" (control and known loss) or "native"."""
    y: int
    x: float
    low: float | None
    high: float | None
    beyond: bool
    outside: bool
    blocks: int
    dots: str
    bulk: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    title: str
    description: str
    axis: str
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    none_x: float
    """Place of "no change"."""
    band: tuple[float, float] | None
    """Range of effects that the study calls too small to matter."""
    noise: tuple[float, float] | None
    """The control's interval: what this run shows where nothing differs."""

    @property
    def plot_height(self) -> int:
        return ROW_HEIGHT * len(self.rows)

    @property
    def height(self) -> int:
        return self.plot_height + AXIS_HEIGHT


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    scale: Callable[[float], float]

    def x(self, value: float) -> float:
        """Percent of the width, held inside the picture."""
        share = (self.scale(value) - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 2)

    def holds(self, value: float) -> bool:
        return self.low <= self.scale(value) <= self.high

    def reaching(self, *values: float | None) -> _Axis:
        """Wide enough for `values` too, unless they lie so far out that the rest would shrink to
        less than two thirds."""
        scaled = [self.scale(value) for value in values if value is not None]
        points = [point for point in scaled if math.isfinite(point)]
        more = (self.high - self.low) / 2
        if not points or min(points) < self.low - more or max(points) > self.high + more:
            return self
        spare = 0.02 * (self.high - self.low)
        low, high = min(self.low, min(points) - spare), max(self.high, max(points) + spare)
        return _Axis(low, high, self.scale)


def forest(view: View, place: Scenario) -> Forest | None:
    """Return the primary metric of every guest against baseline; None when nothing was compared."""
    judged = view.primary_comparison(place)
    if judged is None:
        return None
    found = [item for item in view.pictured(place) if _drawable(item, judged)]
    if not found:
        return None
    native = native_reference(view, place)
    reference = [native] if native is not None and _drawable(native, judged) else []
    axis = _axis(found, judged)
    for item in reference:
        axis = axis.reaching(item.estimate, item.low, item.high)
    found += reference
    rows = tuple(
        _row(item, axis, line * ROW_HEIGHT, _kind(view, item.tuning))
        for line, item in enumerate(found)
    )
    noise = next((row for row in rows if row.name == view.control and row.low is not None), None)
    ratio = judged.kind is EffectKind.RATIO
    side = "Right" if judged.better is Better.HIGHER else "Left"
    return Forest(
        title=f"{place.title}: {judged.metric} against {view.baseline}",
        description="; ".join(f"{row.name} {row.text}" for row in rows),
        axis=f"{side} is better, {'logarithmic scale' if ratio else str(judged.unit)}",
        rows=rows,
        ticks=tuple(_ticks(axis, ratio, judged.unit)),
        none_x=axis.x(1.0 if ratio else 0.0),
        band=_band(axis, judged),
        noise=(noise.low or 0.0, noise.high or 0.0) if noise is not None else None,
    )


def native_reference(view: View, place: Scenario) -> Comparison | None:
    """Return native against baseline, the reverse of the judgement's; None without a native arm."""
    primary = view.primary(place.workload)
    twin = view.twin(view.baseline)
    if primary is None or twin is None:
        return None
    found = view.comparison(view.baseline, twin, place, primary_column(primary))
    return _turned(found) if found is not None else None


def _turned(item: Comparison) -> Comparison | None:
    """Return the same comparison seen from the other side; None of a ratio of 0."""

    def other(value: float) -> float:
        if item.kind is EffectKind.DIFFERENCE:
            return -value
        return 1 / value if value else math.inf

    if item.kind is EffectKind.RATIO and item.estimate == 0:
        return None
    return replace(
        item,
        tuning=item.against,
        against=item.tuning,
        estimate=other(item.estimate),
        low=other(item.high) if item.high is not None else None,
        high=other(item.low) if item.low is not None else None,
        blocks={block: other(value) for block, value in item.blocks.items()},
    )


def _drawable(item: Comparison, judged: Comparison) -> bool:
    return item.kind is judged.kind and math.isfinite(item.estimate)


def _kind(view: View, arm: str) -> str:
    if view.is_native(arm):
        return "native"
    return "check" if arm in (view.control, view.known_loss) else "tuning"


def _row(item: Comparison, axis: _Axis, y: int, kind: str) -> Row:
    ends = (item.low, item.high)
    whole = all(end is not None and math.isfinite(end) for end in ends)
    low, high = (item.low, item.high) if whole else (None, None)
    verdict = verdict_text(item.verdict)
    outside = not axis.holds(item.estimate)
    blocks = [] if outside else [pair for pair in item.blocks.items() if axis.holds(pair[1])]
    many = len(blocks) > _MOST_DOTS
    return Row(
        name=item.tuning,
        text=", ".join(filter(None, [effect_text(item), verdict])),
        verdict_class=item.verdict.css_class if item.verdict is not None else "",
        kind=kind,
        y=y,
        x=axis.x(item.estimate),
        low=axis.x(low) if low is not None else None,
        high=axis.x(high) if high is not None else None,
        beyond=any(end is not None and not axis.holds(end) for end in (low, high)),
        outside=outside,
        blocks=len(item.blocks),
        # Alternating heights keep blocks with nearly equal effects apart.
        dots="".join(
            f"M{axis.x(value):g} {y + 42 + (-2, 0, 2)[block % 3]}h0"
            for block, value in sorted(blocks)
            if not many
        ),
        bulk=_bulk(axis, [value for _, value in blocks]) if many else None,
    )


def _bulk(axis: _Axis, values: list[float]) -> tuple[float, float]:
    cuts = quantiles(values, n=20, method="inclusive")
    return axis.x(cuts[0]), axis.x(cuts[-1])


def _axis(found: list[Comparison], judged: Comparison) -> _Axis:
    """Wide enough for all blocks, and for intervals up to three times as far out: with few
    blocks an interval may span everything and would squeeze the rest to a point."""
    ratio = judged.kind is EffectKind.RATIO
    scale = _log if ratio else float
    points = [scale(item.estimate) for item in found]
    points += [scale(value) for item in found for value in item.blocks.values()]
    reach = max((abs(point) for point in points if math.isfinite(point)), default=0.0)
    reach = max(reach, _LEAST_REACH if ratio else 1.5 * (judged.margin or 0.0), 1e-12)
    ends = [scale(end) for item in found for end in (item.low, item.high) if end is not None]
    points += [max(-3 * reach, min(3 * reach, end)) for end in ends if math.isfinite(end)]
    points = [point for point in points if math.isfinite(point)]
    least = reach if not ratio else _LEAST_REACH
    low, high = min(*points, -least), max(*points, least)
    spare = 0.07 * (high - low)
    return _Axis(low - spare, high + spare, scale)


def _log(ratio: float) -> float:
    return math.log(ratio) if ratio > 0 else -math.inf


def _band(axis: _Axis, judged: Comparison) -> tuple[float, float] | None:
    if judged.margin is None:
        return None
    if judged.kind is EffectKind.RATIO:
        # Symmetric on the log scale, as the verdicts see it.
        return axis.x(1 / (1 + judged.margin)), axis.x(1 + judged.margin)
    return axis.x(-judged.margin), axis.x(judged.margin)


def _ticks(axis: _Axis, ratio: bool, unit: Unit) -> Iterable[Tick]:
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


def _candidates(axis: _Axis, ratio: bool) -> list[float]:
    if ratio:
        inside = [[v for v in ladder if axis.holds(v)] for ladder in _RATIO_LADDERS]
        best = next((ladder for ladder in inside if len(ladder) >= 4), inside[-1])
        return sorted(best, key=lambda value: abs(math.log(value)))
    step = 10 ** math.floor(math.log10((axis.high - axis.low) / 2))
    return [sign * n * step for n in (1, 2, 5, 10) for sign in (-1, 1)]
