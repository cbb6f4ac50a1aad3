"""Say what a run left out because its host can't have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labctl.store.records.plan_record import PlanRecord


def skipped(plan: PlanRecord, run: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return tunings, and workloads with the side where they can't run ("timerlat (native)"), to
    the reason. `run`: what is recorded of it, which holds the tunings also where a plan is lost."""
    tunings = (run or {}).get("skipped") or plan.skipped
    workloads = {
        f"{workload} ({side})": str(why)
        for workload, sides in plan.skipped_workloads.items()
        for side, why in sides.items()
    }
    return {name: str(why) for name, why in tunings.items()} | workloads
