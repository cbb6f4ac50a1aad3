"""Say what a run left out because its host can't have it."""

from __future__ import annotations

from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord


def skipped(plan: PlanRecord, run: RunRecord | None = None) -> dict[str, str]:
    """Return tunings, conditions, and workloads with the side where they can't run ("timerlat
    (native)"), to the reason. `run`: what is recorded of it, which holds the tunings also where a
    plan is lost."""
    tunings = (run.skipped if run else {}) or plan.skipped
    workloads = {
        f"{workload} ({side})": str(why)
        for workload, sides in plan.skipped_workloads.items()
        for side, why in sides.items()
    }
    conditions = plan.skipped_conditions
    return {name: str(why) for name, why in [*tunings.items(), *conditions.items()]} | workloads
