"""Write the report as one self-contained page: no network, no script, no other file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from labctl.analysis.answer.record import SideCost
from labctl.analysis.answer.view import View
from labctl.analysis.answer.words import shown
from labctl.analysis.answer.worse import side_costs_of
from labctl.analysis.effects.cells import Scenario, scenario_of
from labctl.analysis.factors import (
    contrast_shown,
    factor_title,
    finding_words,
    group_title,
    levels_title,
    notes,
)
from labctl.analysis.model import Comparison, Diagnostic, Finding, Judgement, Level
from labctl.base.cpus import format_cpus, parse_cpus
from labctl.base.metrics.row import Page
from labctl.base.metrics.table import beginnings
from labctl.base.notation import quantity, share
from labctl.base.wording import cell_levels, counted
from labctl.report import sentences
from labctl.report.arm_table import ArmTable, arm_tables, explanation, host_line
from labctl.report.page import appendix, dots
from labctl.report.page.dots import Invalid
from labctl.report.page.factor_pictures import Heatmap, Interaction, heatmap, interaction
from labctl.report.page.forest import native_reference
from labctl.report.page.overview import overviews
from labctl.report.page.pictures import Drawing, Sight, drawings
from labctl.report.page.study_heatmaps import StudyHeatmap, study_heatmaps
from labctl.report.page.terms import Terms
from labctl.report.price_list import Predictions, predictions
from labctl.report.study_parts import StudyPart, study_part
from labctl.report.templating import template
from labctl.store.jsonfile import check_folder, write_bytes, write_output
from labctl.store.records.run_record import PinData, PinGroup, RecordedPins, RunRecord
from labctl.store.run_folder import PAGE, LoadedRun
from labctl.store.samples import labels_of

# Show the effects of factors on the page: tables, and pictures of two factors.


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRow:
    arm: str
    factor: str
    levels: str
    estimate: str
    interval: str
    finding: str
    is_real: bool
    values: str


@dataclass(frozen=True, slots=True)
class EffectTable:
    title: str
    rows: tuple[EffectRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorPart:
    factors: tuple[tuple[str, str, str], ...]
    """Name and levels of each factor, and the unit that gives one value: block or boot."""
    tables: tuple[EffectTable, ...]
    interaction: Interaction | None
    heatmap: Heatmap | None
    heatmaps: tuple[StudyHeatmap, ...]
    """Pictures that the study asks for."""
    notes: tuple[str, ...]


def factor_part(view: View) -> FactorPart | None:
    """Return the part for the page; None for a run without factors."""
    analysis = view.judgement.factors
    if analysis is None:
        return None
    tables = [
        EffectTable(
            title,
            tuple(
                EffectRow(
                    arm=one.arm,
                    factor=factor_title(one),
                    levels=levels_title(one),
                    estimate=contrast_shown(one).estimate,
                    interval=contrast_shown(one).interval,
                    finding=finding_words(one),
                    is_real=one.finding in (Finding.REAL, Finding.SMALL),
                    values=counted(len(one.values), one.per) if one.paired else "unpaired",
                )
                for one in found
            ),
        )
        for title, found in groupby(sorted(analysis.contrasts, key=group_title), key=group_title)
    ]
    return FactorPart(
        factors=tuple(
            (name, ", ".join(of.levels), "boot" if of.own_boot else "block")
            for name, of in analysis.factors.items()
        ),
        tables=tuple(tables),
        interaction=interaction(analysis),
        heatmap=heatmap(analysis),
        heatmaps=tuple(study_heatmaps(view)),
        notes=tuple(notes(analysis)),
    )


# Draw the pin plan: the host's cores, each with its CPUs and the threads on them.


WIDTH = 168
_LINE = 18
_CHIP = 22
_PADDING = 8
_LONGEST = 18
"""Letters that fit into a tile."""

_KINDS = (("vCPU", "vcpu"), ("emulator", "emulator"), ("iothread", "iothread"))
_MOST_CORES = 256
_CPU_LIST = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?){0,999}")


@dataclass(frozen=True, slots=True)
class Chip:
    """Show a role on a CPU. `kind` gives its colour, `text` its name."""

    y: int
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class DrawnCpu:
    y: int
    name: str
    chips: tuple[Chip, ...]


@dataclass(frozen=True, slots=True)
class Core:
    """Show a core's tile; `name` is "" where only CPUs are known."""

    name: str
    cpus: tuple[DrawnCpu, ...]
    height: int
    description: str


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    title: str
    cores: tuple[Core, ...]
    free: str


@dataclass(frozen=True, slots=True)
class PinMap:
    """Show the pin plan. `rows`: the table behind the picture, with CPU, core and threads."""

    strategy: str
    groups: tuple[DrawnGroup, ...]
    rows: tuple[tuple[str, str, str], ...]
    picture: str
    reasons: tuple[str, ...]


def pin_maps(record: RunRecord) -> list[PinMap]:
    """Return the run's pin plan, and those of other strategies that its tunings used."""
    first = {"": record.pin_plan} if record.pin_plan else {}
    found = [_pin_map(name, plan) for name, plan in {**first, **record.pin_plans}.items()]
    return [pins for pins in found if pins.groups or pins.picture]


def _pin_map(strategy: str, plan: RecordedPins) -> PinMap:
    groups = list(map(_group, plan.layout)) or list(_flat(plan.data))
    return PinMap(
        strategy=strategy or plan.data.strategy or "",
        groups=tuple(groups),
        rows=tuple(
            (cpu.name, core.name, ", ".join(chip.text for chip in cpu.chips) or "free")
            for group in groups
            for core in group.cores
            for cpu in core.cpus
        ),
        picture=plan.picture,
        reasons=plan.reasons,
    )


def _group(group: PinGroup) -> DrawnGroup:
    cores = group.cores[:_MOST_CORES]
    return DrawnGroup(
        title=group.title,
        cores=tuple(_core(f"core {core.core}", core.cpus) for core in cores),
        free=group.free,
    )


def _flat(data: PinData) -> Iterator[DrawnGroup]:
    """Yield CPUs without cores, for a plan whose cores were not recorded."""
    roles: dict[int, list[str]] = {}
    for number, cpu in data.vcpus.items():
        roles.setdefault(cpu, []).append(f"vCPU {number}")
    named = {"emulator": data.emulator}
    named |= {f"iothread {number}": cpus for number, cpus in data.iothreads.items()}
    for role, text in (*named.items(), ("housekeeping", data.housekeeping)):
        for cpu in sorted(_cpus(text)):
            roles.setdefault(cpu, []).append(role)
    if roles:
        cores = [_core("", {str(cpu): roles[cpu]}) for cpu in sorted(roles)[:_MOST_CORES]]
        free = _cpus(data.online) - roles.keys()
        yield DrawnGroup("", tuple(cores), format_cpus(free))


def _cpus(text: str | None) -> frozenset[int]:
    """Return a CPU list; empty for anything else, a list of millions of CPUs included."""
    if text is None or _CPU_LIST.fullmatch(text) is None:
        return frozenset()
    try:
        return parse_cpus(text)
    except ValueError:
        return frozenset()


def _core(name: str, cpus: Mapping[str, Sequence[str]]) -> Core:
    y = _PADDING + (_LINE if name else 0)
    drawn = []
    for number, roles in cpus.items():
        top = y
        y += _LINE + 4
        chips = []
        for role in roles:
            chips.append(Chip(y, role[:_LONGEST], _kind(role)))
            y += _CHIP
        drawn.append(DrawnCpu(top, f"CPU {number}"[:_LONGEST], tuple(chips)))
        y += _PADDING if chips else 2
    said = "; ".join(
        f"{cpu.name}: {', '.join(chip.text for chip in cpu.chips) or 'free'}" for cpu in drawn
    )
    return Core(name, tuple(drawn), y + 2, said)


def _kind(role: str) -> str:
    return next((kind for start, kind in _KINDS if role.startswith(start)), "housekeeping")


# Show everything about one workload and condition.


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
    """Hold the limits of a page: arms in each picture (the tables have all), and, as one of DETAIL,
    the prefixes of the metrics in the tables of all numbers."""

    arms: int
    detail: tuple[str, ...]

    @property
    def whole(self) -> bool:
        return self.detail == DETAIL[0]


def room_for(view: View) -> Room:
    """Return limits that keep the page below 2 MB."""
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
    """Show one metric of one arm: its typical value and its changes, "" if it has none."""

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
    """Hold a tuning's effect on each party of the header; None if it is unknown."""

    tuning: str
    prices: tuple[SideCost | None, ...]


@dataclass(frozen=True, slots=True)
class Buys:
    """Hold the components of the variance as (level, standard deviation), and how to lower it."""

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
    """Pictures above the text; `pictures` are those below it."""
    pictured: tuple[ShownChange, ...]
    sentences: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]
    buys: tuple[Buys, ...]
    side_cost_header: tuple[str, ...]
    side_costs: tuple[SideCosts, ...]
    pictures: tuple[Drawing, ...]
    predicted: Predictions
    drawn: int
    """Number of arms in its pictures if not all have room, else 0."""
    metrics: tuple[Metric, ...]


def section(view: View, place: Scenario, number: int, invalid: Invalid, room: Room) -> Section:
    """Return everything about one scenario that has room."""
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
            # A grave warning stands at the top of the page, among the caveats.
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


# Give the template all keys that it reads: one that an old or broken run lacks is None.

_OPEN_WARNINGS = 4
"""Warnings that are not folded, the gravest first: more would hide the verdicts."""
_MOST_ARMS = 12
"""Rows of an arm table that are not folded."""
_MOST_TABLES = 4
"""Limit on arm tables on the first screens; the sections have the numbers of the others."""
_COLUMNS = 4
"""Places side by side: as many as fit on paper."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """Show a tuning in a scenario: its verdict, and its side costs."""

    change: ShownChange
    side_costs: tuple[SideCost, ...]


@dataclass(frozen=True, slots=True)
class _MatrixRow:
    tuning: str
    description: str
    cells: tuple[_Cell | None, ...]


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Show scenarios side by side, with the tunings below and the checks under them."""

    sections: tuple[Section, ...]
    rows: tuple[_MatrixRow, ...]
    checks: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


def page(run: LoadedRun, judgement: Judgement, folder: Path) -> str:
    """Return the page's HTML. `folder` is the run's: the domain XML is read from there."""
    view = View(run, judgement)
    room, attempts = room_for(view), dots.invalid_attempts(view)
    sections = [
        section(view, place, number, attempts, room)
        for number, place in enumerate(view.places, start=1)
    ]
    invalid = appendix.invalid_trials(run)
    pictured = overviews(view)
    more = judgement.added
    arms = [table for table in arm_tables(view) if _is_judged(view, table)]
    factors, study = factor_part(view), study_part(run)
    warnings = [*judgement.warnings, *(f"Incomplete: {text}" for text in view.other_problems)]
    return template("page.html.j2").render(
        run=run,
        record=run.run,
        plan=run.plan,
        judgement=judgement,
        view=view,
        answer=judgement.decision,
        warnings=warnings[:_OPEN_WARNINGS],
        more_warnings=warnings[_OPEN_WARNINGS:],
        arm_tables=arms,
        arm_notes=sorted(dict(note for table in arms for note in table.notes).items()),
        explanation=explanation(arms),
        host_line=host_line(view),
        MOST_ARMS=_MOST_ARMS,
        MOST_TABLES=_MOST_TABLES,
        terms=Terms(),
        overviews=pictured,
        more_compared=sum(len(g.bars) for o in pictured[1:] for g in o.groups)
        + sum(o.left_out for o in pictured),
        contents=_contents(view, run, study, sections, has_invalid=bool(invalid)),
        native_gap=sentences.native_gap(view),
        matrices=[
            _matrix(view, sections[at : at + _COLUMNS]) for at in range(0, len(sections), _COLUMNS)
        ],
        sections=sections,
        factors=factors,
        study=study,
        whole=room.whole,
        added=[(item, change(item)) for item in more.comparisons] if more else [],
        pin_width=WIDTH,
        no_reason=appendix.NO_REASON,
        missing=appendix.missing(judgement.unavailable),
        invalid=invalid[: appendix.MOST_INVALID],
        invalid_left=len(invalid) - appendix.MOST_INVALID,
        invalid_kinds=appendix.invalid_kinds(invalid),
        orders=appendix.orders(run),
        versions=appendix.versions(run),
        facts=appendix.facts(run),
        hashed=appendix.hashed(run),
        skipped=appendix.left_out(run),
        xml=appendix.xml_differences(run, folder, view.baseline),
        pins=pin_maps(run.run),
        notes=run.run.notes,
    )


def _is_judged(view: View, table: ArmTable) -> bool:
    return any(view.judged(table.place, tuning) for tuning in view.candidates)


def write_page(
    run: LoadedRun, judgement: Judgement, folder: Path, target: Path | None = None
) -> Path:
    """Write the page to `target`, by default into the run's folder; returns its path.

    Raises UsageError if the folder does not exist.
    """
    if target is None:
        target = folder / PAGE
        write_bytes(target, page(run, judgement, folder).encode(), below=folder)
    else:
        check_folder(target)
        write_output(target, page(run, judgement, folder).encode())
    return target


def _contents(
    view: View,
    run: LoadedRun,
    study: StudyPart,
    sections: Sequence[Section],
    *,
    has_invalid: bool,
) -> list[tuple[str, str]]:
    """Return the parts of this page, as (anchor, title)."""
    judgement = view.judgement
    parts: list[tuple[str, str, object]] = [
        ("verdicts", "Verdicts", sections and view.candidates),
        *((f"place-{section.number}", section.title, True) for section in sections),
        ("added", "Over all blocks", judgement.added),
        ("factors", "Factors", judgement.factors),
        ("tables", "The study's findings", study.tables),
        ("published", "Published elsewhere", study.published),
        ("unavailable", "Not available", judgement.unavailable),
        ("invalid", "Invalid and skipped", has_invalid or appendix.left_out(run)),
        ("setup", "Configuration", True),
        ("again", "Reproducing the run", True),
        ("understanding", "Understanding this report", True),
    ]
    return [(anchor, title) for anchor, title, there in parts if there]


def _matrix(view: View, sections: Sequence[Section]) -> _Matrix:
    places = [view.places[section.number - 1] for section in sections]
    rows = []
    for tuning in view.candidates:
        cells = []
        for place in places:
            judged = next(iter(view.judged(place, tuning)), None)
            prices = tuple(
                price for price in side_costs_of(view, tuning, place) if price.who != "guest"
            )
            cells.append(_Cell(change(judged), prices) if judged is not None else None)
        rows.append(_MatrixRow(tuning, view.description(tuning), tuple(cells)))
    checks = tuple(
        (arm, tuple(sentences.check_words(view, place, name) for place in places))
        for name, arm in (("control", view.control), ("known_loss", view.known_loss))
    )
    return _Matrix(tuple(sections), tuple(rows), checks)
