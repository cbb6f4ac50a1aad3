"""Check whether a run keeps a policy's rules.

A rule *holds* where its demand is shown, one-sided at 5 % each: all of them hold together with no
more than that (an intersection-union test; R. L. Berger, Technometrics 24, 1982). It is *violated*
where the contrary is shown, at 5 % over all tests of the gate together (Bonferroni), so that a
policy of many rules doesn't fail by their number. A run that a rule may have ended has less than
5 % for both (METHOD 22). What is neither is undecided, and so is what the run's control and
known loss don't let it say; the policy says what that counts as. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from labctl.analysis.added import confirmatory
from labctl.analysis.answer_record import UNDECIDED, AnswerRecord
from labctl.analysis.cells import Cells, Scenario, Series, read_cells
from labctl.analysis.design import ALPHA, Design, joint_level, read_design
from labctl.analysis.effects import effects_of
from labctl.analysis.gate.claims import decide
from labctl.analysis.gate.eligibility import Leave, leave
from labctl.analysis.gate.gate_result import Finding, GateResult, Outcome
from labctl.analysis.gate.other_run import OtherRun
from labctl.analysis.gate.policy import Policy, Rule, Undecided
from labctl.analysis.gate.scope import TWIN, Spot, scope
from labctl.analysis.gate.values import Values, between_runs, mismatch_of, of_effects, of_itself
from labctl.analysis.gate.whole_run import cautions_of, of_facts, of_grade
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.store.run_folder import LoadedRun


def gate(
    run: LoadedRun,
    policy: Policy,
    others: Mapping[str, LoadedRun],
    decision: AnswerRecord = UNDECIDED,
) -> GateResult:
    """Return every rule in every cell that it speaks of. `others`: the runs that rules name by
    `like`. `decision`: the run's answer, which rules about a grade are held against.

    Nothing raises: what the run can't say is undecided, with the reason.
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
        unplanned = "the run has no plan, so its arms and its control are unknown"
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
    """Hold a test. `values` None, or `why`: it can't be decided. `faulty`: no run could decide the
    rule as it stands. `leave`: the limits from the run's checks."""

    rule: Rule
    spot: Spot
    against: str | None = None
    values: Values | None = None
    leave: Leave = _FREE
    why: str = ""
    faulty: bool = False
    level: float = ALPHA
    """The error of calling the rule kept."""
    before_look: bool = False
    """True where a run has not reached a declared look, so that it decides nothing yet."""


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
        # Named so, and not met by a pattern.
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
    """Return what it is compared with: its name, its series, and why there is none."""
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
        return against, (), f"{tuning} can't be held against itself"
    # An arm is none of its own references: the control would be held against half of itself.
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
    """Return the finding of a test. `decidable`: the tests of the gate, which share the error of
    calling a rule violated.
    """
    rule, spot, values, series = test.rule, test.spot, test.values, test.spot.series
    outcome, why, interval = Outcome.UNDECIDED, test.why, None
    if values is not None and series is not None:
        interval = values.interval(2 * test.level)
        if series.is_maximum:
            outcome, why = _of_maximum(rule, series)
            interval = None
        elif values.n < FEWEST_BLOCKS:
            why = f"{values.n} of the {FEWEST_BLOCKS} blocks that it takes"
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
            why = "the interval holds both" if claim.kept is None else test.leave.why_not(claim)
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
        # What is wrong with a rule, maybe by a typing error, must not pass in silence.
        counts_as=Undecided.OPEN if test.faulty and counts_as is Undecided.PASS else counts_as,
    )


def _of_maximum(rule: Rule, series: Series) -> tuple[Outcome, str]:
    """Tell whether it is a maximum, which grows with the number of samples: it can break a limit,
    and never prove one."""
    if series.typical >= rule.amount:
        return Outcome.VIOLATED, ""
    return Outcome.UNDECIDED, "no maximum reached it, which doesn't prove that none will"
