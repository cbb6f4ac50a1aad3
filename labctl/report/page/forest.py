"""Lay out a forest plot, in percent of the plot's width.

Positions are percentages so that the SVG can be as wide as the page while its letters keep
their size: a scaled viewBox would be unreadable on a phone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import quantiles

from labctl.analysis.answer.view import View, primary_column
from labctl.analysis.answer.words import effect_text
from labctl.analysis.effects.cells import Scenario
from labctl.analysis.model import Comparison, EffectKind
from labctl.analysis.verdicts.table import verdict_text
from labctl.report.page.axis import EffectAxis, Tick, axis_ticks, direction, spanning

ROW_HEIGHT = 48
AXIS_HEIGHT = 34
_MOST_DOTS = 200
"""Most blocks that are drawn as dots; of more, a line shows the range of nine of ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Draw one arm.

    `x` is its estimate, `low` and `high` the ends of its interval (both or none). `beyond`: the
    interval continues outside of the picture; `outside`: the estimate lies outside. `dots` is an
    SVG path with a dot for each of `blocks` blocks; `bulk` is the range of nine in ten of them if
    they are too many for dots.
    """

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
    """Interval of the control: the effect that this run shows between equal arms."""

    @property
    def plot_height(self) -> int:
        return ROW_HEIGHT * len(self.rows)

    @property
    def height(self) -> int:
        return self.plot_height + AXIS_HEIGHT


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
    ratio = judged.kind is EffectKind.RATIO
    axis = spanning(
        (value for item in found for value in (item.estimate, *item.blocks.values())),
        (end for item in found for end in (item.low, item.high)),
        ratio=ratio,
        least=1.5 * (judged.margin or 0.0),
        better=judged.better,
    )
    for item in reference:
        axis = axis.reaching(item.estimate, item.low, item.high)
    found += reference
    rows = tuple(
        _row(item, axis, line * ROW_HEIGHT, _kind(view, item.tuning))
        for line, item in enumerate(found)
    )
    noise = next((row for row in rows if row.name == view.control and row.low is not None), None)
    return Forest(
        title=f"{place.title}: {view.title(place.workload, judged.metric)} against {view.baseline}",
        description="; ".join(f"{row.name} {row.text}" for row in rows),
        axis=f"{direction(judged.better)}, {'logarithmic scale' if ratio else judged.unit}",
        rows=rows,
        ticks=tuple(axis_ticks(axis, ratio, judged.unit)),
        none_x=axis.x(1.0 if ratio else 0.0),
        band=_band(axis, judged),
        noise=(noise.low or 0.0, noise.high or 0.0) if noise is not None else None,
    )


def native_reference(view: View, place: Scenario) -> Comparison | None:
    """Return native against baseline, the reverse of the judged comparison; None without a native
    arm."""
    primary = view.primary(place.workload)
    twin = view.twin(view.baseline)
    if primary is None or twin is None:
        return None
    found = view.comparison(view.baseline, twin, place, primary_column(primary))
    return _turned(found) if found is not None else None


def _turned(item: Comparison) -> Comparison | None:
    """Return the same comparison with its sides exchanged; None for a ratio of 0."""

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


def _row(item: Comparison, axis: EffectAxis, y: int, kind: str) -> Row:
    ends = (item.low, item.high)
    whole = all(end is not None and math.isfinite(end) for end in ends)
    low, high = (item.low, item.high) if whole else (None, None)
    interval = axis.reach(low, high) if low is not None and high is not None else (None, None)
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
        low=interval[0],
        high=interval[1],
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


def _bulk(axis: EffectAxis, values: list[float]) -> tuple[float, float]:
    cuts = quantiles(values, n=20, method="inclusive")
    return axis.reach(cuts[0], cuts[-1])


def _band(axis: EffectAxis, judged: Comparison) -> tuple[float, float] | None:
    if judged.margin is None:
        return None
    if judged.kind is EffectKind.RATIO:
        # Symmetric on the log scale, as the verdicts see it.
        return axis.reach(1 / (1 + judged.margin), 1 + judged.margin)
    return axis.reach(-judged.margin, judged.margin)
