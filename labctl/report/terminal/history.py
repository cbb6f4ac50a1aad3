"""Show a metric over runs: a line of marks per series, its changes, and changed facts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.text import Text

from labctl.analysis.compare.history import (
    NEAR,
    FactNear,
    History,
    LevelChange,
    RunSeries,
    Trend,
)
from labctl.base.errors import nearest
from labctl.base.notation import change as ratio_text
from labctl.base.notation import difference, quantity
from labctl.base.units import Better
from labctl.base.wording import counted, metric_title, place_in_words
from labctl.report.parts import bare_table, marked, small, text
from labctl.report.terminal.compare import differing_words

SCHEMA = 1

WIDTH = 76
"""Marks in a line; if there are more runs, neighbours share a mark."""

_BARS = "▁▂▃▄▅▆▇█"
CHANGE = "▲"
_MOST_FACTS = 6

NO_FACT = f"no recorded fact of host, guest or run changed within {NEAR} runs"
LEGEND = (
    f"{CHANGE}: a new level begins (over all series, the chance of a false mark or trend is about "
    f"5 %, also if runs are autocorrelated). The facts that changed within {NEAR} runs are listed "
    "beside it; they need not be the cause."
)


def history_table(found: History) -> RenderableType:
    """Return lines of 80 columns."""
    parts: list[RenderableType] = []
    for series in found.series:
        parts += [*_series(series, alone=len(found.series) == 1), Text()]
    if found.series:
        parts.append(small(LEGEND))
    else:
        parts.append(text(nothing(found), style="bold"))
    parts += marked("Left out", found.left_out)
    return Group(*parts)


def nothing(found: History) -> str:
    """Return the reason why nothing is drawn."""
    if not found.runs:
        return (
            " ".join(("No run can be read.", *found.left_out[:1]))
            if found.left_out
            else "No runs found."
        )
    if not found.metrics:
        return f"None of {counted(found.runs, 'run')} has a valid value for this request."
    return f"No run has the metric '{found.metric}' there. {nearest(found.metric, found.metrics)}"


def _series(series: RunSeries, *, alone: bool) -> Iterator[RenderableType]:
    yield text(title(series), style="bold")
    if series.apart:
        yield small(series.apart)
    values = [point.value for point in series.points]
    if len(values) > 1:
        bars, marks = _picture(values, [change.index for change in series.changes])
        yield small(bars)
        if marks.strip():
            yield small(marks)
    yield small(ends(series))
    for change in series.changes:
        yield small(f"{CHANGE} {change_words(series, change)}")
        for fact in change.facts[:_MOST_FACTS]:
            yield small("  {}: {} → {}{}".format(*near_words(fact)))
        if len(change.facts) > _MOST_FACTS:
            yield small(f"  and {len(change.facts) - _MOST_FACTS} more facts (--json has them)")
        if not change.facts:
            yield small(f"  {NO_FACT}")
    if series.trend:
        yield small(trend_words(series, series.trend))
    if series.unmarked:
        yield small(unmarked(series))
    if alone:
        yield _points(series)


def title(series: RunSeries) -> str:
    place = place_in_words(series.workload, series.condition)
    return f"{metric_title(series.metric)} of '{series.tuning}', {place}, {series.accelerator}"


def _picture(values: Sequence[float], changes: Sequence[int]) -> tuple[str, str]:
    """Return a bar per run, the lowest for the lowest value, and below them a mark at each new
    level."""
    per_bar = math.ceil(len(values) / WIDTH)
    groups = [values[start : start + per_bar] for start in range(0, len(values), per_bar)]
    means = [math.fsum(group) / len(group) for group in groups]
    low, high = min(means), max(means)
    steps = len(_BARS) - 1
    bars = "".join(
        _BARS[round(steps * (mean - low) / (high - low)) if high > low else steps // 2]
        for mean in means
    )
    places = {index // per_bar for index in changes}
    return bars, "".join(CHANGE if place in places else " " for place in range(len(groups)))


def ends(series: RunSeries) -> str:
    """Return a series' first and last run and its range, in words."""
    first, last = series.points[0], series.points[-1]
    if first is last:
        return f"{value_words(series, first.value)}, one run ({day(first.at)})"
    values = [point.value for point in series.points]
    return (
        f"{value_words(series, first.value)} ({day(first.at)}) to "
        f"{value_words(series, last.value)} ({day(last.at)}), {len(values)} runs, "
        f"lowest {value_words(series, min(values))}, highest {value_words(series, max(values))}"
    )


def value_words(series: RunSeries, value: float) -> str:
    return quantity(value, series.unit, series.metric)


def change_words(series: RunSeries, change: LevelChange) -> str:
    """Return the time of a change of level, both levels, and its certainty."""
    point = series.points[change.index]
    said = _from_to(series, change.before, change.after, change.p)
    return f"{day(point.at)}, from {change.run} on: {said}"


def trend_words(series: RunSeries, trend: Trend) -> str:
    """Return how far a series without a clear step has slid from its first run to its last."""
    said = _from_to(series, trend.first, trend.last, trend.p)
    return f"trend over all {len(series.points)} runs, without a clear step: {said}"


def _from_to(series: RunSeries, before: float, after: float, p: float) -> str:
    size = (
        ratio_text(after / before)
        if before > 0 and after > 0
        else difference(after - before, series.unit)
    )
    return (
        f"{value_words(series, before)} → {value_words(series, after)} "
        f"({size}{_direction(series.better, before, after)}, p = {p:.2g})"
    )


def _direction(better: Better, before: float, after: float) -> str:
    if better is Better.NEITHER:
        return ""
    return ", better" if (after > before) == (better is Better.HIGHER) else ", worse"


def near_words(near: FactNear) -> tuple[str, str, str, str]:
    """Return a fact's name, its values before and after, and with which other run it changed."""
    distance = near.distance
    when = "" if not distance else f" ({counted(abs(distance), 'run')} "
    when += "" if not distance else "earlier)" if distance < 0 else "later)"
    return (near.fact.name, *differing_words(near.fact.a, near.fact.b), when)


def unmarked(series: RunSeries) -> str:
    return f"not tested for changes: {series.unmarked}"


def day(moment: str) -> str:
    return moment[:10]


def _points(series: RunSeries) -> RenderableType:
    table = bare_table("Runs")
    for column, width in (("run", 34), ("started", 16), ("value", 12), ("blocks", 6), ("", 1)):
        table.add_column(column, max_width=width, overflow="fold")
    new = {change.index for change in series.changes}
    for index, point in enumerate(series.points):
        table.add_row(
            text(point.run),
            text(point.at[:16].replace("T", " ")),
            text(value_words(series, point.value)),
            text(str(point.blocks)),
            text(CHANGE if index in new else ""),
        )
    return table


def history_json(found: History) -> dict[str, object]:
    """Return JSON with the keys of docs/history.md."""
    return {
        "schema": SCHEMA,
        "metric": found.metric,
        "runs": found.runs,
        "alpha": found.alpha,
        "metrics": list(found.metrics),
        "left_out": list(found.left_out),
        "series": [_series_json(series) for series in found.series],
    }


def _series_json(series: RunSeries) -> dict[str, object]:
    return {
        "tuning": series.tuning,
        "workload": series.workload,
        "condition": series.condition,
        "metric": series.metric,
        "unit": str(series.unit),
        "better": str(series.better),
        "accelerator": series.accelerator,
        "host": series.host,
        "apart": series.apart,
        "unmarked": series.unmarked,
        "points": [
            {"run": point.run, "at": point.at, "value": point.value, "blocks": point.blocks}
            for point in series.points
        ],
        "changes": [
            {
                "run": change.run,
                "p": change.p,
                "before": change.before,
                "after": change.after,
                "facts": [
                    {
                        "name": near.fact.name,
                        "before": near.fact.a,
                        "after": near.fact.b,
                        "run": near.run,
                        "distance": near.distance,
                    }
                    for near in change.facts
                ],
            }
            for change in series.changes
        ],
        "trend": None if series.trend is None else asdict(series.trend),
    }
