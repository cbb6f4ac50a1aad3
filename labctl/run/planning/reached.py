"""Tell how far a run has come with its plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labctl.store.run_folder import RunFolder
from labctl.store.trial import TrialRecord, TrialStatus
from labctl.study.plan import Plan


@dataclass(frozen=True, slots=True)
class Reached:
    """Say how far a run is. `boots`: the plan's boots that have a trial yet to be done, in order;
    `last_boot`: the number of the last boot that was made, 0 for a new run."""

    boots: tuple[int, ...]
    last_boot: int

    @property
    def is_over(self) -> bool:
        return not self.boots


def reached(plan: Plan, folder: RunFolder) -> Reached:
    """Return how far the run in `folder` has come with `plan`."""
    records = _records(folder, plan)
    finished = _done(records)
    # Which other spares run is only known when the planned blocks are over.
    unused = set(plan.spare_blocks) - {record.block for record in records}
    left = [t.boot for t in plan.in_order if t.number not in finished and t.block not in unused]
    last = max((record.boot for record in records), default=0)
    return Reached(tuple(dict.fromkeys(left)), last)


def done(folder: RunFolder, plan: Plan) -> set[int]:
    """Return the numbers of the trials that have a valid result."""
    return _done(_records(folder, plan))


def _done(records: Iterable[TrialRecord]) -> set[int]:
    return {record.number for record in records if record.status is TrialStatus.DONE}


def _records(folder: RunFolder, plan: Plan) -> list[TrialRecord]:
    return folder.records(plan.record())[0]
