"""Name the hosts that may take a tuning by the fleet's own answer, and why others must not. Pure.

A host may take a tuning where its group may, it was measured in every place of the tuning, and it
stands apart in none: the prediction that its group rests on is of hosts like the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labctl.analysis.effects import on_scale, ratio_of
from labctl.analysis.fleet.fleet_answer import group_effect, improves
from labctl.analysis.fleet.fleet_model import (
    ALL_HOSTS,
    FleetEffect,
    FleetJudgement,
    FleetLevel,
    GroupAnswer,
    Place,
    Point,
    Take,
)
from labctl.analysis.model import EffectKind
from labctl.analysis.verdict_table import Verdict
from labctl.analysis.words import change_text
from labctl.base.units import Unit
from labctl.base.wording import metric_title, place_in_words

_MEASURED = "done"
"""Status of a host whose run is here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBy:
    """Say which hosts may take a tuning. `others`: every other host of the fleet, with the reason;
    both in the fleet's order. `accelerator`: that of the measured guests, several with a comma
    between; "" where no host measured the tuning."""

    tuning: str
    accelerator: str
    hosts: tuple[str, ...]
    others: tuple[tuple[str, str], ...]


def hosts_that_may(judged: FleetJudgement, tuning: str) -> TakenBy:
    """Return which hosts may take a tuning, and why each of the others must not.

    Nothing is raised: a tuning without an answer may be taken by no host.
    """
    places = [one for one in judged.effects if one.place.tuning == tuning]
    arms: defaultdict[str, list[FleetEffect]] = defaultdict(list)
    for one in places:
        arms[one.place.accelerator].append(one)
    known: dict[str, str] = {}
    for accelerator, at in arms.items():
        answers = [
            of for of in judged.answers if (of.tuning, of.accelerator) == (tuning, accelerator)
        ]
        for host, why in _reasons(at, answers):
            known.setdefault(host, why)
    not_done = {
        state.host: f"was not measured: {state.status}" + (f", {state.reason}" * bool(state.reason))
        for state in judged.states
        if state.status != _MEASURED
    }
    everyone = dict.fromkeys([*(state.host for state in judged.states), *sorted(known)])
    absent = f"its run has no primary value of '{tuning}'"
    reasons = {host: not_done.get(host, known.get(host, absent)) for host in everyone}
    taking = tuple(host for host, why in reasons.items() if not why)
    return TakenBy(
        tuning=tuning,
        accelerator=", ".join(sorted(arms)),
        hosts=taking,
        others=tuple((host, why) for host, why in reasons.items() if why),
    )


def advised_tunings(judged: FleetJudgement) -> tuple[str, ...]:
    """Return the tunings that some group of hosts may take, the largest effect first.

    Ordered as a run's own answer orders them: by the places in which the group's mean improves by
    the margin, then by the sum of these means in margins. A tuning counts by its best group.
    """
    found: dict[str, tuple[int, float]] = {}
    for answer in judged.answers:
        if answer.code is Take.TAKE:
            gains = list(_gains(judged, answer))
            rank = (len(gains), sum(gains))
            found[answer.tuning] = max(rank, found.get(answer.tuning, rank))
    return tuple(sorted(found, key=lambda tuning: found[tuning], reverse=True))


def look_first(judged: FleetJudgement, taken: TakenBy) -> tuple[tuple[str, str], ...]:
    """Return hosts that may take a tuning and that somebody should look at before, with the reason:
    a loss by their own run's verdict, a baseline apart from that of hosts alike, or a remark of
    the sweep."""
    among = frozenset(taken.hosts)
    losses = (
        (point.host, f"its own run shows a loss of {_change(one.place, point.estimate)}")
        for one in judged.effects
        if one.place.tuning == taken.tuning
        for point in one.points
        if point.verdict == Verdict.REGRESSES
    )
    remarks = ((state.host, state.reason) for state in judged.states if state.reason)
    found = (*losses, *_levels_apart(judged.levels), *remarks)
    return tuple((host, why) for host, why in found if host in among)


def _reasons(
    places: Sequence[FleetEffect], answers: Sequence[GroupAnswer]
) -> Iterator[tuple[str, str]]:
    """Yield each host of an arm with why it must not take the tuning, "" where it may."""
    by = answers[0].by if answers else ""
    groups = _groups(by, places)
    told = {answer.group: _told(answer) for answer in answers}
    at = [
        (one.place, {point.host: point for point in one.points}, dict(one.left_out))
        for one in places
    ]
    for host in dict.fromkeys(host for _, points, out in at for host in (*points, *out)):
        group = groups.get(host, "") if by else ALL_HOSTS
        apart = (
            _apart(place, points[host])
            for place, points, _ in at
            if host in points and points[host].is_apart
        )
        lacking = (
            f"was not measured in {_where(place)}" + (f": {out[host]}" if host in out else "")
            for place, points, out in at
            if host not in points
        )
        yield host, told.get(group, "") or next(apart, "") or next(lacking, "")


def _apart(place: Place, point: Point) -> str:
    others = "" if point.typical is None else f", on others {_size(place, point.typical)}"
    return f"stands apart: {_change(place, point.estimate)}{others}"


def _groups(fact: str, places: Sequence[FleetEffect]) -> dict[str, str]:
    return {
        host: group.group
        for one in places
        for split in one.splits
        if split.fact == fact
        for group in split.groups
        for host in group.hosts
    }


def _told(answer: GroupAnswer) -> str:
    """Return why hosts of a group must not take a tuning; "" where they may."""
    if answer.code is Take.TAKE:
        return ""
    group = f" for hosts with {answer.by} {answer.group}" if answer.by else ""
    return f"{answer.code}{group}: {answer.why}"


def _gains(judged: FleetJudgement, answer: GroupAnswer) -> Iterator[float]:
    """Yield the means that improve by the margin, in margins."""
    for one in judged.effects:
        if (one.place.tuning, one.place.accelerator) != (answer.tuning, answer.accelerator):
            continue
        pooled = group_effect(one, answer.by, answer.group).pooled
        if pooled is not None and one.margin is not None and improves(one, pooled):
            yield abs(pooled.mean) / on_scale(one.margin, EffectKind(one.place.kind))


def _levels_apart(levels: Sequence[FleetLevel]) -> Iterator[tuple[str, str]]:
    for level in levels:
        for point in level.points:
            if point.is_apart and point.typical is not None:
                change = _change(level.place, point.estimate - point.typical)
                yield point.host, f"its baseline stands apart from that of hosts alike: {change}"


def _change(place: Place, estimate: float) -> str:
    return f"{_size(place, estimate)} in {metric_title(place.metric)}, {_where(place)}"


def _size(place: Place, estimate: float) -> str:
    """Return a change on the scale of effects in words: "+12 %", "−1.20 ms"."""
    if place.is_log:
        return change_text(ratio_of(estimate), EffectKind.RATIO, Unit(place.unit))
    return change_text(estimate, EffectKind.DIFFERENCE, Unit(place.unit))


def _where(place: Place) -> str:
    return place_in_words(place.workload, place.condition)
