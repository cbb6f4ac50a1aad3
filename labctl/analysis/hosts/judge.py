"""Judge a fleet: effects over hosts, hosts that stand apart, groups that differ. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy import special

from labctl.analysis.answer.words import change_text
from labctl.analysis.answer.worse import is_felt, is_side_cost
from labctl.analysis.effects.effects import on_scale, ratio_of
from labctl.analysis.hosts.fleet import (
    ALL_HOSTS,
    GROUPING,
    LEAST_SHARE,
    LEVEL,
    Control,
    FactSplit,
    FleetEffect,
    FleetJudgement,
    FleetLevel,
    GroupAnswer,
    GroupEffect,
    HostFacts,
    HostRow,
    HostState,
    Place,
    Point,
    Take,
    Where,
    answers,
    differing_fact,
    group_effect,
    improves,
    sign_of,
)
from labctl.analysis.hosts.pool import (
    FEWEST_POOLED,
    FEWEST_UNITS,
    FTest,
    Hosts,
    Pooled,
    apart,
    differ,
    groups_differ,
    holm_adjusted,
    moderated,
    pool,
)
from labctl.analysis.model import EffectKind, Role
from labctl.analysis.verdicts.table import Verdict
from labctl.base.units import Unit
from labctl.base.wording import metric_title, place_in_words

# Judge a fleet: each tuning's effect over hosts, hosts that stand apart, groups that differ.
#
# Pure: rows of hosts in, values out. The statistics are in `analysis/hosts/pool.py`; the rules are
# docs/fleet-report.md's.


ALPHA = 0.05
"""Chance of any false claim of a kind: a mean, a host apart, hosts or groups that differ."""

NOTHING_SAID = {
    str(Verdict.DIFFERENT_DURABILITY): "its disk has a different durability guarantee there",
    str(Verdict.BEFORE_LOOK): "its run reached none of the plan's looks",
}
_CONTROLS = {
    str(Control.FAILED): "its A/A control failed: baseline differs from itself",
    str(Control.MISSING): "its A/A control is missing",
}
"""Verdicts and controls of a host's run that prevent pooling, with the reason. A verdict that is
suspended because of a small effect does not: otherwise only hosts with large effects would be
left."""

_LARGEST = 1e60
_WHERE = tuple(field.name for field in fields(Where))

ONE_BOOT = (
    "with one boot, differences between boots and between hosts look the same; give each host "
    "two boots or more"
)


@dataclass(frozen=True, slots=True)
class Here:
    """Hold the hosts that are pooled at a place, from the smallest estimate to the largest."""

    place: Place
    rows: tuple[HostRow, ...]
    left_out: tuple[tuple[str, str], ...]

    @property
    def hosts(self) -> Hosts:
        return Hosts(
            np.array([row.effect.estimate for row in self.rows]),
            np.array([row.effect.error or 0.0 for row in self.rows]),
            np.array([float(row.effect.units) for row in self.rows]),
        )

    def among(self, hosts: frozenset[str]) -> Here:
        """Return the place with some of its hosts."""
        return replace(self, rows=tuple(row for row in self.rows if row.host in hosts))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(row.host for row in self.rows)


def judge_fleet(
    rows: Iterable[HostRow],
    states: Sequence[HostState] = (),
    least_share: float | None = None,
) -> FleetJudgement:
    """Return the judgement of the hosts' rows. `rows`: primary effects and levels; others are
    ignored. `least_share`: of a group's measured hosts, for a claim about it; None: LEAST_SHARE."""
    least_share = LEAST_SHARE if least_share is None else least_share
    primary = [row for row in rows if row.effect.role == Role.PRIMARY]
    effects, levels = _by_place(primary)
    family = max(1, len(effects))
    varying = _varying(effects)
    judged = [_effect(here, varying, ALPHA / family) for here in effects]
    judged = _with_differing_groups(_with_differing(judged))
    judged = _with_hosts_apart(judged, effects)
    found_levels = _levels(levels)
    facts = {row.host: row.facts for here in (*effects, *levels) for row in here.rows}
    fields = {name: field for field, name in GROUPING.items()}
    # Hosts without a usable value count: a claim about a group includes them.
    all_facts = {row.host: row.facts for row in primary if row.effect.kind != LEVEL}

    def measured(accelerator: str, by: str, group: str) -> int:
        return sum(
            one.accelerator == accelerator and (not by or str(getattr(one, fields[by])) == group)
            for one in all_facts.values()
        )

    return FleetJudgement(
        hosts=max(len(states), len(facts)),
        measured=len(facts),
        states=tuple(states),
        alpha=ALPHA,
        confidence=1 - ALPHA / family,
        effects=tuple(judged),
        levels=tuple(found_levels),
        answers=tuple(answers(judged, measured, least_share)),
        facts={
            name: dict(Counter(getattr(one, field) for one in facts.values()).most_common())
            for field, name in GROUPING.items()
        },
        warnings=(*_twins(facts), *_warnings(judged)),
        accelerators=tuple(sorted({one.accelerator for one in facts.values()})),
        controls=_controls(primary),
        least_share=least_share,
    )


_WORST = (Control.FAILED, Control.MISSING, Control.OPEN, Control.PASSED)


def _controls(rows: Iterable[HostRow]) -> dict[Control, int]:
    """Return the states of A/A controls, worst first, with the number of hosts of each."""
    by_host: dict[str, Control] = {}
    for row in rows:
        if row.effect.control is not None:
            states = (Control(row.effect.control), by_host.get(row.host, Control.PASSED))
            by_host[row.host] = min(states, key=_WORST.index)
    counts = Counter(by_host.values())
    return {state: counts[state] for state in _WORST if counts[state]}


def _by_place(rows: Iterable[HostRow]) -> tuple[list[Here], list[Here]]:
    """Return the places of effects, and those of levels."""
    found: defaultdict[Place, list[HostRow]] = defaultdict(list)
    for row in rows:
        where = {name: getattr(row.effect, name) for name in _WHERE}
        place = Place(**where, accelerator=row.facts.accelerator)
        found[place].append(row)
    here = [usable(place, members) for place, members in found.items()]
    return (
        [one for one in here if one.place.kind != LEVEL],
        [one for one in here if one.place.kind == LEVEL],
    )


def usable(place: Place, rows: Iterable[HostRow]) -> Here:
    """Return the hosts of a place whose numbers can be pooled, and the reasons of the others."""
    kept, left_out = [], []
    for row in sorted(rows, key=lambda row: (row.effect.estimate, row.host)):
        one = row.effect
        why = NOTHING_SAID.get(one.verdict or "") or _CONTROLS.get(one.control or "")
        if why is None and not _is_poolable(one.estimate, one.error):
            why = "its numbers cannot come from a measurement"
        if why is None and (one.error is None or one.units < FEWEST_UNITS):
            why = "its blocks show no spread" if one.blocks > 1 else "it has one block"
        if why is None:
            kept.append(row)
        else:
            left_out.append((row.host, why))
    return Here(place, tuple(kept), tuple(left_out))


def _is_poolable(estimate: float, error: float | None) -> bool:
    """Return whether fourth powers of the numbers stay finite: a host may report anything."""
    return abs(estimate) < _LARGEST and (error is None or 1 / _LARGEST < error < _LARGEST)


def _varying(effects: Sequence[Here]) -> list[str]:
    """Return the fields of facts in which hosts that are pooled in any place differ."""
    facts = {row.host: row.facts for here in effects for row in here.rows}
    return [field for field in GROUPING if len({getattr(one, field) for one in facts.values()}) > 1]


def _effect(here: Here, varying: Sequence[str], alpha: float) -> FleetEffect:
    first = next((row.effect for row in here.rows), None)
    test, why = _test(here)
    return FleetEffect(
        place=here.place,
        points=tuple(_points(here)),
        whole=_group(ALL_HOSTS, here, here.names, alpha),
        test=test,
        p=None if test is None else test.p,
        differ=False,
        why_no_test=why,
        splits=tuple(_splits(here, varying, alpha)),
        margin=first.margin if first else None,
        no_worse_than=first.no_worse_than if first else None,
        left_out=here.left_out,
    )


def _test(here: Here) -> tuple[FTest | None, str]:
    if len(here.rows) < 2:
        return None, "at least two hosts are needed"
    if any(row.effect.boots < FEWEST_UNITS for row in here.rows):
        return None, ONE_BOOT
    return differ(here.hosts), ""


def _points(here: Here) -> Iterator[Point]:
    if not here.rows:
        return
    variances, degrees = moderated(here.hosts)
    halves = special.stdtrit(degrees, 1 - ALPHA / 2) * np.sqrt(variances)
    for row, half in zip(here.rows, halves.tolist(), strict=True):
        one = row.effect
        yield Point(
            host=row.host,
            estimate=one.estimate,
            low=one.estimate - half,
            high=one.estimate + half,
            units=one.units,
            boots=one.boots,
            verdict=one.verdict,
        )


def _group(name: str, here: Here, members: Sequence[str], alpha: float) -> GroupEffect:
    """Return the pooled effect of some hosts of a place; the prediction is at 95 % by itself."""
    among = frozenset(members)
    chosen = np.array([row.host in among for row in here.rows], dtype=bool)
    if len(members) < FEWEST_POOLED:
        why = f"at least {FEWEST_POOLED} hosts are needed"
        return GroupEffect(group=name, hosts=tuple(members), pooled=None, why=why)
    pooled = pool(here.hosts.of(chosen), alpha, ALPHA)
    return GroupEffect(group=name, hosts=tuple(members), pooled=pooled)


def _splits(here: Here, varying: Sequence[str], alpha: float) -> Iterator[FactSplit]:
    """Yield the hosts by each fact in which the fleet's hosts differ, even if the remaining hosts
    of this place have one value: the answer for their group depends on this place, too."""
    if not here.rows:
        return
    for field in varying:
        values = [str(getattr(row.facts, field)) for row in here.rows]
        known = sorted(set(values))
        groups = {
            value: [host for host, of in zip(here.names, values, strict=True) if of == value]
            for value in known
        }
        codes = np.array([known.index(value) for value in values])
        test = groups_differ(here.hosts.estimates, codes)
        share = alpha / (len(groups) * len(GROUPING))
        yield FactSplit(
            fact=GROUPING[field],
            groups=tuple(_group(value, here, hosts, share) for value, hosts in groups.items()),
            p=None if test is None else test.p,
            why="" if test else "two groups of at least two hosts are needed",
        )


def _with_hosts_apart(judged: Sequence[FleetEffect], here: Sequence[Here]) -> list[FleetEffect]:
    """Return the effects with each host's distance from the others, over all places together.

    If groups of hosts differ, a host is compared with its own group: two distant groups would look
    like a wide spread, in which no host is far from the others.
    """
    parts = [
        [(one, at.among(group)) for group in _own_groups(one, at)]
        for one, at in zip(judged, here, strict=True)
    ]
    marked = iter(
        _set_apart([(_points_of(one, at), at.hosts) for part in parts for one, at in part])
    )
    found = []
    for one, part in zip(judged, parts, strict=True):
        points = (point for _ in part for point in next(marked))
        ordered = sorted(points, key=lambda point: (point.estimate, point.host))
        found.append(replace(one, points=tuple(ordered)))
    return found


def _own_groups(one: FleetEffect, here: Here) -> list[frozenset[str]]:
    """Return the hosts that are compared with each other."""
    fact = differing_fact([one])
    groups = [
        frozenset(g.hosts) for split in one.splits if split.fact == fact for g in split.groups
    ]
    return groups or ([frozenset(here.names)] if here.rows else [])


def _points_of(one: FleetEffect, here: Here) -> tuple[Point, ...]:
    known = {point.host: point for point in one.points}
    return tuple(known[host] for host in here.names)


def _set_apart(places: Sequence[tuple[tuple[Point, ...], Hosts]]) -> list[tuple[Point, ...]]:
    """Return the points of each place with their distances; Holm's procedure covers all."""
    found = [apart(hosts) for _, hosts in places]
    tested = [p for one in found if one is not None for p in one[1].tolist()]
    adjusted = iter(holm_adjusted(np.array(tested)).tolist())
    return [
        points
        if one is None
        else tuple(
            _with_distance(point, distance, next(adjusted), hosts)
            for point, distance in zip(points, one[0].tolist(), strict=True)
        )
        for (points, hosts), one in zip(places, found, strict=True)
    ]


def _with_distance(point: Point, distance: float, p: float, hosts: Hosts) -> Point:
    if p >= ALPHA:
        return replace(point, distance=distance, p=p)
    own = int(np.argmax(hosts.estimates == point.estimate))
    typical = float(np.median(np.delete(hosts.estimates, own)))
    return replace(point, distance=distance, p=p, is_apart=True, typical=typical)


def _with_differing(judged: Sequence[FleetEffect]) -> list[FleetEffect]:
    tested = [one for one in judged if one.test is not None]
    adjusted = iter(holm_adjusted(np.array([one.test.p for one in tested if one.test])).tolist())
    return [
        one if one.test is None else replace(one, p=(p := next(adjusted)), differ=p < ALPHA)
        for one in judged
    ]


def _with_differing_groups(judged: Sequence[FleetEffect]) -> list[FleetEffect]:
    tested = [split.p for one in judged for split in one.splits if split.p is not None]
    adjusted = iter(holm_adjusted(np.array(tested)).tolist())
    return [
        replace(
            one,
            splits=tuple(
                split
                if split.p is None
                else replace(split, p=(p := next(adjusted)), differs=p < ALPHA)
                for split in one.splits
            ),
        )
        for one in judged
    ]


def _levels(levels: Sequence[Here]) -> list[FleetLevel]:
    """Return the baseline's levels among hosts of one CPU model, kernel and topology."""
    groups: list[tuple[str, Here]] = []
    for here in levels:
        alike: defaultdict[str, list[HostRow]] = defaultdict(list)
        for row in here.rows:
            of = row.facts
            alike[f"{of.cpu_model}, kernel {of.kernel}, {of.topology}"].append(row)
        groups += [
            (name, Here(here.place, tuple(rows), ())) for name, rows in sorted(alike.items())
        ]
    marked = _set_apart([(tuple(_points(here)), here.hosts) for _, here in groups])
    return [
        FleetLevel(
            place=here.place,
            group=name,
            points=points,
            typical=float(np.median([point.estimate for point in points])),
            why=""
            if len(points) > FEWEST_POOLED
            else f"at least {FEWEST_POOLED + 1} similar hosts are needed",
        )
        for (name, here), points in zip(groups, marked, strict=True)
    ]


def _twins(facts: Mapping[str, HostFacts]) -> Iterator[str]:
    """Yield hosts that recorded the same boot of a kernel."""
    by_boot: defaultdict[str, list[str]] = defaultdict(list)
    for host, one in facts.items():
        if one.boot_id:
            by_boot[one.boot_id].append(host)
    for hosts in by_boot.values():
        if len(hosts) > 1:
            yield (
                f"{len(hosts)} of the hosts recorded the same boot of one kernel "
                f"({_few(hosts)}): they are one machine under several names, or containers "
                "on it, and are counted several times."
            )


def _few(hosts: Sequence[str]) -> str:
    return ", ".join(sorted(hosts)[:5]) + (", …" if len(hosts) > 5 else "")


def _warnings(judged: Sequence[FleetEffect]) -> Iterator[str]:
    if any(one.place.accelerator == "tcg" for one in judged):
        yield (
            "Guests were emulated (TCG) on some of these hosts: effects there say little "
            "about virtual machines under KVM."
        )
    if any(one.why_no_test == ONE_BOOT for one in judged):
        yield (
            f"A host has only one boot, so this report cannot say whether hosts differ: {ONE_BOOT}."
        )
    by_reason: defaultdict[str, set[str]] = defaultdict(set)
    for one in judged:
        for host, why in one.left_out:
            by_reason[why].add(host)
    for why, hosts in by_reason.items():
        yield (
            f"{len(hosts)} of the hosts are left out in at least one place ({_few([*hosts])}): "
            f"{why}."
        )


# Name the metrics that get worse on the hosts of a fleet that take a tuning. Pure.
#
# Declared metrics are judged by the pooled effect on which the group's answer rests. Other metrics
# that matter to a guest's user, and losses of neighbours and of the host's CPUs, are named if the
# interval of the mean lies on the worse side. That interval is at 95 % by itself and not a claim.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorsePlace:
    """Hold a metric whose pooled mean is worse. `group`: of the pooled hosts; `judged`: whether it
    is a primary metric, whose loss the answer already considers."""

    place: Place
    group: str
    pooled: Pooled
    judged: bool


def price(judged: FleetJudgement, tuning: str, rows: Iterable[HostRow]) -> tuple[WorsePlace, ...]:
    """Return the metrics that are worse under a tuning: primary metrics first, then the others.

    `rows`: exploratory effects of the hosts that may take it; others are ignored.
    """
    against = {one.place.against for one in judged.effects if one.place.tuning == tuning}
    others = (row for row in rows if row.effect.tuning == tuning and row.effect.against in against)
    return (*_primary(judged, tuning), *_exploratory(others))


def _primary(judged: FleetJudgement, tuning: str) -> Iterator[WorsePlace]:
    for answer in judged.answers:
        if answer.tuning != tuning or answer.code is not Take.TAKE:
            continue
        for one in judged.effects:
            if (one.place.tuning, one.place.accelerator) != (tuning, answer.accelerator):
                continue
            pooled = group_effect(one, answer.by, answer.group).pooled
            if pooled is not None and sign_of(one.place) * pooled.mean < 0:
                yield WorsePlace(place=one.place, group=answer.group, pooled=pooled, judged=True)


def _exploratory(rows: Iterable[HostRow]) -> Iterator[WorsePlace]:
    found: defaultdict[Place, list[HostRow]] = defaultdict(list)
    for row in rows:
        one = row.effect
        matters = is_felt(one.metric) or is_side_cost(one.metric)
        if one.role == Role.EXPLORATORY and matters:
            where = {name: getattr(one, name) for name in _WHERE}
            found[Place(**where, accelerator=row.facts.accelerator)].append(row)
    for place, members in found.items():
        here = usable(place, members)
        if place.kind == LEVEL or len(here.rows) < FEWEST_POOLED:
            continue
        pooled = pool(here.hosts, ALPHA, ALPHA)
        sign = sign_of(place)
        if max(sign * pooled.low, sign * pooled.high) < 0:
            yield WorsePlace(place=place, group="", pooled=pooled, judged=False)


# Name the hosts that may take a tuning by the fleet's answer, and why others must not. Pure.
#
# A host may take a tuning if its group may, it was measured in every place of the tuning, and it is
# apart in none: the group's prediction is for hosts like the others.


_MEASURED = "done"
"""Status of a host whose run was fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBy:
    """List the hosts that may take a tuning. `others`: every other host of the fleet, with the
    reason; both in the fleet's order. `accelerator`: of the measured guests, several separated by
    commas; "" if no host measured the tuning."""

    tuning: str
    accelerator: str
    hosts: tuple[str, ...]
    others: tuple[tuple[str, str], ...]


def hosts_that_may(judged: FleetJudgement, tuning: str) -> TakenBy:
    """Return the hosts that may take a tuning, and the reason of each other host.

    Never raises: no host may take a tuning without an answer.
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

    The order is that of a run's answer: by the number of places in which the group's mean improves
    by the margin, then by the sum of these means in margins. A tuning's best group counts.
    """
    found: dict[str, tuple[int, float]] = {}
    for answer in judged.answers:
        if answer.code is Take.TAKE:
            gains = list(_gains(judged, answer))
            rank = (len(gains), sum(gains))
            found[answer.tuning] = max(rank, found.get(answer.tuning, rank))
    return tuple(sorted(found, key=lambda tuning: found[tuning], reverse=True))


def look_first(judged: FleetJudgement, taken: TakenBy) -> tuple[tuple[str, str], ...]:
    """Return hosts that may take a tuning but should be inspected first, with the reason: a loss by
    their own run's verdict, a baseline apart from that of similar hosts, or a remark of the
    sweep."""
    among = frozenset(taken.hosts)
    losses = (
        (point.host, f"its run shows a loss of {_change(one.place, point.estimate)}")
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
    """Yield each host of an arm with the reason why it must not take the tuning, "" if it may."""
    by = answers[0].by if answers else ""
    groups = _groups(by, places)
    told = {answer.group: _refusal(answer) for answer in answers}
    at = [
        (one.place, {point.host: point for point in one.points}, dict(one.left_out))
        for one in places
    ]
    for host in dict.fromkeys(host for _, points, out in at for host in (*points, *out)):
        group = groups.get(host, "") if by else ALL_HOSTS
        apart = (
            _stands_apart(place, points[host])
            for place, points, _ in at
            if host in points and points[host].is_apart
        )
        lacking = (
            f"was not measured in {_where(place)}" + (f": {out[host]}" if host in out else "")
            for place, points, out in at
            if host not in points
        )
        yield host, told.get(group, "") or next(apart, "") or next(lacking, "")


def _stands_apart(place: Place, point: Point) -> str:
    others = "" if point.typical is None else f", on others {_size(place, point.typical)}"
    return f"is an outlier: {_change(place, point.estimate)}{others}"


def _groups(fact: str, places: Sequence[FleetEffect]) -> dict[str, str]:
    return {
        host: group.group
        for one in places
        for split in one.splits
        if split.fact == fact
        for group in split.groups
        for host in group.hosts
    }


def _refusal(answer: GroupAnswer) -> str:
    """Return why hosts of a group must not take a tuning; "" if they may."""
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
                yield point.host, f"its baseline is an outlier among similar hosts: {change}"


def _change(place: Place, estimate: float) -> str:
    return f"{_size(place, estimate)} in {metric_title(place.metric)}, {_where(place)}"


def _size(place: Place, estimate: float) -> str:
    """Return a change on the scale of effects in words: "+12 %", "−1.20 ms"."""
    if place.is_log:
        return change_text(ratio_of(estimate), EffectKind.RATIO, Unit(place.unit))
    return change_text(estimate, EffectKind.DIFFERENCE, Unit(place.unit))


def _where(place: Place) -> str:
    return place_in_words(place.workload, place.condition)
