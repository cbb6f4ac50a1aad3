"""Check whether a run keeps a policy's rules.

A rule *holds* if its demand is shown, one-sided at 5 % each: then all of them hold together with at
most this error (an intersection-union test; R. L. Berger, Technometrics 24, 1982). It is *violated*
if the contrary is shown, at 5 % over all tests of the gate together (Bonferroni), so that a policy
does not fail by the number of its rules. In a run that a rule may have ended both levels are below
5 % (METHOD 22). Any other result is undecided, and so is a claim that the run's control and known
loss do not allow; the policy says what undecided counts as. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from labctl.analysis.answer.record import UNDECIDED, AnswerRecord, Basis, Grade, TuningAnswer
from labctl.analysis.caveats.run import imported
from labctl.analysis.compare.two_runs import refusals, same_tuning, workload_differences
from labctl.analysis.effects.cells import Cells, Scenario, Series, read_cells
from labctl.analysis.effects.design import ALPHA, Design, joint_level, read_design
from labctl.analysis.effects.effects import Effects, alone, by_ratio, effects_of, ratio_of
from labctl.analysis.effects.intervals import Interval, Spread, t_interval, welch_interval
from labctl.analysis.gate.policy import Policy, Rule, Undecided, hold_facts
from labctl.analysis.gate.scope import TWIN, Leave, Spot, decide, leave, scope
from labctl.analysis.model import EffectKind
from labctl.analysis.verdicts.decide import confirmatory
from labctl.analysis.verdicts.looks import before_first_look
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.base.units import Better, Unit
from labctl.store.run_folder import LoadedRun

# Hold the findings of a policy's rules in a run.


class Outcome(StrEnum):
    HOLDS = "holds"
    VIOLATED = "violated"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Hold the finding of a rule in one cell. `tuning`, `workload`, `condition` are "" if the rule
    applies to no cell, or to facts (`of_facts`); a finding on a grade (`of_grade`) has only
    `tuning`.

    `estimate`, `low`, `high`: the ratio, the difference in `unit`, or the value, by `kind` (None:
    the value itself), in natural direction; the interval's ends are one-sided, 95 % each, and of
    higher confidence in a run that a rule may have ended. `why`: the reason if it is undecided, or
    the facts that differ.
    """

    rule: str
    limit: str
    against: str | None
    tuning: str
    workload: str
    condition: str
    metric: str
    unit: Unit | None
    kind: EffectKind | None
    estimate: float | None
    low: float | None
    high: float | None
    blocks: int
    outcome: Outcome
    why: str
    counts_as: Undecided
    of_facts: bool = False
    of_grade: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    run: str
    findings: tuple[Finding, ...]
    decision: AnswerRecord
    cautions: tuple[str, ...] = ()
    """Notes on damaged parts of the run, and on its import."""

    @property
    def passed(self) -> bool | None:
        """Return False if a rule is violated or counts as violated, None if none is, but one that
        must be decided is not, else True."""
        states = [_passes(finding) for finding in self.findings]
        if False in states:
            return False
        return None if None in states else True


def _passes(finding: Finding) -> bool | None:
    if finding.outcome is not Outcome.UNDECIDED:
        return finding.outcome is Outcome.HOLDS
    return {Undecided.FAIL: False, Undecided.PASS: True, Undecided.OPEN: None}[finding.counts_as]


# Hold another run with which a policy's rules compare this one.


@dataclass(frozen=True, slots=True)
class OtherRun:
    """Hold a run that rules name by `like`. `refused`: the reason if its values can't be compared
    with this run's.
    """

    us: LoadedRun
    run: LoadedRun
    design: Design
    cells: Cells
    refused: str

    @classmethod
    def of(cls, us: LoadedRun, run: LoadedRun) -> OtherRun:
        return cls(us, run, read_design(run), read_cells(run), "; ".join(refusals(us, run)))

    def why_not(self, tuning: str, workload: str) -> str:
        """Return why a cell of this run can't be compared with the same cell of the other; "" if it
        can."""
        if self.refused:
            return self.refused
        both = self.us.plan, self.run.plan
        has_both = all(tuning in plan.tunings for plan in both)
        if has_both and not same_tuning(self.us, self.run, tuning):
            return f"{tuning} has a different definition in {self.run.name}"
        if all(workload in plan.workloads for plan in both):
            differing = workload_differences(self.us, self.run, workload)
            if differing:
                return f"{workload} ran differently in {self.run.name} ({', '.join(differing)})"
        return ""

    @property
    def before_look(self) -> bool:
        """Return whether the run has not reached a declared look."""
        return before_first_look(self.run)


# Reduce an arm's values to the input of a rule's test.


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Hold the input of a test, in natural direction. `interval(alpha)`: two-sided."""

    kind: EffectKind | None
    logs: bool
    mean: float
    n: int
    interval: Callable[[float], Interval | None]

    def shown(self, value: float) -> float:
        return ratio_of(value) if self.logs else value


def of_itself(series: Series) -> Values:
    """Return the test's input for a limit on an arm's values."""
    logs = min(series.values.values()) > 0
    return _of_spread(alone(series, logs=logs), None, logs)


def _of_spread(of: Spread, kind: EffectKind | None, logs: bool) -> Values:
    return Values(
        kind=kind, logs=logs, mean=of.mean, n=of.n, interval=lambda alpha: t_interval(of, alpha)
    )


def of_effects(effects: Effects) -> Values:
    """Return the test's input for a limit on an arm's effects against another arm."""
    return _of_spread(effects.spread, effects.kind, effects.kind is EffectKind.RATIO)


def between_runs(other: Series, series: Series) -> Values:
    """Return the test's input for a limit on the change since another run."""
    logs = by_ratio([other, series])
    theirs, ours = (alone(side, logs=logs) for side in (other, series))
    return Values(
        kind=EffectKind.RATIO if logs else EffectKind.DIFFERENCE,
        logs=logs,
        mean=ours.mean - theirs.mean,
        n=min(ours.n, theirs.n),
        interval=lambda alpha: welch_interval(theirs, ours, alpha),
    )


def mismatch_of(rule: Rule, values: Values, series: Series) -> str:
    """Return why the rule's limit does not apply to these values."""
    if rule.unit is not None and rule.unit is not series.sample.unit:
        return f"{series.sample.metric} is in {series.sample.unit}, but the limit is in {rule.unit}"
    if values.kind is EffectKind.DIFFERENCE and rule.is_share:
        return (
            f"{series.sample.metric} is compared by difference, because 0 is a usual value: "
            f"the limit must be a number in {series.sample.unit}"
        )
    if values.kind is EffectKind.RATIO and not rule.is_share:
        return f"{series.sample.metric} is compared by ratio: the limit must be a share ('5 %')"
    if series.is_maximum and rule.limit != "below":
        return "a maximum can only be compared with 'below'"
    if series.sample.better is Better.NEITHER and rule.limit.startswith(("worse", "better")):
        return f"{series.sample.metric} has no better direction"
    return ""


# Hold rules that are about a whole run: its facts, and the grade of its answer.


def cautions_of(run: LoadedRun) -> tuple[str, ...]:
    """Return notes on the whole run, which do not depend on the rules."""
    return (*imported(run), *run.problems)


def of_facts(rule: Rule, run: LoadedRun, other: LoadedRun, counts_as: Undecided) -> Finding:
    """Return whether the facts that a rule names are the same in another run."""
    same, why = hold_facts(rule.facts or (), run, other)
    states = {True: Outcome.HOLDS, False: Outcome.VIOLATED, None: Outcome.UNDECIDED}
    return replace(
        _whole_finding(rule, states[same], why, counts_as), against=rule.like, of_facts=True
    )


def of_grade(rule: Rule, decision: AnswerRecord, counts_as: Undecided) -> Finding:
    """Return the answer's finding on the rule's tuning. Shown harm, and a verification that does
    not show the gain again, violate the rule; anything else that is missing leaves it undecided."""
    found = decision.of(rule.tuning)
    if found is None:
        outcome, why = Outcome.UNDECIDED, "the run does not judge this tuning"
    else:
        outcome, why = _outcome(found, rule.grade == "confirmed")
    # A name that the run does not have may be a typing error, and must not pass silently.
    is_open = found is None and counts_as is Undecided.PASS
    return replace(
        _whole_finding(rule, outcome, why, Undecided.OPEN if is_open else counts_as),
        tuning=rule.tuning,
        of_grade=True,
    )


def _whole_finding(rule: Rule, outcome: Outcome, why: str, counts_as: Undecided) -> Finding:
    """Return a finding without a metric."""
    return Finding(
        rule=rule.title,
        limit=rule.demand,
        against=None,
        tuning="",
        workload="",
        condition="",
        metric="",
        unit=None,
        kind=None,
        estimate=None,
        low=None,
        high=None,
        blocks=0,
        outcome=outcome,
        why=why,
        counts_as=counts_as,
    )


def _outcome(found: TuningAnswer, confirmed: bool) -> tuple[Outcome, str]:
    if found.grade is Grade.CONFIRMED or (found.grade is Grade.CANDIDATE and not confirmed):
        return Outcome.HOLDS, ""
    against = [one.text for one in found.fresh if one.agrees is False]
    harm = [one.text for one in found.worse if one.tested is Basis.VERDICT]
    if harm or against:
        return Outcome.VIOLATED, (harm or against)[0].rstrip(".")
    if found.grade is Grade.CANDIDATE:
        return Outcome.UNDECIDED, "it is a candidate; no fresh run has confirmed it"
    return Outcome.UNDECIDED, "; ".join(found.lacking)


def gate(
    run: LoadedRun,
    policy: Policy,
    others: Mapping[str, LoadedRun],
    decision: AnswerRecord = UNDECIDED,
) -> GateResult:
    """Return the finding of every rule in every cell to which it applies. `others`: the runs that
    rules name by `like`. `decision`: the run's answer, for rules about a grade.

    Never raises: a rule that the run can't decide is undecided, with the reason.
    """
    run = confirmatory(run)
    design, cells = read_design(run), read_cells(run)
    theirs = {name: OtherRun.of(run, confirmatory(other)) for name, other in others.items()}
    asked = [
        _test(rule, design, cells, theirs, spot)
        for rule in policy.rules
        if rule.facts is None and rule.grade is None
        for spot in scope(rule, run, design, cells)
    ]
    if run.plan.is_lost:
        unplanned = "the run has no plan, so its arms and its A/A control are unknown"
        asked = [replace(test, values=None, why=test.why or unplanned) for test in asked]
    decidable = max(1, sum(test.values is not None for test in asked))
    by_rule: dict[int, list[Finding]] = {}
    for test in asked:
        found = _finding(test, policy.counts_as(test.rule), decidable)
        by_rule.setdefault(id(test.rule), []).append(found)
    findings: list[Finding] = []
    for rule in policy.rules:
        if rule.facts is not None and rule.like is not None:
            findings.append(of_facts(rule, run, others[rule.like], policy.counts_as(rule)))
        if rule.grade is not None:
            findings.append(of_grade(rule, decision, policy.counts_as(rule)))
        findings += by_rule.get(id(rule), [])
    return GateResult(
        run=run.name, findings=tuple(findings), decision=decision, cautions=cautions_of(run)
    )


_FREE = Leave()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """Hold a test. It can't be decided if `values` is None or `why` is set. `faulty`: no run could
    decide the rule as it is. `leave`: the limits from the run's checks."""

    rule: Rule
    spot: Spot
    against: str | None = None
    values: Values | None = None
    leave: Leave = _FREE
    why: str = ""
    faulty: bool = False
    level: float = ALPHA
    """Chance of an error when the rule is called kept."""
    before_look: bool = False
    """True if a run has not reached a declared look, so that it decides nothing yet."""


def _test(
    rule: Rule, design: Design, cells: Cells, others: Mapping[str, OtherRun], spot: Spot
) -> _Test:
    if spot.cell is None or spot.series is None:
        return _Test(rule=rule, spot=spot, why=spot.why, faulty=spot.nothing)
    (tuning, place), key, series = spot.cell, spot.key, spot.series
    against, references, why = _references(rule, design, cells, others, tuning, place, key)
    other = None if rule.like is None else others[rule.like]
    values: Values | None = None
    may = _FREE
    if not why and rule.like is not None:
        values = between_runs(references[0], series)
    elif not why and rule.against is not None:
        native = against in design.natives
        effects = effects_of(series, references, against_native=native)
        if effects is None:
            why = f"no block has both {tuning} and {against}"
        else:
            values = of_effects(effects)
            if against in (design.baseline, design.control):
                may = leave(rule, design, cells, spot.cell, key, effects, series.sample.unit)
    elif not why:
        values = of_itself(series)
    mismatch = "" if values is None else mismatch_of(rule, values, series)
    if values is not None and not mismatch:
        mismatch = _different_durability(design, other, tuning, place, against)
    why = mismatch or why
    return _Test(
        rule=rule,
        spot=spot,
        against=against,
        values=None if why else values,
        leave=may,
        why=why,
        # The rule names it, without a pattern.
        faulty=bool(mismatch) or (rule.against is not None and rule.tuning == rule.against),
        before_look=design.before_look or (other is not None and other.before_look),
        level=design.level if other is None else joint_level(design, other.design),
    )


def _references(
    rule: Rule,
    design: Design,
    cells: Cells,
    others: Mapping[str, OtherRun],
    tuning: str,
    place: Scenario,
    key: str,
) -> tuple[str | None, Sequence[Series], str]:
    """Return the comparison's reference: its name and series, and the reason if it has none."""
    if rule.like is not None:
        if why := others[rule.like].why_not(tuning, place.workload):
            return rule.like, (), why
        other = others[rule.like].cells.get(tuning, place, key)
        if other is None:
            return rule.like, (), f"{rule.like} has no such value"
        return rule.like, (other,), ""
    if rule.against is None:
        return None, (), ""
    against = design.twins.get(tuning) if rule.against == TWIN else rule.against
    if against is None:
        return TWIN, (), f"{tuning} has no native twin"
    if against == tuning:
        return against, (), f"{tuning} cannot be compared with itself"
    # An arm is not its own reference: the control would be compared with half of itself.
    both = against == design.baseline and tuning != design.control
    names = (against, design.control) if both else (against,)
    found = [s for name in names if (s := cells.get(name, place, key)) is not None]
    if cells.get(against, place, key) is None:
        return against, (), f"{against} has no such value"
    return against, found, ""


def _different_durability(
    design: Design, other: OtherRun | None, tuning: str, place: Scenario, against: str | None
) -> str:
    """Return why a comparison is void: its sides' disks have different durability (METHOD 10)."""
    ours = design.durabilities.get(tuning)
    theirs = (
        other.design.durabilities.get(tuning) if other else design.durabilities.get(against or "")
    )
    if design.may_compare(ours, theirs, place):
        return ""
    return f"the durability of {tuning}'s disk ({ours}) differs from {against}'s ({theirs})"


def _finding(test: _Test, counts_as: Undecided, decidable: int) -> Finding:
    """Return the finding of a test. `decidable`: number of the gate's tests, which share the chance
    of calling a rule violated by error.
    """
    rule, spot, values, series = test.rule, test.spot, test.values, test.spot.series
    outcome, why, interval = Outcome.UNDECIDED, test.why, None
    if values is not None and series is not None:
        interval = values.interval(2 * test.level)
        if series.is_maximum:
            outcome, why = _of_maximum(rule, series)
            interval = None
        elif values.n < FEWEST_BLOCKS:
            why = f"{values.n} of the {FEWEST_BLOCKS} blocks that it needs"
        elif test.before_look:
            why = "before the first look that the plan declares"
        elif test.leave.refused:
            why = test.leave.refused
        elif interval is None:
            why = "the same number in every block, too coarse to judge by"
        else:
            sure = values.interval(2 * test.level / decidable)
            claim = decide(
                rule,
                values.mean,
                values.kind,
                series.sample.better,
                interval,
                sure or interval,
                logs=values.logs,
            )
            why = "the interval includes both" if claim.kept is None else test.leave.why_not(claim)
            if not why:
                outcome = Outcome.HOLDS if claim.kept else Outcome.VIOLATED
    return Finding(
        rule=rule.title,
        limit=rule.demand,
        against=test.against,
        tuning=spot.cell.tuning if spot.cell else "",
        workload=spot.cell.place.workload if spot.cell else "",
        condition=spot.cell.place.condition if spot.cell else "",
        metric=spot.key or rule.metric or "",
        unit=series.sample.unit if series else None,
        kind=values.kind if values else None,
        estimate=values.shown(values.mean) if values else None,
        low=values.shown(interval.low) if values and interval else None,
        high=values.shown(interval.high) if values and interval else None,
        blocks=values.n if values else 0,
        outcome=outcome,
        why=why,
        # A faulty rule may be a typing error, and must not pass silently.
        counts_as=Undecided.OPEN if test.faulty and counts_as is Undecided.PASS else counts_as,
    )


def _of_maximum(rule: Rule, series: Series) -> tuple[Outcome, str]:
    """Return whether the metric is a maximum, which grows with the number of samples: it can break
    a limit, but never prove that it is kept."""
    if series.typical >= rule.amount:
        return Outcome.VIOLATED, ""
    return Outcome.UNDECIDED, "no maximum reached it, but a later one may"
