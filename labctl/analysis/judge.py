"""Judge a loaded run: levels, comparisons, verdicts, checks, caveats and the answer.

    trials ─ cells ─▶ values per block ─ effects, intervals ─▶ comparisons ─ verdicts ─▶ answer
    plan ── design ─▶ arms, primaries, family ── checks ─▶ what the run may say ─┘

Pure: values in, values out. The rules are those of METHOD 15 to 22 in their plain form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from labctl.analysis.added import added, caveat
from labctl.analysis.attempts import count_attempts, count_trials
from labctl.analysis.caveats import caveats
from labctl.analysis.compare import levels
from labctl.analysis.decide import decide
from labctl.analysis.decision import answer_record
from labctl.analysis.diagnostics.find import diagnose
from labctl.analysis.model import Judgement
from labctl.analysis.restored import restore_answer, restore_checks
from labctl.analysis.run_caveats import hindrances
from labctl.analysis.spares import spares
from labctl.analysis.standing import standings
from labctl.analysis.stopping import ending
from labctl.analysis.variance import precision
from labctl.store.run_folder import LoadedRun


def judge(run: LoadedRun, fresh: Sequence[LoadedRun] = ()) -> Judgement:
    """Return levels, comparisons with verdicts, checks, caveats and the answer of a run. `fresh`:
    runs that measured its advice once more.

    A run that isn't whole gives what it can, and a sentence for what it can't; nothing raises.
    """
    decided = decide(run)
    design, cells, checked = decided.design, decided.cells, decided.checked
    eligibilities = decided.eligibilities
    compared = decided.comparisons
    restored = tuple(restore_checks(design, cells, eligibilities))
    found = tuple(diagnose(decided.run, design, cells, eligibilities, decided.made))
    ranked = standings(design, compared, checked)
    more = added(run, decided.run, eligibilities)
    attempts, counts = count_attempts(run), count_trials(run)
    judgement = Judgement(
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
        standings=ranked,
    )
    record = answer_record(
        run,
        decided,
        judgement,
        fresh=fresh,
        why_not=next(hindrances(design, cells), None),
        restored=restore_answer(restored),
    )
    return replace(judgement, decision=record)
