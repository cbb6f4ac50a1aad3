"""Say what one attempt at a trial is of."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.base.levels import Level
from labctl.collect.collector import Calibration, uncalibrated
from labctl.store.records.plan_record import PlannedTrial
from labctl.study.study import Limits, StudyWorkload
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
    level: Level
    window_rates: dict[tuple[str, str], float]
    """Machine's kind and workload to the operations per second that size a warm-up window; what
    the first trial finds is for all."""
    traces: bool = True
    """True if the disk has room for what level `trace` records."""
    calibration: Calibration = uncalibrated
