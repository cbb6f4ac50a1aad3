"""Show a fleet as one page: answer, caterpillar plot per effect, hosts and facts that differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labctl.analysis.effects.effects import ratio_of
from labctl.analysis.hosts.fleet import FleetEffect, FleetJudgement, FleetLevel, Place, Point
from labctl.base.notation import NOT_AVAILABLE
from labctl.base.units import Better, Unit
from labctl.base.wording import counted
from labctl.report import fleet_words as words
from labctl.report.fleet_words import shown
from labctl.report.page.axis import EffectAxis, Tick, axis_ticks, direction, spanning
from labctl.report.page.terms import Terms
from labctl.report.templating import template

# Lay out a caterpillar plot: hosts by effect, the pooled mean, and the prediction interval.
#
# Positions are percentages of the width, as in a forest plot. Names of more than some dozens of
# hosts have no room: then a host is a line of some pixels, and the table names the hosts apart.


AXIS_HEIGHT = 34
_NAMED = 60
"""Hosts up to which each has a line with its name."""
_NAMED_HEIGHT = 22
_PLOT_HEIGHT = 720
"""Height of a plot of more hosts, unless they are so many that they would touch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLine:
    """Draw one host by its name. `x`: its estimate, `low` to `high`: its interval, in percent of
    the width; `y`: the middle of its line."""

    name: str
    text: str
    y: float
    x: float
    low: float
    high: float
    is_apart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Caterpillar:
    """Draw a place. Of few hosts `lines` has each; of many, `spans` and `dots` are SVG paths of 100
    by `plot_height`, hosts apart in `apart_spans` and `apart_dots`."""

    title: str
    description: str
    axis: str
    plot_height: int
    ticks: tuple[Tick, ...]
    none_x: float
    mean_x: float | None
    mean: tuple[float, float] | None
    prediction: tuple[float, float] | None
    harm_x: float | None
    """Loss that the study calls harmful."""
    lines: tuple[HostLine, ...]
    spans: str
    dots: str
    apart_spans: str
    apart_dots: str

    @property
    def height(self) -> int:
        return self.plot_height + AXIS_HEIGHT


def caterpillar(one: FleetEffect, title: str) -> Caterpillar | None:
    """Return the plot of a place; None if no host has an effect to draw."""
    if not one.points:
        return None
    place, pooled = one.place, one.whole.pooled
    values = [_value(place, point.estimate) for point in one.points]
    ends = [_value(place, end) for point in one.points for end in (point.low, point.high)]
    if pooled is not None:
        ends += [_value(place, end) for end in (pooled.new_low, pooled.new_high)]
    axis = spanning(
        values,
        ends,
        ratio=place.is_log,
        least=1.5 * (one.margin or 0.0),
        better=Better(place.better),
    )
    few = len(one.points) <= _NAMED
    height = _NAMED_HEIGHT * len(one.points) if few else max(_PLOT_HEIGHT, len(one.points) // 2)
    step = height / len(one.points)
    drawn = [
        _line(place, axis, point, step * (number + 0.5)) for number, point in enumerate(one.points)
    ]
    plain = [line for line in drawn if not line.is_apart]
    apart = [line for line in drawn if line.is_apart]
    return Caterpillar(
        title=title,
        description=_description(one),
        axis=_axis_words(place),
        plot_height=height,
        ticks=tuple(axis_ticks(axis, place.is_log, Unit(place.unit))),
        none_x=axis.x(1.0 if place.is_log else 0.0),
        mean_x=None if pooled is None else axis.x(_value(place, pooled.mean)),
        mean=None if pooled is None else _band(place, axis, pooled.low, pooled.high),
        prediction=None if pooled is None else _band(place, axis, pooled.new_low, pooled.new_high),
        harm_x=_harm(one, axis),
        lines=tuple(drawn) if few else (),
        spans="" if few else _spans(plain),
        dots="" if few else _dots(plain),
        apart_spans="" if few else _spans(apart),
        apart_dots="" if few else _dots(apart),
    )


def _value(place: Place, estimate: float) -> float:
    return ratio_of(estimate) if place.is_log else estimate


def _line(place: Place, axis: EffectAxis, point: Point, y: float) -> HostLine:
    low, high = _band(place, axis, point.low, point.high)
    return HostLine(
        name=point.host,
        text=str(shown(place, point.estimate, point.low, point.high)),
        y=round(y, 2),
        x=axis.x(_value(place, point.estimate)),
        low=low,
        high=high,
        is_apart=point.is_apart,
    )


def _band(place: Place, axis: EffectAxis, low: float, high: float) -> tuple[float, float]:
    return axis.reach(_value(place, low), _value(place, high))


def _spans(lines: list[HostLine]) -> str:
    return "".join(f"M{line.low:g} {line.y:g}H{line.high:g}" for line in lines)


def _dots(lines: list[HostLine]) -> str:
    return "".join(f"M{line.x:g} {line.y:g}h0" for line in lines)


def _harm(one: FleetEffect, axis: EffectAxis) -> float | None:
    loss, place = one.no_worse_than, one.place
    if loss is None or place.better == Better.NEITHER:
        return None
    is_higher = place.better == Better.HIGHER
    if place.is_log:
        # On the log scale as far from no change as an equally large gain.
        value = 1 / (1 + loss) if is_higher else 1 + loss
    else:
        value = -loss if is_higher else loss
    return axis.x(value) if axis.holds(value) else None


def _axis_words(place: Place) -> str:
    scale = "logarithmic scale" if place.is_log else place.unit
    return f"{direction(Better(place.better))}, {scale}"


def _description(one: FleetEffect) -> str:
    first, last = one.points[0], one.points[-1]
    ends = [shown(one.place, point.estimate, None, None).estimate for point in (first, last)]
    return (
        f"{len(one.points)} hosts, from {first.host} with {ends[0]} to {last.host} with {ends[1]}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    symbol: str
    css_class: str
    lead: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    fact: str
    group: str
    hosts: int
    mean: str
    prediction: str
    differs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    anchor: str
    tuning: str
    title: str
    mean: str
    interval: str
    prediction: str
    tau: str
    i2: str
    differ: str
    no_test: str
    why: str
    plot: Caterpillar | None
    groups: tuple[_Group, ...]
    rows: tuple[tuple[str, str, str, int, int, str, str], ...]
    left_out: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Levels:
    title: str
    group: str
    hosts: int
    typical: str
    lowest: str
    highest: str
    why: str


def fleet_page(name: str, study: str, judged: FleetJudgement) -> str:
    """Return the page's HTML: no script, nothing from a network."""
    terms = Terms()
    many = len(judged.accelerators) > 1
    apart = words.apart_lines(judged)
    return template("fleet.html.j2").render(
        title=f"{study or 'A study'} on {counted(judged.measured, 'host')}",
        fleet=name,
        judged=judged,
        terms=terms,
        answers=[
            _Answer(
                symbol=words.SYMBOLS[answer.code],
                css_class=words.CLASSES[answer.code],
                lead=words.answer_lead(answer, many_accelerators=many),
                why=words.answer_why(answer),
            )
            for answer in judged.answers
        ],
        sections=[_section(judged, one, number) for number, one in enumerate(judged.effects, 1)],
        apart=apart,
        apart_title=words.apart_title(judged, apart),
        controls=words.controls_sentence(judged),
        what_apart_says=words.what_apart_says(judged),
        no_levels=words.no_levels(judged),
        levels=list(_levels(judged.levels, many)),
        differing=[
            words.split_sentence(one, split, many_accelerators=many)
            for one, split in words.differing(judged)
        ],
        not_the_cause=words.NOT_THE_CAUSE,
        facts=[(fact, list(values.items())) for fact, values in judged.facts.items()],
        not_measured=words.not_measured(judged),
    )


def _section(judged: FleetJudgement, one: FleetEffect, number: int) -> _Section:
    place, pooled = one.place, one.whole.pooled
    many = len(judged.accelerators) > 1
    where = words.place_title(place, many_accelerators=many)
    mean = None if pooled is None else words.mean_shown(place, pooled)
    return _Section(
        anchor=f"effect-{number}",
        tuning=place.tuning,
        title=f"'{place.tuning}': {where}",
        mean=NOT_AVAILABLE if mean is None else mean.estimate,
        interval="" if mean is None else mean.interval,
        prediction=NOT_AVAILABLE if pooled is None else words.prediction_text(place, pooled),
        tau=NOT_AVAILABLE if pooled is None else words.tau_text(place, pooled),
        i2=NOT_AVAILABLE if pooled is None else f"{100 * pooled.share:.0f} %",
        differ=words.differ_text(one),
        no_test=one.why_no_test,
        why=one.whole.why,
        plot=caterpillar(one, f"{place.tuning} against {place.against}, {where}, by host"),
        groups=tuple(_groups(one)),
        rows=tuple(_row(one, point) for point in one.points),
        left_out=one.left_out,
    )


def _groups(one: FleetEffect) -> Iterator[_Group]:
    for split in one.splits:
        differs = "not tested" if split.p is None else "yes" if split.differs else "not shown"
        if split.p is not None:
            differs += f" ({words.p_text(split.p)})"
        for group in split.groups:
            pooled = group.pooled
            yield _Group(
                fact=split.fact,
                group=group.group,
                hosts=len(group.hosts),
                mean=words.group_text(one.place, group),
                prediction=words.prediction_text(one.place, pooled) if pooled else NOT_AVAILABLE,
                differs=differs,
            )


def _row(one: FleetEffect, point: Point) -> tuple[str, str, str, int, int, str, str]:
    effect = words.shown(one.place, point.estimate, point.low, point.high)
    verdict = point.verdict or NOT_AVAILABLE
    apart = ""
    if point.is_apart and point.p is not None:
        apart = f"apart ({words.p_text(point.p)})"
    return point.host, effect.estimate, effect.interval, point.units, point.boots, verdict, apart


def _levels(levels: tuple[FleetLevel, ...], many: bool) -> Iterator[_Levels]:
    for level in levels:
        low, high = level.points[0], level.points[-1]
        yield _Levels(
            title=words.place_title(level.place, many_accelerators=many),
            group=level.group,
            hosts=len(level.points),
            typical=words.value_text(level.place, level.typical),
            lowest=f"{words.value_text(level.place, low.estimate)} ({low.host})",
            highest=f"{words.value_text(level.place, high.estimate)} ({high.host})",
            why=level.why,
        )
