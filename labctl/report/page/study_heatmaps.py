"""Draw the heatmaps that a study requests: a metric over two factors, a panel for each arm at each
combination of the other factors' levels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.analysis.answer.view import View, series_name
from labctl.analysis.model import Level
from labctl.base.notation import quantity
from labctl.base.wording import counted, metric_title
from labctl.report.page.factor_pictures import Heatmap, HeatPanel, Tile
from labctl.store.records.factor_record import PlannedHeatmap

_MOST_PANELS = 24
"""The table has the others."""
_ROW = 40
_HEAD = 22
_BASELINE = 24
"""Height of a row and of the columns' names, and place of a row's name in its row."""
_FULL = 0.5
"""Opacity of the largest value."""

_At = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyHeatmap:
    """Draw one heatmap. `header` and `rows` are the table of all panels' numbers: arm and the other
    factors, the two levels, the value and its number of blocks."""

    anchor: str
    title: str
    plot: Heatmap
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int


def study_heatmaps(view: View) -> Iterator[StudyHeatmap]:
    """Yield the pictures of the plan that have values."""
    for number, one in enumerate(view.run.plan.heatmaps, start=1):
        panels = _panels(view, one)
        values = [level.typical for cells in panels.values() for level in cells.values()]
        if not values:
            continue
        scale = (min(values), max(values))
        title = metric_title(one.metric)
        drawn = [
            _panel(name, cells, _levels(view, one, cells), scale)
            for name, cells in [*panels.items()][:_MOST_PANELS]
        ]
        yield StudyHeatmap(
            anchor=f"heatmap-{number}",
            title=f"{title[:1].upper()}{title[1:]} by {one.across} and {one.down}",
            plot=Heatmap(title=title, across=one.across, down=one.down, panels=tuple(drawn)),
            header=("arm", one.across, one.down, title, "values"),
            rows=tuple(
                (name, across, down, quantity(level.typical, level.unit), _of_blocks(level))
                for name, cells in panels.items()
                for (across, down), level in cells.items()
            ),
            left_out=len(panels) - len(drawn),
        )


def _panels(view: View, one: PlannedHeatmap) -> dict[str, dict[_At, Level]]:
    """Return the metric's levels at each column and row by panel, in the plan's order."""
    factorial = view.run.plan.factorial
    if factorial is None:
        return {}
    levels = {
        (level.tuning, level.workload, level.condition): level
        for level in view.judgement.levels
        if series_name(level.metric) == one.metric
    }
    found: dict[str, dict[_At, Level]] = {}
    for cell in factorial.cells:
        level = levels.get((cell.tuning, cell.workload, cell.condition))
        if level is not None and {one.across, one.down} <= cell.levels.keys():
            others = {k: v for k, v in cell.levels.items() if k not in (one.across, one.down)}
            name = ", ".join([cell.arm, *(f"{key}={value}" for key, value in others.items())])
            at = (cell.levels[one.across], cell.levels[one.down])
            found.setdefault(name, {})[at] = level
    order = {name: n for n, name in enumerate(view.tunings)}
    return dict(sorted(found.items(), key=lambda item: order.get(_arm(item[0]), len(order))))


def _arm(panel: str) -> str:
    return panel.partition(",")[0]


def _levels(
    view: View, one: PlannedHeatmap, cells: Mapping[_At, Level]
) -> tuple[list[str], list[str]]:
    """Return a panel's columns and rows, in the plan's order."""
    factorial = view.run.plan.factorial
    assert factorial is not None  # without factors there would be no cells
    columns, rows = (
        [level for level in factorial.factors[name].levels if level in {at[n] for at in cells}]
        for n, name in enumerate((one.across, one.down))
    )
    return columns, rows


def _panel(
    name: str,
    cells: Mapping[_At, Level],
    levels: tuple[list[str], list[str]],
    scale: tuple[float, float],
) -> HeatPanel:
    columns, rows = levels
    low, high = scale
    width = 100 / max(1, len(columns))
    tiles = [
        Tile(
            x=round(column * width, 2),
            y=_HEAD + row * _ROW,
            width=round(width, 2),
            value=quantity(level.typical, level.unit),
            change="",
            tone="plain",
            opacity=round(_FULL * (level.typical - low) / (high - low), 2) if high > low else 0.0,
        )
        for row, down in enumerate(rows)
        for column, across in enumerate(columns)
        if (level := cells.get((across, down))) is not None
    ]
    return HeatPanel(
        name=name,
        columns=tuple((round((n + 0.5) * width, 2), level) for n, level in enumerate(columns)),
        rows=tuple((_HEAD + n * _ROW + _BASELINE, level) for n, level in enumerate(rows)),
        tiles=tuple(tiles),
        height=_HEAD + _ROW * len(rows),
        description="; ".join(
            f"{across} and {down}: {quantity(level.typical, level.unit)}"
            for (across, down), level in cells.items()
        ),
    )


def _of_blocks(level: Level) -> str:
    return counted(len(level.values), "block")
