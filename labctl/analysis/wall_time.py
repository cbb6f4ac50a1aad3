"""Say where a run's time went, from its start to its end, and how long a plan will take."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from datetime import datetime

from labctl.store.records.plan_record import PlannedWorkload, PlanRecord
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTime:
    """Hold seconds. `total`: from the run's start to its end, interruptions included. Of trials
    that count, `windows` were measured, `warmups` were spent before that, and `around` is the rest
    of them; `invalid` attempts are whole. `waited`: for a quiet host. What remains lies between
    trials: boots, restores, hashing, and other changes of the machine."""

    total: float
    windows: float
    warmups: float
    around: float
    invalid: float
    waited: float

    @property
    def between(self) -> float:
        parts = (self.windows, self.warmups, self.around, self.invalid, self.waited)
        return self.total - sum(parts)

    @property
    def share(self) -> float:
        """Return the measured windows' share of all time."""
        return self.windows / self.total

    @property
    def share_without_warmups(self) -> float:
        """Return the measured windows' share of the time that was not warm-up."""
        return self.windows / (self.total - self.warmups)


OVERHEAD_S = 1.3
"""Seconds that each trial of the recorded quick sweep (`labctl report example`) took beside its
measured window: warm-up, restore, its part of the boots. A host of two CPUs, guests emulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTime:
    """Hold seconds that a plan will take, spare blocks and repeats left out: its `windows`, and the
    `total` at the overhead per trial of the run `paced_by`; None: of the recorded quick sweep."""

    windows: float
    total: float
    paced_by: str | None


def expected_time(plan: PlanRecord, earlier: LoadedRun | None) -> ExpectedTime:
    """Expect each trial to take its window and the overhead that a trial of `earlier` had; None, or
    a run that doesn't say: the recorded quick sweep's, and what its workload leaves out."""
    windows = sum(plan.workloads[trial.cell["workload"]].duration_s or 0 for trial in plan.trials)
    spent = None if earlier is None else wall_time(earlier)
    if earlier is None or spent is None:
        skipped = sum(_skipped_s(plan.workloads[trial.cell["workload"]]) for trial in plan.trials)
        return ExpectedTime(
            windows=windows,
            total=windows + skipped + OVERHEAD_S * len(plan.trials),
            paced_by=None,
        )
    done = sum(trial.record.status is TrialStatus.DONE for trial in earlier.trials)
    overhead = (spent.total - spent.windows - spent.waited - spent.invalid) / done
    return ExpectedTime(
        windows=windows, total=windows + overhead * len(plan.trials), paced_by=earlier.name
    )


def _skipped_s(workload: PlannedWorkload) -> float:
    """Return the seconds at the start of a run that a workload's metrics leave out."""
    trial = (workload.definition or {}).get("trial")
    skipped = trial.get("skip_s") if isinstance(trial, dict) else None
    return skipped if isinstance(skipped, (int, float)) else 0.0


def wall_time(run: LoadedRun) -> WallTime | None:
    """Return where the time of a run that is over went; None where its files don't say, as of
    trials from elsewhere."""
    total = _between(run.run.started_at, run.run.ended_at)
    records = [trial.record for trial in run.trials]
    if total is None or run.run.status != "done":
        return None
    done = [record for record in records if record.status is TrialStatus.DONE]
    invalid = [record for record in records if record.status is TrialStatus.INVALID]
    windows = sum(record.measured_s for record in done)
    warmups = sum(record.warmup_s for record in done)
    spent = WallTime(
        total=total,
        windows=windows,
        warmups=warmups,
        around=sum(record.wall_s for record in done) - windows - warmups,
        invalid=sum(record.wall_s for record in invalid),
        # An older labctl says nothing of it, and never waited.
        waited=run.run.waited_for_quiet_s or 0.0,
    )
    # A file may say anything, and a clock may have been set meanwhile.
    possible = all(0 <= seconds < math.inf for seconds in (*astuple(spent), spent.between))
    return spent if possible and windows > 0 else None


def _between(start: str | None, end: str | None) -> float | None:
    try:
        began, ended = (datetime.fromisoformat(moment or "") for moment in (start, end))
        return (ended - began).total_seconds()
    except (ValueError, TypeError):
        return None
