"""Run a plan's trials in its order, repeat invalid ones on a fresh restore, resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from labctl.base.errors import HostError, LabctlError
from labctl.base.events import Note, Warned
from labctl.run.collectors.trace_room import BlockRoom
from labctl.run.contained import foreseen
from labctl.run.guests.bench import Bench
from labctl.run.guests.benches import bench_of
from labctl.run.guests.boots import BootError, Boots
from labctl.run.guests.lab import Lab
from labctl.run.trials.attempt import Attempts
from labctl.run.trials.proof import Proof
from labctl.run.trials.quiet import Quiet
from labctl.run.trials.tally import HopelessError, Tally
from labctl.store.records.plan_record import PlannedTrial
from labctl.store.run_folder import RunFolder
from labctl.study.plan import Plan

_HOPELESS_BOOTS = 2
"""Failed boots, one after the other: each costs minutes, and every tuning starts from them."""


WhyEnd = Callable[[int], str | None]
"""Asked after so many whole blocks: why the run ends there by its plan's rule; None: it goes on."""


def never(blocks: int) -> str | None:
    """Never end early: for a plan without a rule."""
    return None


@dataclass(frozen=True, slots=True)
class Ended:
    """Report that the plan's rule ended the run after so many whole blocks."""

    blocks: int
    why: str


class Engine:
    """Execute a plan once. `run` may be called again after an interruption."""

    def __init__(
        self,
        lab: Lab,
        folder: RunFolder,
        plan: Plan,
        boots: Boots,
        attempts: Attempts,
        proof: Proof,
        *,
        fresh_boots: bool,
        why_end: WhyEnd = never,
        quiet: Quiet | None = None,
    ) -> None:
        self._lab = lab
        self._folder = folder
        self._plan = plan
        self._trials = plan.in_order
        self._boots = boots
        self._proof = proof
        self._fresh = fresh_boots
        self._why_end = why_end
        self.quiet = quiet or Quiet(plan.limits.other_cpu, 0.0, lab.listener)
        self._was_disturbed = False
        self.ended: Ended | None = None
        self._failed_boots = 0
        self._room = BlockRoom(folder, plan, lab.listener)
        self._tally = Tally(folder, plan, lab.listener)
        self._attempts = attempts

    def run(self) -> None:
        """Run every trial that isn't done, and spare blocks that are due, until the plan's rule
        ends the run, which `ended` then says.

        Raises what makes going on pointless.
        """
        for block, members in groupby(self._trials, key=lambda t: t.block):
            trials = list(members)
            if block in self._plan.spare_blocks and not self._tally.stands_in(block):
                continue
            if why := self._asked(trials):
                self.ended = Ended(block - 1, why)
                most = self._plan.blocks
                self._lab.listener(Note(text=f"Ends after {block - 1} of {most} blocks: {why}."))
                return
            self._room.look(block, self._tally.not_done(trials))
            for _, inside in groupby(trials, key=lambda t: t.position):
                todo = self._tally.not_done(inside)
                while todo := [trial for trial in todo if self._tally.may_try(trial)]:
                    if self._was_disturbed:
                        self.quiet.wait()
                        self._was_disturbed = False
                    self._run_once(todo)

    def _asked(self, trials: Sequence[PlannedTrial]) -> str | None:
        """Return why the run ends before this block. One that has begun was decided on before it
        did."""
        rule, blocks = self._plan.stopping, trials[0].block - 1
        if rule is None or not rule.may_end_after(blocks):
            return None
        if self._tally.has_begun(trials):
            return None
        return self._why_end(blocks)

    def _run_once(self, trials: Sequence[PlannedTrial]) -> None:
        """Run these trials of one tuning, inside one restore."""
        started = time.monotonic()
        try:
            with ExitStack() as stack:
                with foreseen("a machine was made ready"):
                    self._attempts.rooms.make_ready(trials)
                    bench = stack.enter_context(self._bench(trials[0]))
                if bench.boot:
                    self._failed_boots = 0
                else:
                    self._proof.check(bench.kind, bench.channel)
                for trial in trials:
                    self._lab.listener(self._tally.progress(trial))
                    if not self._run_trial(bench, trial):
                        return
        except (HostError, HopelessError):
            raise
        except LabctlError as error:
            # What the machine never got to is no attempt; the one it failed at is.
            left = [t for t in trials if self._tally.may_try(t)]
            if left:
                taken_s = time.monotonic() - started
                number = self._tally.next_attempt(left[0])
                self._tally.add(self._attempts.failed(left[0], number, error, taken_s))
            else:
                self._lab.listener(Warned(text=error.message))
            if isinstance(error, BootError):
                self._count_failed_boot(error)

    def _count_failed_boot(self, error: BootError) -> None:
        self._failed_boots += 1
        if self._failed_boots >= _HOPELESS_BOOTS:
            raise HopelessError(
                f"the guest failed to boot {self._failed_boots} times in a row; the last time: "
                f"{error.message}",
                hint=f"{error.hint or 'Mend the cause.'} "
                f"Then: labctl sweep --resume {self._folder.name}",
            ) from error

    def _bench(self, trial: PlannedTrial) -> AbstractContextManager[Bench]:
        tuning = self._lab.tunings[trial.cell["tuning"]]
        return bench_of(self._lab, self._boots, trial.boot, tuning, fresh=self._fresh)

    def _run_trial(self, bench: Bench, trial: PlannedTrial) -> bool:
        """Return whether the machine serves for the next trial, after one attempt at this one."""
        number = self._tally.next_attempt(trial)
        done = self._attempts.run(bench, trial, number, traces=self._room.is_enough)
        self._tally.add(done.record)
        if done.is_disturbed:
            self.quiet.blame(done.others)
            self._was_disturbed = self.quiet.may_wait
        # A machine isn't kept for as long as others may take.
        return not self._was_disturbed and bench.serves()

    def counts(self) -> dict[str, Any]:
        """Return trials planned (as far as the run went, where its rule ended it; with those of
        spares that are due), done, and invalid attempts so far."""
        last = self.ended.blocks if self.ended else self._plan.last_block
        return self._tally.counts(last)
