"""Show a fleet as one page: the answer, a caterpillar plot per effect, who and what differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labctl.analysis.fleet.fleet_model import FleetEffect, FleetJudgement, FleetLevel, Point
from labctl.base.notation import NOT_AVAILABLE
from labctl.base.wording import counted
from labctl.report import fleet_words as words
from labctl.report.page.caterpillar import Caterpillar, caterpillar
from labctl.report.page.terms import Terms
from labctl.report.templating import template


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
        apart=words.apart_lines(judged),
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
