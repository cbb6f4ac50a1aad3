"""Draw two factors: an interaction plot and a heatmap of each arm's cells.

Values are geometric means over the blocks and over the cells of the other factors that all shown
levels have; lines that aren't parallel are an interaction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from labctl.analysis.model import CellMean, FactorAnalysis
from labctl.base.notation import changes, differences, quantity
from labctl.base.units import Unit
from labctl.base.wording import metric_title, place_in_words
from labctl.report.page.axis import axis_of, y_of

HEIGHT = 150
_GAP = 20
"""Height that a number at the axis takes."""
_MOST_PANELS = 12
"""Limit on arms and workloads with a picture; the table has the others."""
_COLOURS = 7
_FULL = 0.5
"""Opacity of the cell that differs most."""
_SMALLEST = math.log(1.02)
"""Smaller differences have hardly a colour, even if all cells are alike."""

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Line:
    """Draw one level of the second factor. `path` and `dots` are SVG paths."""

    name: str
    colour: int
    path: str
    dots: str


@dataclass(frozen=True, slots=True)
class LinesPanel:
    name: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]
    description: str


@dataclass(frozen=True, slots=True)
class Interaction:
    """Draw the metric by the levels of `across`, a line per level of `lines`."""

    title: str
    across: str
    lines: str
    levels: tuple[tuple[float, str], ...]
    names: tuple[tuple[int, str], ...]
    panels: tuple[LinesPanel, ...]
    height: int = HEIGHT


@dataclass(frozen=True, slots=True)
class Tile:
    """Draw one cell: its value, its change against the first, and the strength of its colour."""

    x: float
    y: int
    width: float
    value: str
    change: str
    tone: str
    opacity: float


@dataclass(frozen=True, slots=True)
class HeatPanel:
    name: str
    columns: tuple[tuple[float, str], ...]
    rows: tuple[tuple[int, str], ...]
    tiles: tuple[Tile, ...]
    height: int
    description: str


@dataclass(frozen=True, slots=True)
class Heatmap:
    title: str
    across: str
    down: str
    panels: tuple[HeatPanel, ...]


@dataclass(frozen=True, slots=True)
class _Grid:
    """Hold the means of one arm and workload by the levels of both factors; `levels`: the arm's, in
    the plan's order."""

    name: str
    unit: Unit
    levels: tuple[tuple[str, ...], tuple[str, ...]]
    means: Mapping[Pair, float]
    is_geometric: bool


def interaction(analysis: FactorAnalysis) -> Interaction | None:
    """Return the plot of the two factors that are pictured; None without any."""
    grids = list(_grids(analysis))
    if analysis.pictured is None or not grids:
        return None
    across, lines = analysis.pictured
    columns = analysis.factors[across].levels
    colours = {level: n % _COLOURS for n, level in enumerate(analysis.factors[lines].levels)}
    return Interaction(
        title=f"{across} by {lines}",
        across=across,
        lines=lines,
        levels=tuple((_place(n, len(columns)), level) for n, level in enumerate(columns)),
        names=tuple((colour, f"{lines} {level}") for level, colour in colours.items()),
        panels=tuple(_lines(grid, columns, colours) for grid in grids),
    )


def heatmap(analysis: FactorAnalysis) -> Heatmap | None:
    """Return the two factors that are pictured as coloured cells."""
    grids = list(_grids(analysis))
    if analysis.pictured is None or not grids:
        return None
    down, across = analysis.pictured
    better = {one.metric: str(one.better) for one in analysis.contrasts}
    metrics = {_name(one): one.metric for one in analysis.means}
    return Heatmap(
        title=f"{down} and {across}",
        across=across,
        down=down,
        panels=tuple(_heat(grid, better.get(metrics[grid.name], "neither")) for grid in grids),
    )


def _place(number: int, of: int) -> float:
    """Return the place of a level, in percent of the width."""
    return round(100 * (number + 0.5) / of, 2)


def _name(mean: CellMean) -> str:
    place = place_in_words(mean.workload, mean.condition) if mean.condition else mean.workload
    return f"{mean.arm}, {place}: {metric_title(mean.metric)}"


def _grids(analysis: FactorAnalysis) -> Iterator[_Grid]:
    if analysis.pictured is None:
        return
    found: defaultdict[str, list[CellMean]] = defaultdict(list)
    for mean in analysis.means:
        if {*analysis.pictured} <= mean.levels.keys():
            found[_name(mean)].append(mean)
    for name, means in [*found.items()][:_MOST_PANELS]:
        yield _grid(name, means, analysis.pictured, analysis)


def _grid(name: str, means: Sequence[CellMean], pair: Pair, analysis: FactorAnalysis) -> _Grid:
    """Average over the cells of the other factors that all shown combinations have; if there is no
    such cell, over each combination's cells."""
    by_pair: defaultdict[Pair, dict[frozenset[Pair], float]] = defaultdict(dict)
    for mean in means:
        others = frozenset(item for item in mean.levels.items() if item[0] not in pair)
        by_pair[mean.levels[pair[0]], mean.levels[pair[1]]][others] = mean.typical
    common = frozenset.intersection(*(frozenset(of) for of in by_pair.values()))
    geometric = all(mean.is_geometric for mean in means)
    there = [{key[at] for key in by_pair} for at in (0, 1)]
    one, other = (
        tuple(level for level in analysis.factors[factor].levels if level in levels)
        for factor, levels in zip(pair, there, strict=True)
    )
    return _Grid(
        name=name,
        unit=means[0].unit,
        levels=(one, other),
        means={
            key: _mean([of[others] for others in (common or of)], geometric=geometric)
            for key, of in by_pair.items()
        },
        is_geometric=geometric,
    )


def _mean(values: Sequence[float], *, geometric: bool) -> float:
    if geometric:
        return math.exp(math.fsum(map(math.log, values)) / len(values))
    return math.fsum(values) / len(values)


def _lines(grid: _Grid, columns: Sequence[str], colours: Mapping[str, int]) -> LinesPanel:
    axis = axis_of(grid.means.values())
    lines = []
    for level in grid.levels[1]:
        points = [
            (_place(n, len(columns)), y_of(axis, grid.means[column, level], HEIGHT))
            for n, column in enumerate(columns)
            if (column, level) in grid.means
        ]
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        dots = "".join(f"M{x:g} {y:g}h0" for x, y in points)
        lines.append(Line(level, colours[level], path, dots))
    ticks = axis.ticks(grid.unit, _GAP / HEIGHT) if axis else []
    return LinesPanel(
        name=grid.name,
        lines=tuple(lines),
        ticks=tuple((y_of(axis, value, HEIGHT), label) for value, label in ticks),
        description=_described(grid),
    )


def _described(grid: _Grid) -> str:
    return "; ".join(
        f"{' and '.join(at)}: {quantity(value, grid.unit)}" for at, value in grid.means.items()
    )


_ROW = 40
_HEAD = 22


def _heat(grid: _Grid, better: str) -> HeatPanel:
    rows, columns = grid.levels
    first = grid.means.get((rows[0], columns[0]))
    apart = {key: _apart(grid, value, first) for key, value in grid.means.items()}
    largest = max([abs(size) for size in apart.values()] + [_SMALLEST if grid.is_geometric else 0])
    width = 100 / len(columns)
    tiles = [
        Tile(
            x=round(column * width, 2),
            y=_HEAD + row * _ROW,
            width=round(width, 2),
            value=quantity(grid.means[at], grid.unit),
            change=_change(grid, grid.means[at], first),
            tone=_tone(apart[at], better),
            opacity=round(_FULL * abs(apart[at]) / largest, 2) if largest else 0.0,
        )
        for row, down in enumerate(rows)
        for column, across in enumerate(columns)
        if (at := (down, across)) in grid.means
    ]
    return HeatPanel(
        name=grid.name,
        columns=tuple((round((n + 0.5) * width, 2), level) for n, level in enumerate(columns)),
        rows=tuple((_HEAD + n * _ROW + 24, level) for n, level in enumerate(rows)),
        tiles=tuple(tiles),
        height=_HEAD + _ROW * len(rows),
        description=_described(grid),
    )


def _apart(grid: _Grid, value: float, first: float | None) -> float:
    """Return the distance of a cell from the first, on the scale of effects."""
    if first is None:
        return 0.0
    return math.log(value / first) if grid.is_geometric else value - first


def _change(grid: _Grid, value: float, first: float | None) -> str:
    if first is None or value == first:
        return ""
    if grid.is_geometric:
        return changes(value / first, None, None).estimate
    return differences(value - first, None, None, grid.unit).estimate


def _tone(apart: float, better: str) -> str:
    if better not in ("higher", "lower"):
        return "plain"
    return "better" if (apart > 0) is (better == "higher") else "worse"
