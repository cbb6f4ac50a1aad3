"""Hold rules that are about a whole run: its facts, and the grade of its answer."""

from __future__ import annotations

from dataclasses import replace

from labctl.analysis.answer_record import AnswerRecord, Basis, Grade, TuningAnswer
from labctl.analysis.gate.gate_facts import hold_facts
from labctl.analysis.gate.gate_result import Finding, Outcome
from labctl.analysis.gate.policy import Rule, Undecided
from labctl.analysis.run_caveats import imported
from labctl.store.run_folder import LoadedRun


def cautions_of(run: LoadedRun) -> tuple[str, ...]:
    """Return notes on a run as a whole, whatever the rules are."""
    return (*imported(run), *run.problems)


def of_facts(rule: Rule, run: LoadedRun, other: LoadedRun, counts_as: Undecided) -> Finding:
    """Return whether the facts that a rule names are the same in another run."""
    same, why = hold_facts(rule.facts or (), run, other)
    states = {True: Outcome.HOLDS, False: Outcome.VIOLATED, None: Outcome.UNDECIDED}
    return replace(_finding(rule, states[same], why, counts_as), against=rule.like, of_facts=True)


def of_grade(rule: Rule, decision: AnswerRecord, counts_as: Undecided) -> Finding:
    """Return what the answer says of the rule's tuning. Harm that was shown, and a fresh run that
    doesn't show the gain again, violate the rule; whatever else is lacking leaves it undecided."""
    found = decision.of(rule.tuning)
    if found is None:
        outcome, why = Outcome.UNDECIDED, "the run judges no such tuning"
    else:
        outcome, why = _outcome(found, rule.grade == "confirmed")
    # A name that the run doesn't know may be a typing error, and must not pass in silence.
    is_open = found is None and counts_as is Undecided.PASS
    return replace(
        _finding(rule, outcome, why, Undecided.OPEN if is_open else counts_as),
        tuning=rule.tuning,
        of_grade=True,
    )


def _finding(rule: Rule, outcome: Outcome, why: str, counts_as: Undecided) -> Finding:
    """Return a finding that is of no metric."""
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
        return Outcome.UNDECIDED, "it is a candidate that no fresh run has confirmed"
    return Outcome.UNDECIDED, "; ".join(found.lacking)
