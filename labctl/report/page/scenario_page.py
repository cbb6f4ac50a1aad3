"""Show everything about one workload and condition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labctl.analysis.cells import Scenario, scenario_of
from labctl.analysis.model import Comparison, Diagnostic, Level
from labctl.analysis.side_costs import Price, side_costs_of
from labctl.analysis.view import View
from labctl.analysis.words import shown
from labctl.base.metrics.row import Page
from labctl.base.metrics.table import beginnings
from labctl.base.notation import quantity, share
from labctl.base.wording import cell_levels
from labctl.report import sentences
from labctl.report.page.dots import Invalid
from labctl.report.page.forest import native_reference
from labctl.report.page.pictures import Drawing, Sight, drawings
from labctl.report.price_list import Predictions, predictions
from labctl.store.samples import labels_of

_ALWAYS = beginnings(Page.LARGEST)
_MOSTLY = beginnings(Page.LARGEST, Page.LARGE)
DETAIL: tuple[tuple[str, ...], ...] = (("",), _MOSTLY, _ALWAYS, ())
"""Prefixes of the metrics in a scenario's full table, from all of them to only the primary one."""


_FEWEST_ARMS = 6
_MOST_NUMBERS = 2000
_MOST_PANELS = 192
"""Limit for the whole page, which must stay below 2 MB even with ten thousand trials."""


@dataclass(frozen=True, slots=True)
class Room:
    """Hold what fits into a page: arms in each picture (the tables have all), and, as one of
    DETAIL, how the metrics begin that the tables of all numbers have."""

    arms: int
    detail: tuple[str, ...]

    @property
    def whole(self) -> bool:
        return self.detail == DETAIL[0]


def room_for(view: View) -> Room:
    """Return as much as keeps the page below 2 MB."""
    levels = view.judgement.levels
    fitting = (
        detail
        for detail in DETAIL
        if sum(_wanted(view, level, detail) for level in levels) <= _MOST_NUMBERS
    )
    arms = max(_FEWEST_ARMS, _MOST_PANELS // max(1, len(view.places)))
    return Room(arms, next(fitting, DETAIL[-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownChange:
    """Show a comparison as text."""

    tuning: str
    against: str
    effect: str
    interval: str
    confidence: str
    symbol: str
    verdict: str
    verdict_class: str
    holm: bool
    blocks: int
    boots: int
    left_out: str


@dataclass(frozen=True, slots=True)
class Number:
    """Show one metric of one arm: its typical value and its changes, "" where there are none."""

    arm: str
    typical: str
    against_baseline: str
    against_native: str
    blocks: int


@dataclass(frozen=True, slots=True)
class Metric:
    title: str
    source: str
    numbers: tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class SideCosts:
    """Hold what a tuning did to each party of the header; None where it isn't known."""

    tuning: str
    prices: tuple[Price | None, ...]


@dataclass(frozen=True, slots=True)
class Buys:
    """Say where the variance comes from, as (level, standard deviation), and what would lower
    it."""

    sentence: str
    levels: tuple[tuple[str, str], ...]
    proposal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    number: int
    title: str
    levels: str
    """Factors and levels of a cell, "" of any other workload."""
    direction: str
    leading: tuple[Drawing, ...]
    """Pictures above what is said in words; `pictures` are those below."""
    pictured: tuple[ShownChange, ...]
    sentences: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]
    buys: tuple[Buys, ...]
    side_cost_header: tuple[str, ...]
    side_costs: tuple[SideCosts, ...]
    pictures: tuple[Drawing, ...]
    predicted: Predictions
    drawn: int
    """Arms in its pictures, where there isn't room for all of them; else 0."""
    metrics: tuple[Metric, ...]


def section(view: View, place: Scenario, number: int, invalid: Invalid, room: Room) -> Section:
    """Return everything about one scenario, as far as there is room."""
    shown = view.spotlight(place, room.arms)
    sight = Sight(view=view, place=place, shown=shown, invalid=invalid)
    said = [*sentences.calibrated(view, place), *sentences.inconclusive(view, place)]
    said += [*sentences.harmless(view, place), *sentences.holm(view, place)]
    said += sentences.left_out(view, place)
    said += [check.sentence for check in view.checks(place)]
    native = native_reference(view, place)
    pictured = [*view.pictured(place), *([native] if native is not None else [])]
    side_costs = [(tuning, side_costs_of(view, tuning, place)) for tuning in view.candidates]
    header = tuple(dict.fromkeys(price.who for _, prices in side_costs for price in prices))
    return Section(
        number=number,
        title=place.title,
        levels="; ".join(f"{name} = {level}" for name, level in cell_levels(place.workload)),
        direction=sentences.direction(view, place),
        leading=tuple(drawings(sight, leads=True)),
        pictured=tuple(map(change, pictured)),
        sentences=tuple(said),
        diagnostics=tuple(
            one
            for one in view.diagnostics(place)
            # A grave one stands above, among what could change the answer.
            if not any(one.sentence in warning for warning in view.judgement.warnings)
        ),
        buys=tuple(
            Buys(item.sentence, *sentences.spreads(view, place, item))
            for item in view.judgement.precision
            if scenario_of(item) == place
        ),
        side_cost_header=header,
        side_costs=tuple(
            SideCosts(
                tuning, tuple({price.who: price for price in prices}.get(who) for who in header)
            )
            for tuning, prices in side_costs
            if prices
        ),
        pictures=tuple(drawings(sight, leads=False)),
        predicted=predictions(view, place),
        drawn=len(shown) if len(shown) < len(view.tunings) else 0,
        metrics=tuple(_metrics(view, place, room.detail)),
    )


def change(item: Comparison) -> ShownChange:
    effect, interval = shown(item)
    return ShownChange(
        tuning=item.tuning,
        against=item.against,
        effect=effect,
        interval=interval or ("no interval" if item.low is None else "too wide"),
        confidence=share(item.confidence),
        symbol=item.verdict.row.symbol if item.verdict is not None else "",
        verdict=item.verdict.shown if item.verdict is not None else "",
        verdict_class=item.verdict.css_class if item.verdict is not None else "",
        holm=item.by_holm,
        blocks=len(item.blocks),
        boots=item.boots,
        left_out=", ".join(map(str, item.left_out)),
    )


def _wanted(view: View, level: Level, detail: tuple[str, ...]) -> bool:
    if {"reason", "vcpu"} <= labels_of(level.metric).keys():
        return False  # a number for each reason of each vCPU: the JSON has them
    return level.metric == view.primary(level.workload) or level.metric.startswith(detail)


def _metrics(view: View, place: Scenario, detail: tuple[str, ...]) -> Iterable[Metric]:
    by_metric: dict[str, dict[str, Level]] = {}
    primary = view.primary(place.workload)
    here = (level for level in view.levels(place) if _wanted(view, level, detail))
    for level in sorted(here, key=lambda level: (level.metric != primary, level.metric)):
        by_metric.setdefault(level.metric, {})[level.tuning] = level
    changes: dict[tuple[str, str], list[Comparison]] = {}
    for item in view.comparisons(place):
        changes.setdefault((item.metric, item.tuning), []).append(item)
    for metric, levels in by_metric.items():
        numbers = tuple(
            _number(view, levels[arm], changes.get((metric, arm), ()))
            for arm in view.tunings
            if arm in levels
        )
        sources = sorted({level.source for level in levels.values()})
        yield Metric(view.title(place.workload, metric), ", ".join(sources), numbers)


def _number(view: View, level: Level, changes: Sequence[Comparison]) -> Number:
    found = {item.against: item for item in changes}
    baseline = found.pop(view.baseline, None)
    return Number(
        arm=level.tuning,
        typical=quantity(level.typical, level.unit),
        against_baseline=str(shown(baseline)) if baseline is not None else "",
        against_native=", ".join(f"{shown(item)} vs {against}" for against, item in found.items()),
        blocks=len(level.values),
    )
