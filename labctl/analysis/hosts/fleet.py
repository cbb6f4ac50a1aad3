"""Define the results of a fleet's analysis: effects of hosts, and groups that may take a tuning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from labctl.analysis.effects.cells import Cell, scenario_of
from labctl.analysis.effects.effects import alone, on_scale
from labctl.analysis.hosts.pool import FTest, Pooled
from labctl.analysis.model import Comparison, EffectKind, Role, RunCheck
from labctl.analysis.verdicts.decide import Decided, decide
from labctl.base.notation import share
from labctl.base.units import Better
from labctl.base.wording import place_in_words, printable
from labctl.store.run_folder import LoadedRun

# List one host's contribution to a fleet: effects and baseline levels, from its own verdicts.


LEVEL = "level"
"""Kind of a row that holds an arm's typical value instead of an effect."""

NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Hold the facts by which hosts are grouped, as text. `boot_id`: of the host's boot, which
    shows one machine under two names; None if it was not recorded."""

    cpu_model: str
    kernel: str
    firmware: str
    topology: str
    accelerator: str
    boot_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Identify an effect: one tuning against another arm, or an arm's level (`against` ""), for one
    workload, condition and metric."""

    tuning: str
    against: str
    workload: str
    condition: str
    metric: str
    unit: str
    better: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEffect(Where):
    """Hold one effect, or one level, of one host's run.

    `estimate` and `error` are on the scale of effects: logarithms for `kind` "ratio" and "level",
    else in `unit`. `error` is None if the run shows no spread. `boots`: of `blocks` blocks; with 1
    the variance of boots is unknown.
    """

    role: str
    estimate: float
    error: float | None
    units: int
    boots: int
    blocks: int
    verdict: str | None
    margin: float | None
    no_worse_than: float | None
    control: str | None
    """State of the control, for an effect against baseline: `Control`. Unlike the verdict it does
    not depend on the effect, so leaving out hosts by it does not select effects."""


class Control(StrEnum):
    """Name the result of the control's check at a place."""

    PASSED = "passed"
    OPEN = "open"
    """No bias was found, but one beyond the threshold is not excluded."""
    FAILED = "failed"
    MISSING = "missing"


def host_facts(run: LoadedRun) -> HostFacts:
    """Return the facts by which a run's host is compared with others."""
    host = run.run.host
    return HostFacts(
        cpu_model=_text(host.get("cpu_model")),
        kernel=_text(host.get("kernel_release", host.get("kernel"))),
        firmware=_text(host.get("microcode")),
        topology=_text(host.get("topology")),
        accelerator=_text(run.run.accelerator),
        boot_id=_boot_id(run),
    )


def _boot_id(run: LoadedRun) -> str | None:
    """Return None for a redacted run too, because all redacted runs have the same value."""
    found = run.run.host.get("boot_id")
    return _short(found) if isinstance(found, str) and run.run.redacted is None else None


def host_effects(run: LoadedRun) -> list[HostEffect]:
    """Return every comparison of a run, as in its verdicts, and the level of each primary metric in
    the baseline."""
    decided = decide(run)
    controls = {place: _control(of.control) for place, of in decided.checked.items()}
    effects = [
        _of_comparison(one, controls.get(scenario_of(one)))
        for one in decided.comparisons
        if math.isfinite(one.estimate)
    ]
    return [*(one for one in effects if one is not None), *_levels(decided)]


def _control(check: RunCheck) -> Control:
    if check.passed is None:
        return Control.MISSING if check.estimate is None else Control.OPEN
    return Control.PASSED if check.passed else Control.FAILED


def _of_comparison(one: Comparison, control: Control | None) -> HostEffect | None:
    estimate = one.estimate
    if one.kind is EffectKind.RATIO:
        if estimate <= 0:
            return None
        estimate = math.log(estimate)
    return HostEffect(
        tuning=one.tuning,
        against=one.against,
        workload=one.workload,
        condition=one.condition,
        metric=one.metric,
        unit=str(one.unit),
        better=str(one.better),
        kind=str(one.kind),
        role=str(one.role),
        estimate=estimate,
        error=one.error,
        units=one.units,
        boots=one.boots,
        blocks=len(one.blocks),
        verdict=None if one.verdict is None else str(one.verdict),
        margin=one.margin,
        no_worse_than=one.no_worse_than,
        control=None if control is None else str(control),
    )


def _levels(decided: Decided) -> Iterator[HostEffect]:
    """Yield the baseline's primary metrics without values of 0 or less."""
    design, cells = decided.design, decided.cells
    if design.baseline is None:
        return
    for place in design.places:
        primary = design.primaries.get(place.workload)
        if primary is None:
            continue
        series = cells.series.get(Cell(design.baseline, place), {}).get(primary.metric)
        if series is None or series.least <= 0 or series.is_maximum:
            continue
        spread = alone(series, logs=True)
        yield HostEffect(
            tuning=design.baseline,
            against="",
            workload=place.workload,
            condition=place.condition,
            metric=primary.metric,
            unit=str(series.sample.unit),
            better=str(series.sample.better),
            kind=LEVEL,
            role=str(Role.PRIMARY),
            estimate=spread.mean,
            error=spread.error if spread.n > 1 and spread.error > 0 else None,
            units=spread.units,
            boots=spread.boots,
            blocks=spread.n,
            verdict=None,
            margin=None,
            no_worse_than=None,
            control=None,
        )


def _text(value: Any) -> str:
    """Return a recorded fact as one short text; a missing fact has a fixed word."""
    if value is None or value == "":
        return NOT_RECORDED
    if isinstance(value, dict):
        if "unavailable" in value:
            return NOT_RECORDED
        value = ", ".join(f"{key} {item}" for key, item in sorted(value.items()))
    return _short(str(value))


def _short(text: str) -> str:
    return printable(text[:_LONGEST])


_LONGEST = 200
"""Limit on a fact's letters: a host may report anything."""


# Define the results of a fleet's analysis as values. Reports render these and compute nothing.


GROUPING: Mapping[str, str] = {
    "cpu_model": "CPU",
    "kernel": "kernel",
    "firmware": "microcode",
    "topology": "topology",
}
"""Facts by which hosts may differ in groups: the field of HostFacts, and its name for people."""

ALL_HOSTS = "all hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """Hold the state of a host of the fleet. `status` is done, failed, busy, unreachable, "not
    touched", waiting or running; `reason` in words, "" without one."""

    host: str
    status: str
    reason: str = ""
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """Hold one effect or level of one host, with the host's facts."""

    host: str
    facts: HostFacts
    effect: HostEffect


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(Where):
    """Identify an object of pooling, under one accelerator."""

    accelerator: str

    @property
    def is_log(self) -> bool:
        """Return whether estimates are logarithms."""
        return self.kind != "difference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Hold one host at one place, on the scale of effects.

    `low`, `high`: its 95 % interval, with its variance moderated towards the hosts' typical one
    (`hosts.moderated`). `verdict`: of its own run. `distance`: from the others' prediction, in
    standard errors; `p`: of that distance, adjusted for all hosts and places (Holm); both are None
    if too few hosts are there for a prediction. `typical`: for a host apart, the median of the
    hosts with which it is compared.
    """

    host: str
    estimate: float
    low: float
    high: float
    units: int
    boots: int
    verdict: str | None
    distance: float | None = None
    p: float | None = None
    is_apart: bool = False
    typical: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEffect:
    """Hold the pooled effect of a group of hosts; None with the reason in `why`."""

    group: str
    hosts: tuple[str, ...]
    pooled: Pooled | None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactSplit:
    """Split the hosts of a place by a fact. `p`: of equal mean effects, adjusted for all places and
    facts (Holm); None with the reason in `why`."""

    fact: str
    groups: tuple[GroupEffect, ...]
    p: float | None
    differs: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEffect:
    """Hold a tuning's effects at a place over the hosts. `points`: from the smallest estimate to
    the largest. `whole`: all hosts pooled. `test`: of equal true effects (F*), its `p` adjusted for
    all places (Holm); None with the reason in `why_no_test`."""

    place: Place
    points: tuple[Point, ...]
    whole: GroupEffect
    test: FTest | None
    p: float | None
    differ: bool
    why_no_test: str
    splits: tuple[FactSplit, ...]
    margin: float | None
    no_worse_than: float | None
    left_out: tuple[tuple[str, str], ...]
    """Hosts that are not pooled here, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLevel:
    """Hold the baseline's levels of similar hosts (`group`) at a place; hosts apart are far from
    the others' prediction. `why`: the reason if no host could be compared with others."""

    place: Place
    group: str
    points: tuple[Point, ...]
    typical: float
    why: str = ""


class Take(StrEnum):
    """Name the fleet's answer on a tuning for a group of hosts."""

    TAKE = "may take it"
    HARM = "does harm"
    OPEN = "not shown"
    FEW = "too few hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnswer:
    """Answer for a tuning and a group of hosts. `by`: the fact whose groups differ, "" for all
    hosts. `hosts`: the smallest number with values in a place, of `measured` hosts of the group.
    `why`: the reason, as the end of a sentence. `place` and `pooled`: the deciding effect, if it is
    a single one."""

    tuning: str
    accelerator: str
    group: str
    by: str
    hosts: int
    measured: int
    code: Take
    why: str
    place: Place | None = None
    pooled: Pooled | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetJudgement:
    """Hold all conclusions about a fleet. `alpha`: of all claims of one kind together;
    `confidence`: of the interval of each mean over all hosts, so that all hold together at
    1 - alpha; those of groups are wider."""

    hosts: int
    measured: int
    states: tuple[HostState, ...]
    alpha: float
    confidence: float
    effects: tuple[FleetEffect, ...]
    levels: tuple[FleetLevel, ...]
    answers: tuple[GroupAnswer, ...]
    facts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Fact to its values with how many hosts have each."""
    warnings: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    controls: Mapping[Control, int] = field(default_factory=dict)
    """State of an A/A control to the number of hosts with it; a host has its worst one."""
    least_share: float = 0.0
    """Share of a group's hosts on which each claim rests at least."""

    def all_points(self) -> Iterator[tuple[Place, Point]]:
        """Yield the hosts' points of all effects and levels."""
        yield from ((one.place, point) for one in self.effects for point in one.points)
        yield from ((one.place, point) for one in self.levels for point in one.points)


# Answer which groups of hosts may take a tuning. Pure.
#
# A group may take a tuning if an unmeasured host of the group is predicted to lose less in every
# place than the study calls harmful, and if the group's mean effect improves a primary metric in
# some place by at least the margin. "Every place" is an intersection of claims, so each prediction
# is at 95 % by itself (R. L. Berger, Technometrics 24, 1982, 295-300). "Some place" is one of
# several, so the means hold together (Bonferroni over all places; for groups also over facts and
# groups).


LEAST_SHARE = 0.5
"""Share of a group's hosts that must have values in each place for a claim about the group, unless
a policy declares another."""


def answers(
    effects: Iterable[FleetEffect],
    measured: Callable[[str, str, str], int],
    least_share: float = LEAST_SHARE,
) -> Iterator[GroupAnswer]:
    """Yield an answer for each tuning and each group of hosts: for all hosts or, if groups by a
    fact differ in an effect of the tuning, for each of those groups. `measured`: the number of
    measured hosts by accelerator, fact and group."""
    by_tuning: dict[tuple[str, str], list[FleetEffect]] = {}
    for one in effects:
        by_tuning.setdefault((one.place.tuning, one.place.accelerator), []).append(one)
    for arm, places in by_tuning.items():
        fact = differing_fact(places)
        if not fact:
            at = [(one, group_effect(one, "", ALL_HOSTS)) for one in places]
            yield _answer(arm, ALL_HOSTS, "", at, measured(arm[1], "", ALL_HOSTS), least_share)
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
            yield _answer(arm, group, fact, at, measured(arm[1], fact, group), least_share)


def differing_fact(places: Iterable[FleetEffect]) -> str:
    """Return the fact whose groups differ most clearly in these places; "" if none do."""
    found = [
        (split.p, split.fact)
        for one in places
        for split in one.splits
        if split.differs and split.p is not None
    ]
    return min(found)[1] if found else ""


def group_effect(one: FleetEffect, fact: str, name: str) -> GroupEffect:
    """Return the effect of a group by `fact` at a place; for fact "" that of all hosts."""
    if not fact:
        return one.whole
    for split in one.splits:
        for group in split.groups:
            if split.fact == fact and group.group == name:
                return group
    return GroupEffect(group=name, hosts=(), pooled=None, why="no host of it was measured there")


def _answer(
    arm: tuple[str, str],
    group: str,
    by: str,
    at: Sequence[tuple[FleetEffect, GroupEffect]],
    measured: int,
    least_share: float,
) -> GroupAnswer:
    """Return the answer for an arm, a tuning under an accelerator."""
    hosts = min((len(of.hosts) for _, of in at), default=0)

    def answer(
        code: Take, why: str, one: FleetEffect | None = None, of: GroupEffect | None = None
    ) -> GroupAnswer:
        return GroupAnswer(
            tuning=arm[0],
            accelerator=arm[1],
            group=group,
            by=by,
            hosts=hosts,
            measured=measured,
            code=code,
            why=why,
            place=None if one is None else one.place,
            pooled=None if of is None else of.pooled,
        )

    for one, of in at:
        enough = len(of.hosts) >= least_share * measured
        if enough and of.pooled is not None and _harms(one, of.pooled):
            return answer(Take.HARM, f"its mean effect is a loss in {_where(one)}", one, of)
    for one, of in at:
        if of.pooled is None:
            return answer(Take.FEW, f"{of.why} in {_where(one)}")
        if len(of.hosts) < least_share * measured:
            why = (
                f"only {len(of.hosts)} of {measured} hosts have a value in {_where(one)}, and an "
                f"answer needs {share(least_share)}"
            )
            return answer(Take.FEW, why)
    for one, of in at:
        if of.pooled is not None and not _safe(one, of.pooled):
            why = f"a host that was not measured may lose more than the harm limit in {_where(one)}"
            return answer(Take.OPEN, why, one, of)
    for one, of in at:
        if of.pooled is not None and improves(one, of.pooled):
            why = f"no host is predicted to lose more than the harm limit, and {_where(one)} gains"
            return answer(Take.TAKE, why, one, of)
    return answer(Take.OPEN, "no primary metric is shown to improve by the threshold")


def _where(one: FleetEffect) -> str:
    return place_in_words(one.place.workload, one.place.condition)


def sign_of(place: Place) -> float:
    """Return 1 if more is better, -1 if less is, 0 if neither."""
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
    """Return whether the prediction excludes the loss. It can't if neither direction is better, or
    if no size of a loss applies."""
    sign, loss = sign_of(one.place), one.no_worse_than
    worst = of.new_low if sign > 0 else -of.new_high
    return sign != 0 and loss is not None and worst > -on_scale(loss, _kind(one))


def improves(one: FleetEffect, of: Pooled) -> bool:
    """Return whether a mean is a gain of at least the margin, and its interval excludes no gain."""
    sign, margin = sign_of(one.place), one.margin
    better = of.low > 0 if sign > 0 else of.high < 0
    if sign == 0 or margin is None:
        return False
    return better and sign * of.mean >= on_scale(margin, _kind(one))
