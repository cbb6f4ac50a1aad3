"""Show a metric over runs as one page: a picture per series, its numbers, and changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labctl.analysis.compare.history import History, LevelChange, RunSeries
from labctl.base.wording import counted, metric_title
from labctl.report.page.axis import Axis, axis_of, y_of
from labctl.report.templating import template
from labctl.report.terminal.history import (
    CHANGE,
    LEGEND,
    NO_FACT,
    change_words,
    day,
    ends,
    near_words,
    title,
    trend_words,
    unmarked,
    value_words,
)

HEIGHT = 150
_LABEL = 20
"""Height that a number at the axis takes."""


@dataclass(frozen=True, slots=True)
class _Level:
    """Draw a new level: `x` in percent of the width, and its words."""

    x: float
    words: str
    facts: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    """Draw a picture of 100 by HEIGHT that is stretched to its place: SVG paths of the runs and of
    the levels between changes, and the values at the side."""

    dots: str
    levels: str
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    title: str
    apart: str
    plot: _Plot | None
    ends: str
    changes: tuple[_Level, ...]
    unmarked: str
    trend: str
    first: str
    last: str
    rows: tuple[tuple[str, str, str, int, str], ...]


def history_page(found: History) -> str:
    """Return the page's HTML: no script, nothing from a network."""
    sections = [_section(series) for series in found.series]
    return template("history.html.j2").render(
        title=f"{metric_title(found.metric)} over {counted(found.runs, 'run')}",
        found=found,
        sections=sections,
        changed=[section for section in sections if section.changes],
        height=HEIGHT,
        mark=CHANGE,
        legend=LEGEND,
        no_fact=NO_FACT,
    )


def _section(series: RunSeries) -> _Section:
    new = {change.index for change in series.changes}
    points = series.points
    return _Section(
        title=title(series),
        apart=series.apart,
        plot=_plot(series),
        ends=ends(series),
        changes=tuple(_level(series, change) for change in series.changes),
        unmarked=unmarked(series) if series.unmarked else "",
        trend=trend_words(series, series.trend) if series.trend else "",
        first=day(points[0].at),
        last=day(points[-1].at),
        rows=tuple(
            (
                point.run,
                point.at[:16].replace("T", " "),
                value_words(series, point.value),
                point.blocks,
                CHANGE if index in new else "",
            )
            for index, point in enumerate(points)
        ),
    )


def _level(series: RunSeries, change: LevelChange) -> _Level:
    facts = tuple(
        (name + when, before, after) for name, before, after, when in map(near_words, change.facts)
    )
    return _Level(_x(change.index, len(series.points)), change_words(series, change), facts)


def _plot(series: RunSeries) -> _Plot | None:
    """Return None for a value that no axis can hold."""
    values = [point.value for point in series.points]
    axis = axis_of(values)
    if axis is None:
        return None
    count = len(values)
    return _Plot(
        dots="".join(
            f"M{_x(index + 0.5, count):g} {y_of(axis, value, HEIGHT):g}h0"
            for index, value in enumerate(values)
        ),
        levels="".join(_levels(series, axis)),
        ticks=tuple(
            (y_of(axis, v, HEIGHT), text) for v, text in axis.ticks(series.unit, _LABEL / HEIGHT)
        ),
    )


def _levels(series: RunSeries, axis: Axis) -> Iterator[str]:
    """Draw a line across the runs of each level; none if no change was found."""
    if not series.changes:
        return
    count = len(series.points)
    starts = [0, *(change.index for change in series.changes), count]
    typical = [series.changes[0].before, *(change.after for change in series.changes)]
    for start, end, value in zip(starts, starts[1:], typical, strict=False):
        yield f"M{_x(start, count):g} {y_of(axis, value, HEIGHT):g}H{_x(end, count):g}"


def _x(index: float, count: int) -> float:
    return round(100 * index / count, 2)


def _y(axis: Axis, value: float) -> float:
    return round(HEIGHT * (1 - axis.share(value)), 1)
