"""Answer which groups of hosts may take a tuning. Pure.

A group may take a tuning where a host of it that was not measured is predicted to lose nowhere as
much as the study calls harmful, and where its mean effect improves a primary metric somewhere by at
least the margin. Everywhere is an intersection of claims, so each prediction stands at its own 95 %
(R. L. Berger, Technometrics 24, 1982, 295-300); somewhere is one of several, so the means hold
together (Bonferroni over all places; of groups over facts and groups as well).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from labctl.analysis.effects import on_scale
from labctl.analysis.fleet.fleet_model import (
    ALL_HOSTS,
    FleetEffect,
    GroupAnswer,
    GroupEffect,
    Place,
    Take,
)
from labctl.analysis.hosts import Pooled
from labctl.analysis.model import EffectKind
from labctl.base.units import Better
from labctl.base.wording import place_in_words


def answers(effects: Iterable[FleetEffect]) -> Iterator[GroupAnswer]:
    """Yield an answer for each tuning and each group of hosts: for all hosts, or where groups by
    some fact differ in an effect of the tuning, for each of those groups."""
    by_tuning: dict[tuple[str, str], list[FleetEffect]] = {}
    for one in effects:
        by_tuning.setdefault((one.place.tuning, one.place.accelerator), []).append(one)
    for arm, places in by_tuning.items():
        fact = differing_fact(places)
        if not fact:
            at = [(one, group_effect(one, "", ALL_HOSTS)) for one in places]
            yield _answer(arm, ALL_HOSTS, "", at)
            continue
        groups = dict.fromkeys(
            group.group
            for one in places
            for split in one.splits
            if split.fact == fact
            for group in split.groups
        )
        for group in groups:
            at = [(one, group_effect(one, fact, group)) for one in places]
            yield _answer(arm, group, fact, at)


def differing_fact(places: Iterable[FleetEffect]) -> str:
    """Return the fact whose groups differ the most clearly in these places; "" where none do."""
    found = [
        (split.p, split.fact)
        for one in places
        for split in one.splits
        if split.differs and split.p is not None
    ]
    return min(found)[1] if found else ""


def group_effect(one: FleetEffect, fact: str, name: str) -> GroupEffect:
    """Return the effect of a group by `fact` at a place; with fact "" that of all hosts."""
    if not fact:
        return one.whole
    for split in one.splits:
        for group in split.groups:
            if split.fact == fact and group.group == name:
                return group
    return GroupEffect(group=name, hosts=(), pooled=None, why="no host of it was measured there")


def _answer(
    arm: tuple[str, str], group: str, by: str, at: Sequence[tuple[FleetEffect, GroupEffect]]
) -> GroupAnswer:
    """Return the answer for an arm, a tuning under an accelerator."""
    hosts = max((len(of.hosts) for _, of in at), default=0)

    def answer(
        code: Take, why: str, one: FleetEffect | None = None, of: GroupEffect | None = None
    ) -> GroupAnswer:
        return GroupAnswer(
            tuning=arm[0],
            accelerator=arm[1],
            group=group,
            by=by,
            hosts=hosts,
            code=code,
            why=why,
            place=None if one is None else one.place,
            pooled=None if of is None else of.pooled,
        )

    for one, of in at:
        if of.pooled is not None and _harms(one, of.pooled):
            return answer(Take.HARM, f"its mean effect is a loss in {_where(one)}", one, of)
    for one, of in at:
        if of.pooled is None:
            return answer(Take.FEW, f"{of.why} in {_where(one)}")
    for one, of in at:
        if of.pooled is not None and not _safe(one, of.pooled):
            why = f"a host that was not measured may lose what counts as harm in {_where(one)}"
            return answer(Take.OPEN, why, one, of)
    for one, of in at:
        if of.pooled is not None and improves(one, of.pooled):
            why = (
                f"nowhere is a host predicted to lose what counts as harm, and {_where(one)} gains"
            )
            return answer(Take.TAKE, why, one, of)
    return answer(Take.OPEN, "no primary metric is shown to improve by the threshold")


def _where(one: FleetEffect) -> str:
    return place_in_words(one.place.workload, one.place.condition)


def sign_of(place: Place) -> float:
    """Return 1 where more is better, -1 where less is, 0 where neither."""
    return {Better.HIGHER: 1.0, Better.LOWER: -1.0}.get(Better(place.better), 0.0)


def _kind(one: FleetEffect) -> EffectKind:
    return EffectKind(one.place.kind)


def _harms(one: FleetEffect, of: Pooled) -> bool:
    sign, loss = sign_of(one.place), one.no_worse_than
    worse_than_none = of.high < 0 if sign > 0 else of.low > 0
    if sign == 0 or loss is None:
        return False
    return worse_than_none and sign * of.mean <= -on_scale(loss, _kind(one))


def _safe(one: FleetEffect, of: Pooled) -> bool:
    """Return whether the prediction excludes the loss; where no direction is the better one, or no
    size of a loss applies, it can't."""
    sign, loss = sign_of(one.place), one.no_worse_than
    worst = of.new_low if sign > 0 else -of.new_high
    return sign != 0 and loss is not None and worst > -on_scale(loss, _kind(one))


def improves(one: FleetEffect, of: Pooled) -> bool:
    """Return whether a mean is a gain by the margin at least, its interval excluding none."""
    sign, margin = sign_of(one.place), one.margin
    better = of.low > 0 if sign > 0 else of.high < 0
    if sign == 0 or margin is None:
        return False
    return better and sign * of.mean >= on_scale(margin, _kind(one))
