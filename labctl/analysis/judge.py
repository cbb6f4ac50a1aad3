"""From a loaded run to everything there is to say of it.

    trials ─ cells ─▶ values per block ─ effects, intervals ─▶ comparisons ─ verdicts ─▶ answer
    plan ── design ─▶ arms, primaries, family ── checks ─▶ what the run may say ─┘

Pure: values in, values out. The rules are those of METHOD 15 to 22 in their plain form.
"""

from __future__ import annotations

from labctl.analysis.added import added, caveat, confirmatory
from labctl.analysis.answer import answer
from labctl.analysis.bootstrap import bootstrapped, disagreements
from labctl.analysis.caveats import caveats, hindrances
from labctl.analysis.cells import done_trials, planned_trials, read_cells
from labctl.analysis.checks import check
from labctl.analysis.compare import comparisons, levels
from labctl.analysis.design import read_design
from labctl.analysis.holm import stepped_down
from labctl.analysis.model import Judgement
from labctl.analysis.restored import restore_answer, restore_checks
from labctl.analysis.signs.find import find_signs
from labctl.analysis.stopping import ending
from labctl.analysis.variance import precision
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialStatus


def judge(run: LoadedRun) -> Judgement:
    """Levels, comparisons with verdicts, checks, caveats and the answer of a run.

    A run that isn't whole gives what it can, and a sentence for what it can't; nothing raises.
    """
    decided = confirmatory(run)
    design = read_design(decided)
    cells = read_cells(decided)
    checked = {
        place: check(design, cells, place, primary)
        for place in design.places
        if design.baseline is not None
        and (primary := design.primaries.get(place.workload)) is not None
    }
    licences = {place: c.licence for place, c in checked.items()}
    stepped = stepped_down(tuple(comparisons(design, cells, licences)), design, licences)
    made = tuple(bootstrapped(stepped, _seed(run)))
    compared = tuple(one.comparison for one in made)
    restored = tuple(restore_checks(design, cells, licences))
    signs = (*find_signs(decided, design, cells, licences, made), *disagreements(compared))
    answered = answer(
        compared,
        why_not=next(hindrances(design, cells), None),
        emulated=run.run.get("accelerator") == "tcg",
    )
    more = added(run, decided, licences)
    return Judgement(
        comparisons=compared,
        levels=tuple(levels(cells)),
        control=tuple(c.control for c in checked.values()),
        handicap=tuple(c.handicap for c in checked.values()),
        unavailable=cells.missing,
        warnings=(
            *caveat(more),
            *caveats(run, design, cells, tuple(checked.values()), compared, restored, signs),
        ),
        answer=" ".join(filter(None, (restore_answer(restored), answered))),
        blocks=cells.blocks,
        boots=cells.boots,
        planned=planned_trials(run),
        done=done_trials(run),
        invalid=sum(trial.record.status is TrialStatus.INVALID for trial in run.trials),
        primaries={workload: primary.metric for workload, primary in design.primaries.items()},
        restored=restored,
        signs=signs,
        precision=tuple(precision(decided, made)),
        ending=ending(run, compared),
        added=more,
    )


def _seed(run: LoadedRun) -> int:
    """The plan's: what is drawn for a report is drawn the same each time."""
    seed = run.plan.get("seed")
    return abs(seed) if isinstance(seed, int) else 0
