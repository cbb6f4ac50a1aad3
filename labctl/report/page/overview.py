"""Lay out the picture under the answer: the primary comparisons, better to the right.

Comparisons by ratio share one scale, on which a latency that halves and a rate that doubles are the
same distance from no change. Comparisons by difference have other units and are shown as text only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from labctl.analysis.answer.view import View
from labctl.analysis.answer.words import effect_text
from labctl.analysis.effects.cells import Scenario, scenario_of
from labctl.analysis.model import Comparison, EffectKind
from labctl.analysis.verdicts.table import Verdict
from labctl.base.units import Better
from labctl.report.page.axis import EffectAxis, Tick, spanning

MOST_ROWS = 6
"""Rows that fit on a phone's first screen beside the answer."""
_MOST_MORE = 120
"""Rows of the folded picture; the table of verdicts has all."""
_ROW, _HEADING, AXIS_HEIGHT = 34, 24, 24
_TICK_LETTER = 2.05
"""Percent of the width of a tick label's letter on a 360 px screen, where labels must not touch."""
_LADDERS = (
    (10.0, 100.0, 1000.0),
    (2.0, 5.0, 10.0, 20.0, 50.0),
    (1.5, 2.0, 3.0, 4.0),
    (1.1, 1.25, 1.5, 2.0),
    (1.05, 1.1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Draw a comparison: `x` is its estimate, None for a difference; `low` and `high` are the ends
    of its interval (both or none). `beyond`: the interval continues outside of the picture;
    `outside`: the estimate lies outside."""

    name: str
    text: str
    verdict_class: str
    y: int
    x: float | None
    low: float | None
    high: float | None
    beyond: bool
    outside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Hold the bars of one place. `band`: changes too small to matter; `noise`: the control's
    interval; `height`: that of its heading and bars."""

    heading: str
    metric: str
    y: int
    height: int
    bars: tuple[Bar, ...]
    band: tuple[float, float] | None
    noise: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    groups: tuple[Group, ...]
    ticks: tuple[Tick, ...]
    none_x: float
    has_noise: bool
    has_band: bool
    description: str
    left_out: int
    """Number of comparisons that had no room."""

    @property
    def plot_height(self) -> int:
        return sum(group.height for group in self.groups)

    @property
    def height(self) -> int:
        return self.plot_height + AXIS_HEIGHT


def overviews(view: View) -> tuple[Overview, ...]:
    """Return the picture under the answer and, if it has no room for all comparisons, a folded one
    of the rest; () if nothing was compared."""
    found = _ranked(view)
    first, more = found[:MOST_ROWS], found[MOST_ROWS:]
    shown = [first, more[:_MOST_MORE]]
    left_out = (0, len(more) - len(shown[1]))
    return tuple(
        _overview(view, items, left) for items, left in zip(shown, left_out, strict=True) if items
    )


def _ranked(view: View) -> list[Comparison]:
    """Return the judged comparisons: first the best tuning's and all that got worse."""
    tunings = [standing.tuning for standing in view.judgement.standings]
    tunings += [name for name in view.candidates if name not in tunings]
    found = [
        item
        for tuning in tunings
        for place in view.places
        for item in view.judged(place, tuning)
        if item.better is not Better.NEITHER and math.isfinite(item.estimate)
    ]
    best = tunings[0] if tunings else None
    return sorted(
        found, key=lambda item: item.tuning != best and item.verdict is not Verdict.REGRESSES
    )


def _overview(view: View, found: Sequence[Comparison], left_out: int) -> Overview:
    rank = {place: at for at, place in enumerate(view.places)}
    ordered = sorted(found, key=lambda item: rank[scenario_of(item)])
    drawn = [item for item in ordered if item.kind is EffectKind.RATIO]
    axis = spanning(
        (_benefit(item, item.estimate) for item in drawn),
        (_benefit(item, end) for item in drawn for end in (item.low, item.high) if end is not None),
        ratio=True,
    )
    groups: list[Group] = []
    top = 0
    for place, items in groupby(ordered, key=scenario_of):
        groups.append(_group(view, place, list(items), axis, top))
        top += groups[-1].height
    return Overview(
        groups=tuple(groups),
        ticks=tuple(_ticks(axis)) if drawn else (),
        none_x=axis.x(1.0),
        has_noise=any(group.noise for group in groups),
        has_band=any(group.band for group in groups),
        description="; ".join(
            f"{bar.name}, {group.heading}: {bar.text}" for group in groups for bar in group.bars
        ),
        left_out=left_out,
    )


def _group(
    view: View, place: Scenario, items: Sequence[Comparison], axis: EffectAxis, top: int
) -> Group:
    bars = tuple(_bar(item, axis, top + _HEADING + at * _ROW) for at, item in enumerate(items))
    first, control = items[0], view.control_as_comparison(place)
    ratio = all(item.kind is EffectKind.RATIO for item in items)
    band = None
    if ratio and first.margin is not None:
        band = (axis.x(1 / (1 + first.margin)), axis.x(1 + first.margin))
    return Group(
        heading=place.title,
        metric=view.title(place.workload, first.metric),
        y=top,
        height=_HEADING + _ROW * len(bars),
        bars=bars,
        band=band,
        noise=_ends(control, axis) if ratio and control is not None else None,
    )


def _bar(item: Comparison, axis: EffectAxis, y: int) -> Bar:
    verdict = item.verdict
    said = f"{verdict.row.symbol} {verdict.shown}".strip() if verdict is not None else ""
    x, ends = None, None
    outside = beyond = False
    if item.kind is EffectKind.RATIO:
        estimate = _benefit(item, item.estimate)
        x, outside, ends = axis.x(estimate), not axis.holds(estimate), _ends(item, axis)
        beyond = any(
            not axis.holds(_benefit(item, end)) for end in (item.low, item.high) if end is not None
        )
    return Bar(
        name=item.tuning,
        text=" ".join(filter(None, (effect_text(item), said))),
        verdict_class=verdict.css_class if verdict is not None else "",
        y=y,
        x=x,
        low=ends[0] if ends else None,
        high=ends[1] if ends else None,
        beyond=beyond,
        outside=outside,
    )


def _ends(item: Comparison, axis: EffectAxis) -> tuple[float, float] | None:
    """Return both ends of an interval, from left to right."""
    if item.low is None or item.high is None:
        return None
    one, other = (axis.x(_benefit(item, end)) for end in (item.low, item.high))
    return min(one, other), max(one, other)


def _benefit(item: Comparison, ratio: float) -> float:
    """Return a ratio so that more is better."""
    if item.better is Better.HIGHER:
        return ratio
    return 1 / ratio if ratio > 0 else math.inf


def _ticks(axis: EffectAxis) -> Iterator[Tick]:
    """Return the tick for no change, and on both sides the ticks that fit without touching."""
    kept = [Tick(axis.x(1.0), "no change")]
    for value, label in _candidates(axis):
        tick = Tick(axis.x(value), label)
        if 7 <= tick.x <= 93 and all(_is_clear(tick, other) for other in kept):
            kept.append(tick)
    yield from kept


def _is_clear(one: Tick, other: Tick) -> bool:
    letters = (len(one.label) + len(other.label)) / 2
    return abs(one.x - other.x) >= letters * _TICK_LETTER


def _candidates(axis: EffectAxis) -> Iterable[tuple[float, str]]:
    inside = [
        [(value, f"{value:g}× better") for value in ladder if axis.holds(value)]
        + [(1 / value, f"{value:g}× worse") for value in ladder if axis.holds(1 / value)]
        for ladder in _LADDERS
    ]
    best = next((ladder for ladder in inside if len(ladder) >= 3), inside[-1])
    return sorted(best, key=lambda pair: abs(math.log(pair[0])))
