"""Make the answer of a run: one record, from which every report and command reads.

standings ─ grade ──▶ how sure       comparisons, levels ─ worse ──▶ what got worse
fresh runs ─ confirmation ┘          side costs ──▶ at what price
"""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis.answer_record import (
    AnswerRecord,
    Change,
    Grade,
    SideCost,
    TuningAnswer,
)
from labctl.analysis.answer_sentences import Sentences
from labctl.analysis.attempts import count_trials
from labctl.analysis.confirmation import evidence, fresh_answers
from labctl.analysis.decide import Decided
from labctl.analysis.grade import graded
from labctl.analysis.model import Comparison, Judgement, Standing
from labctl.analysis.next_steps import next_steps
from labctl.analysis.side_costs import side_costs_of
from labctl.analysis.verdict_table import Verdict
from labctl.analysis.view import View
from labctl.analysis.words import effect
from labctl.analysis.worse import worse_of
from labctl.base.wording import metric_title
from labctl.store.run_folder import LoadedRun


def answer_record(
    run: LoadedRun,
    decided: Decided,
    judgement: Judgement,
    *,
    fresh: Sequence[LoadedRun] = (),
    why_not: str | None = None,
    restored: str | None = None,
) -> AnswerRecord:
    """Return the answer of a run. `judgement`: all else that analysis says. `fresh`: runs that
    measured its advice once more. `why_not`: the reason, for a run of which nothing can be judged.
    `restored`: the answer of a study of restores, which comes first there."""
    view = View(run, judgement)
    digest = evidence(run)
    tunings = tuple(_tuning(view, decided, of, fresh, digest) for of in judgement.standings)
    found = Sentences(view, judgement, tunings, why_not)
    lead, because = found.lead_and_because()
    if restored:
        lead, because = restored, f"{lead} {because}".strip()
    best = found.best
    return AnswerRecord(
        run=run.name,
        evidence=digest,
        grade=Grade.NOT_SHOWN if best is None else best.grade,
        tuning=None if best is None else best.tuning,
        emulated=run.run.is_emulated,
        status=_status(run),
        lead=lead,
        because=because,
        price=found.price(),
        worse=found.worse(),
        sure=found.sure(),
        others=found.others(),
        next=tuple(next_steps(run, judgement.standings, best)),
        tunings=tunings,
    )


def _tuning(
    view: View, decided: Decided, of: Standing, fresh: Sequence[LoadedRun], digest: str
) -> TuningAnswer:
    again = fresh_answers(view.run, of, fresh, digest)
    grade = graded(view.run, decided, of, again)
    return TuningAnswer(
        tuning=of.tuning,
        grade=grade.grade,
        code=str(of.code),
        better=tuple(_change(c) for c in of.judged if c.verdict is Verdict.IMPROVES),
        worse=tuple(worse_of(view, of.tuning)),
        side_costs=tuple(
            SideCost(
                workload=place.workload,
                condition=place.condition,
                who=cost.who,
                change=cost.text,
                interval=cost.interval,
                ratio=cost.ratio,
            )
            for place in view.places
            for cost in side_costs_of(view, of.tuning, place)
            if cost.who != "guest"
        ),
        price=of.price,
        grounds=grade.grounds,
        fresh=again,
    )


def _change(c: Comparison) -> Change:
    return Change(
        workload=c.workload,
        condition=c.condition,
        metric=c.metric,
        unit=str(c.unit),
        better=str(c.better),
        kind=str(c.kind),
        estimate=c.estimate,
        low=c.low,
        high=c.high,
        confidence=c.confidence,
        verdict=None if c.verdict is None else str(c.verdict),
        text=f"{metric_title(c.metric)} {effect(c)}",
    )


def _status(run: LoadedRun) -> str:
    """Return how far a run is that isn't finished, and what goes on with it."""
    status = run.run.status
    if status == "done":
        return ""
    counts = count_trials(run)
    done = f"{counts.done} of {counts.planned} trials done"
    if status is None:
        return f"{done}; whether the run was finished is not known."
    if status == "running":
        return f"{done}, and the run goes on."
    go_on = f"'labctl sweep --resume {run.name}' goes on with it."
    if status == "failed" and run.run.failure:
        return (
            f"{done}, then the run failed: {run.run.failure.splitlines()[0].rstrip('.')}. {go_on}"
        )
    return f"{done}: {go_on}"
