"""Name what got worse over the hosts of a fleet that take a tuning. Pure.

Declared metrics by the pooled effect that the group's answer rests on; others that a guest's user
feels, and what neighbours and the host's CPUs lost, where the interval of the mean lies on the
worse side. That interval is of 95 % by itself, and no claim is made with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from labctl.analysis.fleet.fleet_answer import group_effect, sign_of
from labctl.analysis.fleet.fleet_judge import ALPHA, usable
from labctl.analysis.fleet.fleet_model import FleetJudgement, HostRow, Place, Take
from labctl.analysis.fleet.host_effects import LEVEL, Where
from labctl.analysis.hosts import FEWEST_POOLED, Pooled, pool
from labctl.analysis.model import Role
from labctl.analysis.side_costs import is_side_cost
from labctl.analysis.worse import is_felt

_WHERE = tuple(field.name for field in fields(Where))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorsePlace:
    """Hold a metric whose pooled mean is worse. `group`: of the hosts that are pooled; `judged`:
    it is a primary metric, whose loss the answer has weighed."""

    place: Place
    group: str
    pooled: Pooled
    judged: bool


def price(judged: FleetJudgement, tuning: str, rows: Iterable[HostRow]) -> tuple[WorsePlace, ...]:
    """Return what is worse under a tuning: primary metrics first, then the others.

    `rows`: exploratory effects of the hosts that may take it; others are passed over.
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
