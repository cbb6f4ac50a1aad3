"""Show a density run as one page: numbers, their distribution, and the metric by guest count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labctl.analysis.density import Density, Fitting, Point
from labctl.base.notation import difference, quantity
from labctl.report.density_words import (
    blocks_words,
    head_words,
    interval_words,
    number_words,
    placed_words,
    remarks,
    test_words,
)
from labctl.report.page.axis import Axis, axis_of, y_of
from labctl.report.templating import template
from labctl.store.density_record import DensityRecord, Limit

HEIGHT = 190
ROW = 44
"""Height of one tuning's numbers."""
_LABEL = 20
"""Height that a number at the axis takes."""
_COLOURS = 7
_LEFT, _RIGHT = 4.0, 96.0
_MOST_LABELS = 16


@dataclass(frozen=True, slots=True)
class _Line:
    """Draw one tuning: `path` and `dots` are SVG paths in a picture of 100 by HEIGHT."""

    name: str
    colour: int
    path: str
    dots: str


@dataclass(frozen=True, slots=True)
class _Panel:
    name: str
    lines: tuple[_Line, ...]
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """Draw the metric by number of guests. `limit_y`: height of the limit."""

    panels: tuple[_Panel, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    limit_y: float


@dataclass(frozen=True, slots=True)
class _Mark:
    """Draw the blocks that found one number: `share` is the circle's radius among the largest."""

    x: float
    radius: float
    words: str
    at_least: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """Draw one tuning's numbers by block. `interval`: both ends in percent, None without one."""

    name: str
    colour: int
    y: int
    marks: tuple[_Mark, ...]
    interval: tuple[float, float] | None


def density_page(record: DensityRecord, name: str, found: Density) -> str:
    """Return the page's HTML: no script, nothing from a network."""
    limit = record.limit.limit()
    colours = {tuning: n % _COLOURS for n, tuning in enumerate(record.tunings)}
    most = _most(found)
    scale = _scale(most)
    return template("density.html.j2").render(
        title=f"How many guests fit: {record.workload}, {limit}",
        head=head_words(record, name),
        answers=[(one.tuning, number_words(one)) for one in found.fitting],
        fitting=[
            (one.tuning, number_words(one), interval_words(one), blocks_words(one))
            for one in found.fitting
        ],
        tests=[test_words(test) for test in found.tests],
        remarks=remarks(record, found),
        names=tuple((colour, tuning) for tuning, colour in colours.items()),
        curve=_curve(found, limit, colours, scale, most),
        numbers=[_numbers(one, row, colours, scale) for row, one in enumerate(found.fitting)],
        numbers_height=ROW * len(found.fitting) + 24,
        x_ticks=_x_ticks(0, most, scale),
        row=ROW,
        height=HEIGHT,
        limit=str(limit),
        metric=record.limit.metric,
        points=[
            (tuning, point.count, *_cells(point, limit), f"{point.held} of {point.blocks}")
            for tuning, points in found.curves.items()
            for point in points
        ],
        places=placed_words(record),
        command=record.command,
        facts=_facts(record),
    )


def _most(found: Density) -> int:
    counts = [point.count for points in found.curves.values() for point in points]
    numbers = [n.value for one in found.fitting for n in one.numbers.values()]
    return max([*counts, *numbers, 1])


def _scale(most: int) -> Callable[[float], float]:
    """Return the place of a number of guests, in percent of the width."""
    return lambda count: round(_LEFT + (_RIGHT - _LEFT) * count / most, 2)


def _x_ticks(
    first: int, most: int, scale: Callable[[float], float]
) -> tuple[tuple[float, str], ...]:
    step = max(1, -(-most // _MOST_LABELS))
    return tuple((scale(count), str(count)) for count in range(first, most + 1, step))


def _curve(
    found: Density,
    limit: Limit,
    colours: dict[str, int],
    scale: Callable[[float], float],
    most: int,
) -> _Curve | None:
    points = [point for one in found.curves.values() for point in one]
    axis = axis_of([limit.value, *(p.worst for p in points), *(p.middle for p in points)])
    if axis is None or not points:
        return None
    kinds: tuple[tuple[str, Callable[[Point], float]], ...] = (
        ("worst guest", lambda point: point.worst),
        ("median guest", lambda point: point.middle),
    )
    return _Curve(
        panels=tuple(
            _Panel(
                kind,
                tuple(
                    _line(tuning, colours[tuning], one, of, axis, scale)
                    for tuning, one in found.curves.items()
                    if one
                ),
                "; ".join(
                    f"{tuning}: {_spoken(one, of, limit)}"
                    for tuning, one in found.curves.items()
                    if one
                ),
            )
            for kind, of in kinds
        ),
        x_ticks=_x_ticks(1, most, scale),
        y_ticks=tuple(
            (y_of(axis, v, HEIGHT), text) for v, text in axis.ticks(limit.unit, _LABEL / HEIGHT)
        ),
        limit_y=y_of(axis, limit.value, HEIGHT),
    )


def _line(
    name: str,
    colour: int,
    points: Sequence[Point],
    of: Callable[[Point], float],
    axis: Axis,
    scale: Callable[[float], float],
) -> _Line:
    at = [(scale(point.count), y_of(axis, of(point), HEIGHT)) for point in points]
    return _Line(
        name=name,
        colour=colour,
        path="M" + "L".join(f"{x:g} {y:g}" for x, y in at),
        dots="".join(f"M{x:g} {y:g}h0" for x, y in at),
    )


def _spoken(points: Sequence[Point], of: Callable[[Point], float], limit: Limit) -> str:
    return ", ".join(f"{point.count} guests {quantity(of(point), limit.unit)}" for point in points)


def _numbers(
    one: Fitting, row: int, colours: dict[str, int], scale: Callable[[float], float]
) -> _Numbers:
    found = Counter((number.value, number.at_least) for number in one.numbers.values())
    largest = max(found.values(), default=1)
    interval = one.interval
    return _Numbers(
        name=one.tuning,
        colour=colours[one.tuning],
        y=ROW * row + ROW // 2,
        marks=tuple(
            _Mark(
                x=scale(value),
                radius=round(4 + 7 * blocks / largest, 1),
                words=f"{'at least ' if bound else ''}{value}: {blocks} of {len(one.numbers)}",
                at_least=bound,
            )
            for (value, bound), blocks in sorted(found.items())
        ),
        interval=None
        if interval is None
        else (scale(interval.low.value), scale(interval.high.value)),
    )


def _cells(point: Point, limit: Limit) -> tuple[str, str, str]:
    cost = "" if point.cost is None else difference(point.cost, limit.unit)
    return quantity(point.worst, limit.unit), quantity(point.middle, limit.unit), cost


def _facts(record: DensityRecord) -> list[tuple[str, str]]:
    """Return facts of the host and of the way in which guests were counted."""
    host = record.host
    rows = [
        ("accelerator", record.accelerator_reason or record.accelerator or "unknown"),
        ("CPU", host.get("cpu_model")),
        ("CPUs", host.get("cpus_allowed")),
        ("kernel", host.get("kernel_release")),
        ("QEMU", host.get("qemu")),
        ("image", record.image),
        ("search", f"{record.search}, at most {record.most} guests ({record.most_by})"),
        ("seed", record.seed),
        ("labctl", record.labctl),
    ]
    return [(name, str(value)) for name, value in rows if value is not None]


def _y(axis: Axis, value: float) -> float:
    return round(HEIGHT * (1 - axis.share(value)), 1)
