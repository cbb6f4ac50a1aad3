"""Draw latency by percentile: a small picture per tuning, with baseline and its native twin.

Samples of different trials are never pooled (METHOD 16): each point is the median over the blocks
of one trial's percentile, its band the middle half of the blocks. A percentile is not drawn if a
trial of the arm has too few samples for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from labctl.analysis.answer.view import View
from labctl.analysis.answer.words import capital
from labctl.analysis.effects.cells import Scenario
from labctl.analysis.model import Level
from labctl.base.metrics.table import METRICS
from labctl.base.notation import quantity
from labctl.base.units import CLOSED, LARGEST, OPEN, Unit
from labctl.base.wording import counted
from labctl.report.page.axis import Axis, axis_of

_LABEL = 17
"""Height that a number at the axis takes."""
HEIGHT = 130
_RIGHT = 78.0
"""End of the curve, in percent of the width: the maximum stands beyond it, unconnected."""
MAXIMUM_X = 95.0
_PERCENTILE = re.compile(rf"(?:{OPEN}|{CLOSED})p(\d+)")
_COUNTS = frozenset(row.name for row in METRICS if row.samples)


@dataclass(frozen=True, slots=True)
class Point:
    """Draw one percentile of one arm: the median over `blocks` blocks, and their middle half."""

    q: float
    middle: float
    low: float
    high: float
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Draw one arm: `path` and `band` are SVG paths, `maximum_y` is the height of the longest
    latency.
    """

    role: str
    name: str
    path: str
    band: str
    dots: str
    maximum_y: float | None


@dataclass(frozen=True, slots=True)
class Panel:
    name: str
    lines: tuple[Line, ...]
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Draw all panels. `header` names the columns of `rows`, one row per arm."""

    title: str
    heading: str
    panels: tuple[Panel, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    maxima: str
    """Basis of the longest latencies (METHOD 16: duration and count)."""
    undrawn: str
    """Sentence on percentiles that only the table has, with the reason; "" if there are none."""
    height: int = HEIGHT
    maximum_x: float = MAXIMUM_X


def curves(view: View, place: Scenario, shown: Collection[str]) -> list[Curves]:
    """Return one set of pictures per kind of latency (open and closed loop, reads, writes); [] if
    none was measured.

    `shown`: the arms that are drawn; the table has all.
    """
    return [
        item
        for prefix in (OPEN, CLOSED)
        for labels, arms in _kinds(view, place, prefix).items()
        if (item := _curves(view, place, prefix, labels, arms, shown)) is not None
    ]


def _kinds(view: View, place: Scenario, prefix: str) -> dict[str, dict[str, dict[str, Level]]]:
    """Return by labels and arm the metrics with the prefix, and the longest latency of the same
    loop.
    """
    kinds: dict[str, dict[str, dict[str, Level]]] = {}
    for level in view.levels(place):
        base, _, labels = level.metric.partition("{")
        if base.startswith(prefix) or base == LARGEST:
            arm = kinds.setdefault(labels.rstrip("}"), {}).setdefault(level.tuning, {})
            arm[base] = level
    return kinds


def _curves(
    view: View,
    place: Scenario,
    prefix: str,
    labels: str,
    levels: Mapping[str, Mapping[str, Level]],
    shown_arms: Collection[str],
) -> Curves | None:
    arms = [arm for arm in view.tunings if arm in levels]
    points = {arm: _points(levels[arm]) for arm in arms}
    whole = {arm: _whole(points[arm]) for arm in arms}
    maxima = {arm: levels[arm][LARGEST] for arm in arms if LARGEST in levels[arm]}
    spread = [v for arm in arms for point in whole[arm] for v in (point.low, point.high)]
    axis = axis_of(value for value in [*spread, *(m.typical for m in maxima.values())] if value > 0)
    qs = sorted({point.q for found in whole.values() for point in found})
    if axis is None or len(qs) < 2:
        return None
    scale = _Scale(axis, qs[0], qs[-1])
    kinds = f" ({labels.partition('=')[2] or labels})" if labels else ""
    what = f"{view.latency(place.workload, prefix)}{kinds}"
    shown = sorted({point.q for found in points.values() for point in found})
    unit = next(level.unit for found in levels.values() for level in found.values())
    left = [q for q in shown if any(_at(points[a], q) and not _at(whole[a], q) for a in arms)]
    return Curves(
        title=f"{place.title}: {what} by percentile",
        heading=f"{capital(what)} by percentile",
        panels=tuple(_panels(view, arms, shown_arms, whole, maxima, scale)),
        x_ticks=tuple((scale.x(q), _name(q)) for q in qs),
        y_ticks=tuple((scale.y(value), text) for value, text in axis.ticks(unit, _LABEL / HEIGHT)),
        header=(*map(_name, shown), "largest"),
        rows=tuple(
            (arm, (*(_cell(points[arm], q, unit) for q in shown), _largest(maxima.get(arm))))
            for arm in arms
        ),
        maxima=_of_what(view, place, maxima.values()),
        undrawn=(
            f"{', '.join(map(_name, left))}: some trials have too few samples (20 must lie "
            "beyond it), so it is drawn only for arms in which all trials have enough."
            if left
            else ""
        ),
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    axis: Axis
    first: float
    last: float

    def x(self, q: float) -> float:
        """Place a percentile by the rarity of larger values: p90, p99 and p99.9 are equally far
        apart.
        """
        share = (_rarity(q) - _rarity(self.first)) / (_rarity(self.last) - _rarity(self.first))
        return round(4 + (_RIGHT - 4) * share, 2)

    def y(self, value: float) -> float:
        return round(HEIGHT * (1 - self.axis.share(value)), 1)


def _rarity(q: float) -> float:
    return -math.log10(1 - q)


def _points(levels: Mapping[str, Level]) -> list[Point]:
    found = []
    for metric, level in levels.items():
        match = _PERCENTILE.fullmatch(metric)
        values = [value for value in level.values.values() if math.isfinite(value)]
        q = float(f"0.{match[1]}") if match else 0.0
        if not 0 < q < 1 or not values:
            continue
        quarters = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        found.append(Point(q, median(values), quarters[0], quarters[2], len(values)))
    return sorted(found, key=lambda point: point.q)


def _whole(points: Sequence[Point]) -> list[Point]:
    """Return the percentiles that every trial of the arm has. Others would leave out the slow
    trials, which have fewer samples."""
    most = max((point.blocks for point in points), default=0)
    return [point for point in points if point.blocks == most]


def _panels(
    view: View,
    arms: Sequence[str],
    shown: Collection[str],
    points: Mapping[str, Sequence[Point]],
    maxima: Mapping[str, Level],
    scale: _Scale,
) -> Iterable[Panel]:
    """Draw a panel per tuning with baseline and its twin; without a tuning, per arm."""
    candidates = [arm for arm in view.candidates if arm in arms]
    for arm in filter(shown.__contains__, candidates or arms):
        roles = {"this": arm}
        if candidates and view.baseline in arms:
            roles["baseline"] = view.baseline
        if candidates and (twin := view.twin(arm)) in arms:
            roles["native"] = str(twin)
        lines = [
            _line(role, name, points[name], maxima.get(name), scale)
            for role, name in reversed(roles.items())
        ]
        said = [f"{name} {_spoken(points[name])}" for name in roles.values() if points[name]]
        yield Panel(arm, tuple(lines), "; ".join(said))


def _line(
    role: str, name: str, points: Sequence[Point], maximum: Level | None, scale: _Scale
) -> Line:
    at = [(scale.x(p.q), scale.y(p.middle), scale.y(p.low), scale.y(p.high)) for p in points]
    upper = "L".join(f"{x:g} {high:g}" for x, _, _, high in at)
    lower = "L".join(f"{x:g} {low:g}" for x, _, low, _ in reversed(at))
    return Line(
        role=role,
        name=name,
        path="M" + "L".join(f"{x:g} {y:g}" for x, y, _, _ in at) if at else "",
        band=f"M{upper}L{lower}Z" if role == "this" and len(at) > 1 else "",
        dots="".join(f"M{x:g} {y:g}h0" for x, y, _, _ in at),
        maximum_y=scale.y(maximum.typical) if maximum and maximum.typical > 0 else None,
    )


def _spoken(points: Sequence[Point]) -> str:
    return ", ".join(f"median {_name(p.q)} {quantity(p.middle, Unit.SECONDS)}" for p in points)


def _at(points: Sequence[Point], q: float) -> Point | None:
    return next((point for point in points if point.q == q), None)


def _cell(points: Sequence[Point], q: float, unit: Unit) -> str:
    point = _at(points, q)
    if point is None:
        return ""
    text = quantity(point.middle, unit)
    if point.blocks > 1:
        text += f" ({quantity(point.low, unit)} to {quantity(point.high, unit)})"
    most = max(p.blocks for p in points)
    return text if point.blocks == most else f"{text}, {point.blocks} of {most} blocks"


def _largest(level: Level | None) -> str:
    return quantity(level.typical, level.unit) if level is not None else ""


def _of_what(view: View, place: Scenario, maxima: Iterable[Level]) -> str:
    trials = max((len(level.values) for level in maxima), default=0)
    if not trials:
        return ""
    workload = view.run.plan.workloads.get(place.workload)
    seconds = workload.duration_s if workload else None
    each = f" of {seconds:g} s" if seconds is not None else ""
    counts = [level.typical for level in view.levels(place) if level.metric in _COUNTS]
    many = ""
    if counts:
        low, high = quantity(min(counts), Unit.COUNT), quantity(max(counts), Unit.COUNT)
        many = f", {low} to {high} samples a trial" if low != high else f", {low} samples a trial"
    return f"the longest of {counted(trials, 'trial')}{each}{many}"


def _name(q: float) -> str:
    return f"p{100 * q:.6g}"
