"""Judge a loaded run: levels, comparisons, verdicts, checks, caveats and the answer.

    trials ─ cells ─▶ values per block ─ effects, intervals ─▶ comparisons ─ verdicts ─▶ answer
    plan ── design ─▶ arms, primaries, family ── checks ─▶ eligibility of the run ─┘

Pure: values in, values out. The rules are those of METHOD 15 to 22 in their plain form.
"""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis.ab import compare_ab
from labctl.analysis.answer.answer import answer_record
from labctl.analysis.answer.standing import standings
from labctl.analysis.caveats.assumptions import diagnose
from labctl.analysis.caveats.caveats import caveats
from labctl.analysis.caveats.run import count_attempts, count_trials, hindrances
from labctl.analysis.effects.compare import levels
from labctl.analysis.effects.variance import precision
from labctl.analysis.model import Judged, Judgement
from labctl.analysis.verdicts.checks import restore_answer
from labctl.analysis.verdicts.decide import added, caveat, decide, spares
from labctl.analysis.verdicts.looks import ending
from labctl.store.run_folder import LoadedRun


def judge(run: LoadedRun, fresh: Sequence[LoadedRun] = ()) -> Judgement:
    """Return levels, comparisons with verdicts, checks, caveats and the answer of a run. `fresh`:
    runs that verified its advice.

    Never raises: for the missing parts of an incomplete run there is a sentence.
    """
    decided = decide(run)
    design, cells, checked = decided.design, decided.cells, decided.checked
    eligibilities = decided.eligibilities
    compared = decided.comparisons
    restored = decided.restored
    found = tuple(diagnose(decided.run, design, cells, eligibilities, decided.made))
    ranked = standings(design, compared, checked)
    more = added(run, decided.run, eligibilities)
    attempts, counts = count_attempts(run), count_trials(run)
    judged = Judged(
        comparisons=compared,
        levels=tuple(levels(cells)),
        control=tuple(c.control for c in checked.values()),
        known_loss=tuple(c.known_loss for c in checked.values()),
        unavailable=cells.missing,
        warnings=(
            *caveat(more, decided.run),
            *caveats(
                run, design, cells, tuple(checked.values()), compared, restored, found, attempts
            ),
        ),
        blocks=cells.blocks,
        boots=cells.boots,
        planned=counts.planned,
        done=counts.done,
        invalid=counts.invalid,
        attempts=attempts,
        primaries={workload: primary.metric for workload, primary in design.primaries.items()},
        restored=restored,
        diagnostics=found,
        precision=tuple(precision(decided.run, decided.made)),
        ending=ending(run, compared),
        added=more,
        spares=spares(run),
        factors=decided.factors,
        ab=compare_ab(run.plan.ab, design, cells, compared, eligibilities),
        standings=ranked,
    )
    record = answer_record(
        run,
        decided,
        judged,
        fresh=fresh,
        why_not=next(hindrances(design, cells, attempts), None),
        restored=restore_answer(restored),
    )
    return Judgement.of(judged, record)
