"""Word a fleet's results, alike for terminal and page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labctl.analysis.effects.effects import ratio_of
from labctl.analysis.hosts.fleet import (
    ALL_HOSTS,
    LEVEL,
    Control,
    FactSplit,
    FleetEffect,
    FleetJudgement,
    GroupAnswer,
    GroupEffect,
    Place,
    Point,
    Take,
)
from labctl.analysis.hosts.pool import Pooled
from labctl.base.notation import NOT_AVAILABLE, Shown, changes, differences, quantity, share, size
from labctl.base.units import Unit
from labctl.base.wording import counted, metric_title, place_in_words

SYMBOLS = {Take.TAKE: "▲", Take.HARM: "▼", Take.OPEN: "?", Take.FEW: "–"}
"""Signs of answers without colour; page and terminal colour them as the verdicts of `CLASSES`."""
CLASSES = {
    Take.TAKE: "improves",
    Take.HARM: "regresses",
    Take.OPEN: "inconclusive",
    Take.FEW: "demonstration",
}
_LEADS = {
    Take.TAKE: "{hosts} may take '{tuning}'",
    Take.HARM: "{hosts} must not take '{tuning}'",
    Take.OPEN: "'{tuning}' was not shown to be safe and useful for {hosts}",
    Take.FEW: "Too few hosts measured '{tuning}' for an answer: {hosts}",
}

NOT_THE_CAUSE = (
    "A fact that a group shares need not be the cause: facts that occur together cannot be "
    "separated"
)


def controls_sentence(judged: FleetJudgement) -> str:
    """Return the share of hosts whose A/A control failed, with the hosts that have none."""
    of = judged.controls
    measured = sum(of.values())
    if not measured:
        return "No host has an A/A control"
    failed, missing = of.get(Control.FAILED, 0), of.get(Control.MISSING, 0)
    said = f"The A/A control failed on {failed} of {counted(measured, 'host')}"
    said += f" ({100 * failed / measured:.0f} %)" if failed else ""
    return said + (f"; {missing} {'has' if missing == 1 else 'have'} none" if missing else "")


def answer_lead(answer: GroupAnswer, *, many_accelerators: bool = False) -> str:
    """Return whether a group may take a tuning: "All hosts may take 'pinned'"."""
    hosts = "all hosts" if answer.group == ALL_HOSTS else f"hosts with {answer.by} {answer.group}"
    if answer.code is Take.FEW:
        hosts = counted(answer.hosts, "host") + ("" if answer.group == ALL_HOSTS else f", {hosts}")
    elif answer.hosts < answer.measured:
        hosts += f" (values from {answer.hosts} of {answer.measured})"
    said = _LEADS[answer.code].format(hosts=hosts, tuning=answer.tuning)
    under = f", under {answer.accelerator.upper()}" if many_accelerators else ""
    return said[:1].upper() + said[1:] + under


def answer_why(answer: GroupAnswer) -> str:
    """Return the reason of an answer as a sentence, with the numbers that it rests on."""
    numbers = ""
    if answer.place is not None and answer.pooled is not None:
        place, pooled = answer.place, answer.pooled
        numbers = (
            f" ({metric_title(place.metric)}: mean {mean_shown(place, pooled).estimate}, a host "
            f"not measured {prediction_text(place, pooled)})"
        )
    return f"{answer.why[:1].upper()}{answer.why[1:]}{numbers}."


def place_title(place: Place, *, many_accelerators: bool = False) -> str:
    """Return metric and place of a comparison: "events/s, sysbench-cpu with a noisy neighbour"."""
    where = place_in_words(place.workload, place.condition)
    title = f"{metric_title(place.metric)}, {where}"
    return f"{title}, under {place.accelerator.upper()}" if many_accelerators else title


def shown(place: Place, estimate: float, low: float | None, high: float | None) -> Shown:
    """Return an effect on its scale as reports show effects: "+12 %" with "+9 to +15 %"."""
    if place.is_log:
        ends = [None if end is None else ratio_of(end) for end in (low, high)]
        return changes(ratio_of(estimate), *ends)
    return differences(estimate, low, high, Unit(place.unit))


def mean_shown(place: Place, pooled: Pooled) -> Shown:
    return shown(place, pooled.mean, pooled.low, pooled.high)


def prediction_text(place: Place, pooled: Pooled) -> str:
    """Return the prediction interval of a host that was not measured."""
    return shown(place, pooled.mean, pooled.new_low, pooled.new_high).interval or NOT_AVAILABLE


def tau_text(place: Place, pooled: Pooled) -> str:
    """Return the standard deviation between hosts: "3.1 %", or in the metric's unit."""
    if place.is_log:
        return size(math.expm1(pooled.tau))
    return quantity(pooled.tau, Unit(place.unit))


def group_text(place: Place, group: GroupEffect) -> str:
    """Return a group's mean with its interval, or why it has none."""
    if group.pooled is None:
        return f"not pooled: {group.why}"
    return str(mean_shown(place, group.pooled))


def differ_text(one: FleetEffect) -> str:
    """Return whether the hosts' true effects differ, in a table's cell."""
    if one.p is None:
        return "not said"
    return f"{'yes' if one.differ else 'not shown'} ({p_text(one.p)})"


def heterogeneity_sentence(one: FleetEffect, *, many_accelerators: bool = False) -> str:
    """Return how much hosts differ in an effect, and whether that was shown."""
    where = f"'{one.place.tuning}', {place_in_words(one.place.workload, one.place.condition)}"
    where += f", under {one.place.accelerator.upper()}" if many_accelerators else ""
    spread = ""
    if one.whole.pooled is not None:
        spread = f" (standard deviation {tau_text(one.place, one.whole.pooled)})"
    if one.p is None:
        return f"{where}: whether hosts differ is unknown{spread}."
    said = "hosts differ" if one.differ else "hosts were not shown to differ"
    return f"{where}: {said}, {p_text(one.p)}{spread}."


def p_text(p: float) -> str:
    """Return "p = 0.29", or "p < 0.0001"."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def split_sentence(one: FleetEffect, split: FactSplit, *, many_accelerators: bool = False) -> str:
    """Return how the groups of a fact differ in a tuning's effect."""
    groups = "; ".join(
        f"{group.group}: {group_text(one.place, group)} ({counted(len(group.hosts), 'host')})"
        for group in split.groups
    )
    return (
        f"'{one.place.tuning}' in {place_title(one.place, many_accelerators=many_accelerators)} "
        f"differs by {split.fact} "
        f"({p_text(split.p or 0.0)}): {groups}"
    )


def differing(judged: FleetJudgement) -> Iterator[tuple[FleetEffect, FactSplit]]:
    """Yield the facts whose groups differ."""
    for one in judged.effects:
        for split in one.splits:
            if split.differs:
                yield one, split


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartLine:
    """Word one host that stands apart: where, effect or level, by how much."""

    host: str
    what: str
    here: str
    others: str
    change: str
    p: str


def apart_lines(judged: FleetJudgement) -> list[ApartLine]:
    """Return the hosts that stand apart, by host: in an effect, or in the baseline's own level."""
    lines = []
    many = len(judged.accelerators) > 1
    for one in judged.effects:
        title = place_title(one.place, many_accelerators=many)
        is_level = not one.place.against  # of a change between two fleets
        what = f"{'level' if is_level else 'effect'} of '{one.place.tuning}' on {title}"
        lines += [_line(point, what, one.place) for point in one.points]
    for level in judged.levels:
        title = place_title(level.place, many_accelerators=many)
        what = f"level of '{level.place.tuning}': {title}"
        lines += [_line(point, what, level.place) for point in level.points]
    return sorted(filter(None, lines), key=lambda line: (line.host, line.what))


def _line(point: Point, what: str, place: Place) -> ApartLine | None:
    """Return None for a host that is not apart."""
    if not point.is_apart or point.p is None or point.typical is None:
        return None
    return ApartLine(
        host=point.host,
        what=what,
        here=value_text(place, point.estimate),
        others=value_text(place, point.typical),
        change=shown(place, point.estimate - point.typical, None, None).estimate,
        p=p_text(point.p),
    )


def value_text(place: Place, estimate: float) -> str:
    """Return an effect, or a level in its unit, without an interval."""
    if place.kind == LEVEL:
        return quantity(ratio_of(estimate), Unit(place.unit), place.metric)
    return shown(place, estimate, None, None).estimate


def apart_title(judged: FleetJudgement, lines: Sequence[ApartLine]) -> str:
    """Return the heading of the outlier hosts; "No outlier hosts" needs compared hosts."""
    if lines:
        return "Outlier hosts"
    if any(point.p is not None for _, point in judged.all_points()):
        return "No outlier hosts"
    return "Outlier hosts: too few hosts to compare"


def what_apart_says(judged: FleetJudgement) -> str:
    """Return the meaning of an empty list of hosts apart, or how often a listed host is a false
    alarm."""
    return (
        f"Among fleets of equal hosts, at most about {share(judged.alpha)} name any host "
        "for its effects, and as many for its levels (docs/calibration.md)"
    )


def no_levels(judged: FleetJudgement) -> str:
    """Return why levels could not be compared anywhere; "" where they could."""
    if not judged.levels:
        return "no host has a level of a primary metric in its baseline"
    if all(level.why for level in judged.levels):
        return judged.levels[0].why
    return ""


def not_measured(judged: FleetJudgement) -> list[tuple[str, str, str]]:
    """Return host, status and reason of the hosts that are not in the tables."""
    return [
        (state.host, state.status, state.reason)
        for state in judged.states
        if state.status != "done"
    ]
