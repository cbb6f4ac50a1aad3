"""Hold another run that a policy's rules compare this one with."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.analysis.cells import Cells, read_cells
from labctl.analysis.design import Design, read_design
from labctl.analysis.run_compare.two_runs import refusals, same_tuning, workload_differences
from labctl.analysis.stopping import before_first_look
from labctl.store.run_folder import LoadedRun


@dataclass(frozen=True, slots=True)
class OtherRun:
    """Hold a run that rules name by `like`. `refused`: why its values can't be compared with this
    run's.
    """

    us: LoadedRun
    run: LoadedRun
    design: Design
    cells: Cells
    refused: str

    @classmethod
    def of(cls, us: LoadedRun, run: LoadedRun) -> OtherRun:
        return cls(us, run, read_design(run), read_cells(run), "; ".join(refusals(us, run)))

    def why_not(self, tuning: str, workload: str) -> str:
        """Return why a cell of this run can't be compared with the same of that one; "" if it
        can."""
        if self.refused:
            return self.refused
        both = self.us.plan, self.run.plan
        has_both = all(tuning in plan.tunings for plan in both)
        if has_both and not same_tuning(self.us, self.run, tuning):
            return f"{tuning} is defined otherwise in {self.run.name}"
        if all(workload in plan.workloads for plan in both):
            differing = workload_differences(self.us, self.run, workload)
            if differing:
                return f"{workload} ran otherwise in {self.run.name} ({', '.join(differing)})"
        return ""

    @property
    def before_look(self) -> bool:
        """Return whether it has not reached a declared look."""
        return before_first_look(self.run)
