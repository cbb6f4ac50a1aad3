"""Make one attempt at a trial: run it, parse it, and decide whether it counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from labctl.base.errors import BrokenError, LabctlError
from labctl.run.collectors.calibrate import Calibrations
from labctl.run.contained import keep_fault
from labctl.run.guests.bench import Bench
from labctl.run.guests.lab import Lab
from labctl.run.trials.neighbour_rooms import NeighbourRooms
from labctl.run.trials.parse import parse_trial
from labctl.run.trials.quiet import Others, Since
from labctl.run.trials.trial import run_trial
from labctl.run.trials.trial_request import TrialRequest
from labctl.run.trials.validity import invalid_reasons, is_disturbed
from labctl.store.records.plan_record import PlannedTrial
from labctl.store.run_folder import RunFolder
from labctl.store.trial import TrialRecord, TrialStatus
from labctl.study.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """Describe an attempt. `is_disturbed`: other processes used its CPUs more than the study
    allows; `others`: those that had CPU time meanwhile."""

    record: TrialRecord
    is_disturbed: bool
    others: Others


class Attempts:
    """Make attempts at the trials of a plan, each stored in a folder of its own."""

    def __init__(
        self,
        lab: Lab,
        folder: RunFolder,
        plan: Plan,
        calibrations: Calibrations,
        rooms: NeighbourRooms,
    ) -> None:
        self._lab = lab
        self.rooms = rooms
        self._folder = folder
        self._plan = plan
        self._calibrations = calibrations
        self._window_rates: dict[tuple[str, str], float] = {}

    def run(self, bench: Bench, trial: PlannedTrial, attempt: int, *, traces: bool) -> Attempted:
        """Run, parse and store an attempt. `traces`: whether there is room for what is recorded."""
        folder = self._folder.new_trial(trial.number, attempt)
        declared = self._plan.workloads[trial.cell["workload"]]
        request = TrialRequest.of(
            self._plan,
            trial,
            attempt=attempt,
            window_rates=self._window_rates,
            traces=traces,
            calibration=partial(self._calibrations.of, bench.kind, declared),
            room=partial(self.rooms.opened, trial),
        )
        since = Since.now()
        record = run_trial(self._lab, bench, request, folder)
        others = since.others()
        disturbed = False
        if record.status is TrialStatus.DONE:
            try:
                readings = parse_trial(folder, record)
                reasons = invalid_reasons(readings, self._plan.limits)
                disturbed = is_disturbed(readings, self._plan.limits)
                folder.write_readings(readings)
            except BrokenError as error:
                reasons = [error.message]
            if reasons:
                record = replace(record, status=TrialStatus.INVALID, reasons=tuple(reasons))
        folder.write_record(replace(record, digests=folder.digests()))
        return Attempted(record=record, is_disturbed=disturbed, others=others)

    def failed(
        self, trial: PlannedTrial, attempt: int, error: LabctlError, wall_s: float
    ) -> TrialRecord:
        """Store an attempt for which no machine could be made ready."""
        record = TrialRecord(
            number=trial.number,
            attempt=attempt,
            block=trial.block,
            boot=trial.boot,
            position=trial.position,
            cell=trial.cell,
            status=TrialStatus.INVALID,
            reasons=(error.message,),
            wall_s=wall_s,
        )
        folder = self._folder.new_trial(trial.number, attempt)
        keep_fault(folder, error)
        folder.write_record(record)
        return record
