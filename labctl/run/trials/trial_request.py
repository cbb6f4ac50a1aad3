"""Say what one attempt at a trial is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labctl.base.levels import Level
from labctl.collect.collector import Calibration, uncalibrated
from labctl.run.guests.clones import OpenRoom, no_room
from labctl.run.planning.planned_conditions import condition_of
from labctl.store.records.plan_record import PlannedTrial
from labctl.study.condition import Condition
from labctl.study.plan import Plan
from labctl.study.study import Limits, StudyWorkload
from labctl.workloads.registry import workload_of
from labctl.workloads.workload import Workload

SLACK_S = 60.0
"""Beyond its duration, what a workload may take to start and to write its report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    planned: PlannedTrial
    attempt: int
    workload: Workload
    declared: StudyWorkload
    limits: Limits
    condition: Condition | None = None
    """Neighbours of the trial; None: nothing runs beside it."""
    room: OpenRoom = no_room
    """Opens the room for neighbours that are guests."""
    level: Level
    window_rates: dict[tuple[str, str], float]
    """Machine's kind and workload to the operations per second that size a warm-up window; what
    the first trial finds is for all."""
    traces: bool = True
    """True if the disk has room for what level `trace` records."""
    calibration: Calibration = uncalibrated

    @classmethod
    def of(cls, plan: Plan, trial: PlannedTrial, **given: Any) -> TrialRequest:
        """Return the request for a trial of a plan. `given`: what the plan doesn't say."""
        declared = plan.workloads[trial.cell["workload"]]
        return cls(
            planned=trial,
            workload=workload_of(declared),
            declared=declared,
            limits=plan.limits,
            condition=condition_of(plan, trial.cell["condition"]),
            level=plan.collect,
            **given,
        )
