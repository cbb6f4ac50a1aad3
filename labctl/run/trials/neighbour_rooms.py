"""Open the rooms in which a plan's trials have guests as neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from labctl.run.guests.boots import Boots
from labctl.run.guests.clones import CloneRoom, clone_room
from labctl.run.guests.lab import Lab
from labctl.run.planning.planned_conditions import condition_of
from labctl.store.records.plan_record import PlannedTrial
from labctl.study.plan import Plan


class NeighbourRooms:
    """Provide a room for each trial that needs one. The neighbours of all arms of a block, native
    ones too, are clones of the boot that the block's guests are restored from.

    `only_boot`: the plan's boot of all neighbours, in a run whose guests boot for themselves.
    """

    def __init__(self, lab: Lab, boots: Boots, plan: Plan, *, only_boot: int | None = None) -> None:
        self._lab = lab
        self._boots = boots
        self._plan = plan
        self._only_boot = only_boot

    def make_ready(self, trials: Sequence[PlannedTrial]) -> None:
        """Boot what the neighbours of a machine's trials are clones of, if they have any: before
        the host is turned for the machine's tuning, as other arms have the same neighbours."""
        for trial in trials:
            condition = condition_of(self._plan, trial.cell["condition"])
            if condition is not None and condition.guests:
                self._boots.saved(self._boot_of(trial))

    def opened(self, trial: PlannedTrial) -> AbstractContextManager[CloneRoom]:
        """Return the room of a trial: the same seed for all arms of its block."""
        saved = self._boots.saved(self._boot_of(trial))
        tuning = self._lab.tunings[self._plan.roles.baseline]
        return clone_room(self._lab, saved, tuning, f"{self._plan.seed}:{trial.block}")

    def _boot_of(self, trial: PlannedTrial) -> int:
        return trial.boot if self._only_boot is None else self._only_boot
