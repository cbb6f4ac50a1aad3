"""Write the caveats that could change the answer, the gravest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labctl.analysis.attempts import invalid_trials, unequally_invalid
from labctl.analysis.cells import Cells
from labctl.analysis.checks import Checked
from labctl.analysis.design import Design
from labctl.analysis.foreign_cpu import unseen_disturbance
from labctl.analysis.layers import layers
from labctl.analysis.model import Attempts, Comparison, Diagnostic, Role, RunCheck
from labctl.analysis.pairing import is_interleaved
from labctl.analysis.run_caveats import (
    hindrances,
    imported,
    lacking_twins,
    left_out_arms,
    left_out_blocks,
    other_durability,
    recorded,
    redacted,
    unfinished,
)
from labctl.analysis.setting import closed_loop, collecting_caveats, kept_awake, setting, unproven
from labctl.analysis.spares import too_few_spares
from labctl.analysis.verdict_caveats import (
    before_first_look,
    failed_checks,
    grave_diagnostics,
    not_exercised,
    shared_boots,
    unjudgeable,
    unshown_restores,
)
from labctl.store.run_folder import LoadedRun


def caveats(
    run: LoadedRun,
    design: Design,
    cells: Cells,
    checks: Sequence[Checked],
    comparisons: Sequence[Comparison],
    restored: Sequence[RunCheck],
    diagnostics: Sequence[Diagnostic],
    attempts: Attempts,
) -> Iterator[str]:
    """Yield what to say of a run before its numbers; nothing of a whole run under KVM with the same
    kernel, a boot per block, and checks that passed."""
    primaries = [c for c in comparisons if c.role is Role.PRIMARY]
    yield from hindrances(design, cells)
    yield from imported(run)
    yield from redacted(run)
    # What the verdicts are of comes before how sure they are.
    yield from closed_loop(run, design, cells)
    yield from failed_checks(checks, primaries)
    yield from before_first_look(run, primaries)
    yield from unseen_disturbance(run)
    yield from unequally_invalid(attempts)
    yield from shared_boots(primaries)
    yield from grave_diagnostics(diagnostics)
    yield from setting(run, design, cells)
    yield from unproven(run)
    yield from collecting_caveats(run, cells)
    yield from kept_awake(run, cells)
    yield from unshown_restores(run, design, restored)
    yield from invalid_trials(attempts)
    yield from left_out_arms(run)
    yield from recorded(run)
    yield from other_durability(design)
    yield from layers(run, design)
    yield from left_out_blocks(design, cells, paired=is_interleaved(run))
    yield from too_few_spares(run, primaries)
    yield from unjudgeable(primaries)
    yield from lacking_twins(design)
    yield from not_exercised(run, primaries)
    yield from cells.problems
    yield from run.problems
    yield from unfinished(run)
