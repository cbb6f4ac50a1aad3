"""Judge a loaded run: levels, comparisons, verdicts, checks, caveats and the answer.

    trials ─ cells ─▶ values per block ─ effects, intervals ─▶ comparisons ─ verdicts ─▶ answer
    plan ── design ─▶ arms, primaries, family ── checks ─▶ what the run may say ─┘

Pure: values in, values out. The rules are those of METHOD 15 to 22 in their plain form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labctl.analysis.added import added, caveat, confirmatory
from labctl.analysis.answer import answer
from labctl.analysis.attempts import count_attempts
from labctl.analysis.caveats import caveats, hindrances
from labctl.analysis.cells import Cells, Scenario, done_trials, planned_trials, read_cells
from labctl.analysis.checks import Checked, check
from labctl.analysis.compare import Compared, comparisons, levels
from labctl.analysis.design import Design, read_design
from labctl.analysis.diagnostics.find import diagnose
from labctl.analysis.holm import stepped_down
from labctl.analysis.model import Comparison, Judgement
from labctl.analysis.restored import restore_answer, restore_checks
from labctl.analysis.spares import spares
from labctl.analysis.standing import standings
from labctl.analysis.stopping import ending
from labctl.analysis.variance import precision
from labctl.analysis.verdicts import Eligibility
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialStatus


@dataclass(frozen=True, slots=True)
class Decided:
    """Hold the verdicts of a run and their input. `run`: the part of it that they rest on."""

    run: LoadedRun
    design: Design
    cells: Cells
    checked: Mapping[Scenario, Checked]
    made: tuple[Compared, ...]

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return tuple(one.comparison for one in self.made)

    @property
    def eligibilities(self) -> dict[Scenario, Eligibility]:
        return {place: checked.eligibility for place, checked in self.checked.items()}


def decide(run: LoadedRun) -> Decided:
    """Return comparisons, checks and verdicts alone: all that can be right or wrong in a judgement,
    and what thousands of simulated runs need. Nothing raises."""
    deciding = confirmatory(run)
    design = read_design(deciding)
    cells = read_cells(deciding)
    checked = {
        place: check(design, cells, place, primary)
        for place in design.places
        if design.baseline is not None
        and (primary := design.primaries.get(place.workload)) is not None
    }
    eligibilities = {place: of.eligibility for place, of in checked.items()}
    made = tuple(
        stepped_down(tuple(comparisons(design, cells, eligibilities)), design, eligibilities)
    )
    return Decided(deciding, design, cells, checked, made)


def judge(run: LoadedRun) -> Judgement:
    """Return levels, comparisons with verdicts, checks, caveats and the answer of a run.

    A run that isn't whole gives what it can, and a sentence for what it can't; nothing raises.
    """
    decided = decide(run)
    design, cells, checked = decided.design, decided.cells, decided.checked
    eligibilities = decided.eligibilities
    compared = decided.comparisons
    restored = tuple(restore_checks(design, cells, eligibilities))
    found = tuple(diagnose(decided.run, design, cells, eligibilities, decided.made))
    ranked = standings(design, compared, checked)
    answered = answer(
        compared,
        ranked,
        why_not=next(hindrances(design, cells), None),
        emulated=run.run.is_emulated,
        imported=bool(run.run.imported),
    )
    more = added(run, decided.run, eligibilities)
    attempts = count_attempts(run)
    return Judgement(
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
        answer=" ".join(filter(None, (restore_answer(restored), answered))),
        blocks=cells.blocks,
        boots=cells.boots,
        planned=planned_trials(run),
        done=done_trials(run),
        invalid=sum(trial.record.status is TrialStatus.INVALID for trial in run.trials),
        attempts=attempts,
        primaries={workload: primary.metric for workload, primary in design.primaries.items()},
        restored=restored,
        diagnostics=found,
        precision=tuple(precision(decided.run, decided.made)),
        ending=ending(run, compared),
        added=more,
        spares=spares(run),
        standings=ranked,
    )
