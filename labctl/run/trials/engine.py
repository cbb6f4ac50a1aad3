"""Run a plan's trials in its order, repeat invalid ones on a fresh restore, resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, HostError, LabctlError
from labctl.base.events import Note, Progress, TrialEnded, Warned
from labctl.base.levels import Level
from labctl.base.tuning import Kind
from labctl.collect.traces.perf_record import NO_ROOM
from labctl.run.collectors.calibrate import Calibrations
from labctl.run.collectors.trace_room import MORE_ROOM, holds_block
from labctl.run.contained import foreseen, keep_fault
from labctl.run.guests.bench import Bench
from labctl.run.guests.benches import bench_of
from labctl.run.guests.boots import BootError, Boots
from labctl.run.guests.lab import Lab
from labctl.run.trials.parse import parse_trial
from labctl.run.trials.proof import Proof
from labctl.run.trials.quiet import Quiet, Since
from labctl.run.trials.trial import run_trial
from labctl.run.trials.trial_request import TrialRequest
from labctl.run.trials.validity import invalid_reasons, is_disturbed
from labctl.store.records.plan_record import PlannedTrial
from labctl.store.run_folder import RunFolder
from labctl.store.trial import TrialRecord, TrialStatus
from labctl.study.plan import Plan
from labctl.study.spares import losses, spares_due, why_spare
from labctl.workloads.registry import workload

_HOPELESS_TRIALS = 12
"""Number of first attempts: when all of them are invalid, the run ends instead of wasting hours."""


_HOPELESS_BOOTS = 2
"""Failed boots, one after the other: each costs minutes, and every tuning starts from them."""


class _HopelessError(BrokenError):
    """Going on would waste hours."""


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
        calibrations: Calibrations,
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
        self._calibrations = calibrations
        self._proof = proof
        self._fresh = fresh_boots
        self._why_end = why_end
        self.quiet = quiet or Quiet(plan.limits.other_cpu, 0.0, lab.listener)
        self._was_disturbed = False
        self.ended: Ended | None = None
        self._done: set[int] = set()
        self._begun: set[int] = set()
        self._attempts: dict[int, int] = {}
        self._invalid = 0
        self._failed_boots = 0
        self._window_rates: dict[tuple[str, str], float] = {}
        self._traces = True
        self._started = time.monotonic()
        records, damaged = folder.records(plan.record())
        for record in records:
            self._count(record)
        for lost in damaged:
            # Its folder stays, and the next attempt gets one of its own.
            self._attempts[lost.number] = max(self._attempts.get(lost.number, 0), lost.attempt)
            text = f"trial {lost.folder} does not count and is done again: {lost.why}"
            lab.listener(Warned(text=text))
        # A resumed run may try again what was invalid: its cause may have been mended.
        self._attempts_before = dict(self._attempts)
        self._done_before = len(self._done)

    def run(self) -> None:
        """Run every trial that isn't done, and spare blocks that are due, until the plan's rule
        ends the run, which `ended` then says.

        Raises what makes going on pointless.
        """
        for block, members in groupby(self._trials, key=lambda t: t.block):
            trials = list(members)
            if block in self._plan.spare_blocks and not self._stands_in(block):
                continue
            if why := self._asked(trials):
                self.ended = Ended(block - 1, why)
                most = self._plan.blocks
                self._lab.listener(Note(text=f"Ends after {block - 1} of {most} blocks: {why}."))
                return
            self._look_for_room(block, [t for t in trials if t.number not in self._done])
            for _, inside in groupby(trials, key=lambda t: t.position):
                todo = [trial for trial in inside if trial.number not in self._done]
                while todo := [trial for trial in todo if self._may_try(trial)]:
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
        if any(trial.number in self._attempts for trial in trials):
            return None
        return self._why_end(blocks)

    def _stands_in(self, spare: int) -> bool:
        """Return whether a spare block runs: for what was lost, whatever the rest has measured."""
        if spare not in self._spares_due():
            return False
        if spare not in self._begun:
            why = why_spare(losses(self._plan, self._lost()))
            self._lab.listener(Note(text=f"Block {spare} is a spare: it runs because {why}."))
        return True

    def _spares_due(self) -> tuple[int, ...]:
        return spares_due(self._plan, self._lost(), self._begun)

    def _lost(self) -> set[int]:
        """Return trials that are given up."""
        left = (trial for trial in self._trials if trial.number not in self._done)
        return {trial.number for trial in left if not self._may_try(trial)}

    def _to_do(self) -> tuple[PlannedTrial, ...]:
        """Return the trials of the run as far as it is decided: all planned ones, and of the spares
        those that are due by now."""
        unused = set(self._plan.spare_blocks) - set(self._spares_due())
        return tuple(trial for trial in self._trials if trial.block not in unused)

    def _look_for_room(self, block: int, todo: Sequence[PlannedTrial]) -> None:
        """Decide whether the block is traced. All of it or nothing: its arms are compared."""
        if self._plan.collect is not Level.TRACE or not todo:
            return
        windows_s = [self._plan.workloads[trial.cell["workload"]].duration_s for trial in todo]
        had_room, self._traces = self._traces, holds_block(self._folder, windows_s)
        if had_room and not self._traces:
            text = f"From block {block} on nothing is traced: {NO_ROOM} {MORE_ROOM}"
            self._lab.listener(Warned(text=text))

    def _may_try(self, trial: PlannedTrial) -> bool:
        tries = self._attempts.get(trial.number, 0) - self._attempts_before.get(trial.number, 0)
        return trial.number not in self._done and tries < self._plan.limits.attempts

    def _run_once(self, trials: Sequence[PlannedTrial]) -> None:
        """These trials of one tuning, inside one restore."""
        started = time.monotonic()
        try:
            with ExitStack() as stack:
                with foreseen("a machine was made ready"):
                    bench = stack.enter_context(self._bench(trials[0]))
                if bench.boot:
                    self._failed_boots = 0
                if bench.kind is Kind.NATIVE:
                    self._proof.check(Kind.NATIVE, bench.channel)
                for trial in trials:
                    self._progress(trial)
                    if not self._run_trial(bench, trial):
                        return
        except (HostError, _HopelessError):
            raise
        except LabctlError as error:
            # What the machine never got to is no attempt; the one it failed at is.
            left = [t for t in trials if self._may_try(t)]
            if left:
                self._record_failure(left[0], error, time.monotonic() - started)
            else:
                self._lab.listener(Warned(text=error.message))
            if isinstance(error, BootError):
                self._count_failed_boot(error)

    def _count_failed_boot(self, error: BootError) -> None:
        self._failed_boots += 1
        if self._failed_boots >= _HOPELESS_BOOTS:
            raise _HopelessError(
                f"the guest failed to boot {self._failed_boots} times in a row; the last time: "
                f"{error.message}",
                hint=f"{error.hint or 'Mend the cause.'} "
                f"Then: labctl sweep --resume {self._folder.name}",
            ) from error

    def _bench(self, trial: PlannedTrial) -> AbstractContextManager[Bench]:
        tuning = self._lab.tunings[trial.cell["tuning"]]
        return bench_of(self._lab, self._boots, trial.boot, tuning, fresh=self._fresh)

    def _run_trial(self, bench: Bench, trial: PlannedTrial) -> bool:
        """Return one attempt; False when the machine is no longer there for the next trial."""
        attempt = self._attempts.get(trial.number, 0) + 1
        folder = self._folder.new_trial(trial.number, attempt)
        declared = self._plan.workloads[trial.cell["workload"]]
        request = TrialRequest(
            planned=trial,
            attempt=attempt,
            workload=workload(declared.program),
            declared=declared,
            limits=self._plan.limits,
            level=self._plan.collect,
            window_rates=self._window_rates,
            traces=self._traces,
        )
        since = Since.now()
        record = run_trial(self._lab, bench, self._calibrations, request, folder)
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
        self._count(record)
        self._tell(record)
        if disturbed:
            self.quiet.blame(others)
            self._was_disturbed = self.quiet.may_wait
        # A machine isn't kept for as long as others may take.
        return not self._was_disturbed and self._serves(bench)

    def _serves(self, bench: Bench) -> bool:
        """Return whether the machine answers, and its threads are still what was asked: where
        somebody has changed them, the trials that are left take another one."""
        try:
            bench.channel.wait_ready(Deadline.after(30, "the machine's answer after a trial"))
        except BrokenError:
            return False
        return bool(bench.problems) or not bench.misplaced()

    def _record_failure(self, trial: PlannedTrial, error: LabctlError, wall_s: float) -> None:
        attempt = self._attempts.get(trial.number, 0) + 1
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
        self._count(record)
        self._tell(record)

    def _count(self, record: TrialRecord) -> None:
        self._begun.add(record.block)
        self._attempts[record.number] = max(self._attempts.get(record.number, 0), record.attempt)
        if record.status is TrialStatus.DONE:
            self._done.add(record.number)
        else:
            self._invalid += 1

    def _tell(self, record: TrialRecord) -> None:
        cell = ", ".join(record.cell.values())
        text = f"trial {record.number} ({cell})"
        if record.reasons:
            text += f": {'; '.join(record.reasons)}"
        valid = record.status is TrialStatus.DONE
        self._lab.listener(TrialEnded(number=record.number, valid=valid, text=text))
        tried = sum(self._attempts.values()) - sum(self._attempts_before.values())
        if not self._done and tried >= _HOPELESS_TRIALS:
            raise _HopelessError(
                f"the first {tried} attempts were all invalid; the last: {text}",
                hint=f"Mend the cause, then: labctl sweep --resume {self._folder.name}",
            )

    def _progress(self, trial: PlannedTrial) -> None:
        planned, done = len(self._to_do()), len(self._done)
        left = planned - done - len(self._lost())
        tried = sum(self._attempts.values()) - sum(self._attempts_before.values())
        # By what is done: attempts that count for nothing will go on taking their share.
        pace = (done - self._done_before) or tried
        mean = (time.monotonic() - self._started) / pace if pace else None
        self._lab.listener(
            Progress(
                done=done,
                planned=planned,
                invalid=self._invalid,
                doing=f"block {trial.block}: {' · '.join(trial.cell.values())}",
                left_s=mean * left if mean is not None else None,
                at_most=self._plan.stopping is not None,
            )
        )

    def counts(self) -> dict[str, Any]:
        """Return trials planned (as far as the run went, where its rule ended it; with those of
        spares that are due), done, and invalid attempts so far."""
        last = self.ended.blocks if self.ended else self._plan.last_block
        return {
            "planned": sum(trial.block <= last for trial in self._to_do()),
            "done": len(self._done),
            "invalid": self._invalid,
        }
