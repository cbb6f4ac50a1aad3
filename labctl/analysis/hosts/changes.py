"""Compare two fleets of the same study: what changed on the hosts that both measured. Pure.

A host's change is its value in the second fleet less that in the first, on the scale of effects.
The two runs are independent, so that their variances add. Changes are pooled over hosts as effects
are (`judge_fleet`): mean, prediction, hosts apart from the others, groups that differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from labctl.analysis.hosts.fleet import (
    GROUPING,
    LEVEL,
    Control,
    FleetEffect,
    FleetJudgement,
    HostEffect,
    HostFacts,
    HostRow,
    Where,
)
from labctl.analysis.hosts.judge import NOTHING_SAID, judge_fleet
from labctl.analysis.model import EffectKind, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    """Hold a fact that changed from `before` to `after` on so many hosts."""

    fact: str
    before: str
    after: str
    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChange:
    """Hold what changed from one fleet to another. `judged`: its effects are changes, of levels
    (against "") first; `only_a`, `only_b`: hosts that one of the fleets measured."""

    a: str
    b: str
    judged: FleetJudgement
    facts: tuple[FactChange, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]


def change_of_fleets(
    a: str, rows_a: Iterable[HostRow], b: str, rows_b: Iterable[HostRow]
) -> FleetChange:
    """Return what changed from the fleet named `a` to that named `b`, of their primary rows."""
    first, second = _by_place(rows_a), _by_place(rows_b)
    hosts_a, hosts_b = _hosts(first), _hosts(second)
    rows = [_row(first[key], row) for key, row in second.items() if key in first]
    judged = judge_fleet(rows)
    effects = sorted(judged.effects, key=lambda one: one.place.against != "")
    facts = Counter(
        (title, before, after)
        for host in hosts_b
        if host in hosts_a
        for field, title in GROUPING.items()
        if (before := str(getattr(hosts_a[host], field)))
        != (after := str(getattr(hosts_b[host], field)))
    )
    return FleetChange(
        a=a,
        b=b,
        judged=replace(judged, effects=tuple(effects), answers=()),
        facts=tuple(
            FactChange(fact=fact, before=before, after=after, hosts=count)
            for (fact, before, after), count in facts.most_common()
        ),
        only_a=tuple(sorted(hosts_a.keys() - hosts_b.keys())),
        only_b=tuple(sorted(hosts_b.keys() - hosts_a.keys())),
    )


_Key = tuple[str, str, Where]


def _by_place(rows: Iterable[HostRow]) -> dict[_Key, HostRow]:
    """Return primary rows by host, accelerator and place."""
    names = Where.__dataclass_fields__
    return {
        (row.host, row.facts.accelerator, Where(**{n: getattr(row.effect, n) for n in names})): row
        for row in rows
        if row.effect.role == Role.PRIMARY
    }


def _hosts(rows: dict[_Key, HostRow]) -> dict[str, HostFacts]:
    return {row.host: row.facts for row in rows.values()}


def _row(before: HostRow, after: HostRow) -> HostRow:
    """Return the change of a host at a place. A verdict or a control that prevents pooling in one
    of the fleets prevents it here."""
    a, b = before.effect, after.effect
    kind = str(EffectKind.RATIO) if b.kind == LEVEL else b.kind
    # `units` are those of one run: the degrees of freedom of both together are more.
    change = replace(
        b,
        kind=kind,
        estimate=b.estimate - a.estimate,
        error=None if None in (a.error, b.error) else math.hypot(a.error or 0, b.error or 0),
        units=min(a.units, b.units),
        boots=min(a.boots, b.boots),
        blocks=min(a.blocks, b.blocks),
        verdict=a.verdict if a.verdict in NOTHING_SAID else b.verdict,
        control=_control(a, b),
    )
    return HostRow(host=after.host, facts=after.facts, effect=change)


def _control(a: HostEffect, b: HostEffect) -> str | None:
    for worst in (Control.FAILED, Control.MISSING, Control.OPEN):
        if str(worst) in (a.control, b.control):
            return str(worst)
    return b.control


def changed(change: FleetChange) -> Iterator[FleetEffect]:
    """Yield the places whose mean changed: the interval of all means together excludes none."""
    for one in change.judged.effects:
        pooled = one.whole.pooled
        if pooled is not None and not pooled.low <= 0 <= pooled.high:
            yield one
