"""Decide a run's verdicts: comparisons and checks, without all that is said about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labctl.analysis.added import confirmatory
from labctl.analysis.cells import Cells, Scenario, read_cells
from labctl.analysis.checks import Checked, check
from labctl.analysis.compare import Compared, comparisons
from labctl.analysis.contrasts import analyse_factors
from labctl.analysis.design import Design, read_design
from labctl.analysis.factor_model import FactorAnalysis
from labctl.analysis.holm import stepped_down
from labctl.analysis.model import Comparison
from labctl.analysis.verdicts import Eligibility
from labctl.store.run_folder import LoadedRun


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
    def factors(self) -> FactorAnalysis | None:
        """Return what the run says of its factors; None without any."""
        return analyse_factors(self.run.plan.factorial, self.design, self.cells)

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
