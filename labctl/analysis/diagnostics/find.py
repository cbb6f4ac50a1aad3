"""Diagnose blocks that break what the intervals assume.

The t interval takes the effects of blocks as alike from the first to the last, and roughly normal.
docs/diagnostics.md has each test's rule with its source, level and power.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from labctl.analysis.cells import Cells, Scenario
from labctl.analysis.compare import Compared
from labctl.analysis.design import Design
from labctl.analysis.diagnostics.drift import drifts, level_drift
from labctl.analysis.diagnostics.lines import Ground, lines
from labctl.analysis.diagnostics.outliers import outliers
from labctl.analysis.model import Diagnostic
from labctl.analysis.verdicts import Eligibility
from labctl.store.run_folder import LoadedRun


def diagnose(
    run: LoadedRun,
    design: Design,
    cells: Cells,
    eligibilities: Mapping[Scenario, Eligibility],
    made: Sequence[Compared],
) -> Iterator[Diagnostic]:
    """Return every diagnostic in the primary metric of each place with blocks enough for a verdict.
    Nothing is removed or changed because of one."""
    for place, eligibility in eligibilities.items():
        primary = design.primaries[place.workload]
        here = list(lines(design, cells, place, primary, made))
        if not here:
            continue
        given = {
            one.comparison.tuning: one.comparison.verdict
            for one in made
            if one.is_primary and one.place == place
        }
        ground = Ground(design, place, primary, eligibility, given)
        yield from outliers(ground, here, run)
        yield from drifts(ground, here)
        yield from level_drift(ground, cells)
