"""Keep count of a run's trials: what is done, what is left, what is given up."""

from __future__ import annotations

import time
from collections.abc import Iterable

from labctl.base.errors import BrokenError
from labctl.base.events import Listener, Note, Progress, TrialEnded, Warned
from labctl.store.records.plan_record import PlannedTrial
from labctl.store.run_folder import RunFolder
from labctl.store.trial import TrialRecord, TrialStatus
from labctl.study.plan import Plan
from labctl.study.spares import losses, spares_due, why_spare

_HOPELESS_TRIALS = 12
"""Number of first attempts: when all of them are invalid, the run ends instead of wasting hours."""


class HopelessError(BrokenError):
    """Going on would waste hours."""


class Tally:
    """Count attempts as they end, from those that the run's folder holds."""

    def __init__(self, folder: RunFolder, plan: Plan, listener: Listener) -> None:
        self._name = folder.name
        self._plan = plan
        self._trials = plan.in_order
        self._listener = listener
        self._done: set[int] = set()
        self._begun: set[int] = set()
        self._attempts: dict[int, int] = {}
        self._invalid = 0
        self._started = time.monotonic()
        records, damaged = folder.records(plan.record())
        for record in records:
            self._count(record)
        for lost in damaged:
            # Its folder stays, and the next attempt gets one of its own.
            self._attempts[lost.number] = max(self._attempts.get(lost.number, 0), lost.attempt)
            text = f"trial {lost.folder} does not count and is done again: {lost.why}"
            listener(Warned(text=text))
        # A resumed run may try again what was invalid: its cause may have been mended.
        self._attempts_before = dict(self._attempts)
        self._done_before = len(self._done)

    def add(self, record: TrialRecord) -> None:
        """Count an attempt that has ended, and tell the listener. Raises HopelessError where all
        that the run has tried was invalid."""
        self._count(record)
        self._tell(record)

    def not_done(self, trials: Iterable[PlannedTrial]) -> list[PlannedTrial]:
        """Return those that have no valid result."""
        return [trial for trial in trials if trial.number not in self._done]

    def has_begun(self, trials: Iterable[PlannedTrial]) -> bool:
        """Return whether any of them was tried."""
        return any(trial.number in self._attempts for trial in trials)

    def next_attempt(self, trial: PlannedTrial) -> int:
        """Return the number of the next attempt at a trial, from 1."""
        return self._attempts.get(trial.number, 0) + 1

    def may_try(self, trial: PlannedTrial) -> bool:
        """Return whether a trial is left that the study allows one more attempt."""
        tries = self._attempts.get(trial.number, 0) - self._attempts_before.get(trial.number, 0)
        return trial.number not in self._done and tries < self._plan.limits.attempts

    def progress(self, trial: PlannedTrial) -> Progress:
        """Return how far the run is, with `trial` what is measured next."""
        planned, done = len(self._to_do()), len(self._done)
        left = planned - done - len(self._lost())
        tried = sum(self._attempts.values()) - sum(self._attempts_before.values())
        # By what is done: attempts that count for nothing will go on taking their share.
        pace = (done - self._done_before) or tried
        mean = (time.monotonic() - self._started) / pace if pace else None
        return Progress(
            done=done,
            planned=planned,
            invalid=self._invalid,
            doing=f"block {trial.block}: {' · '.join(trial.cell.values())}",
            left_s=mean * left if mean is not None else None,
            at_most=self._plan.stopping is not None,
        )

    def counts(self, last_block: int) -> dict[str, int]:
        """Return trials planned up to a block, with those of spares that are due; done; and invalid
        attempts so far."""
        return {
            "planned": sum(trial.block <= last_block for trial in self._to_do()),
            "done": len(self._done),
            "invalid": self._invalid,
        }

    def stands_in(self, spare: int) -> bool:
        """Return whether a spare block runs: for what was lost, whatever the rest has measured."""
        if spare not in self._spares_due():
            return False
        if spare not in self._begun:
            why = why_spare(losses(self._plan, self._lost()))
            self._listener(Note(text=f"Block {spare} is a spare: it runs because {why}."))
        return True

    def _spares_due(self) -> tuple[int, ...]:
        return spares_due(self._plan, self._lost(), self._begun)

    def _lost(self) -> set[int]:
        """Return trials that are given up."""
        left = (trial for trial in self._trials if trial.number not in self._done)
        return {trial.number for trial in left if not self.may_try(trial)}

    def _to_do(self) -> tuple[PlannedTrial, ...]:
        """Return the trials of the run as far as it is decided: all planned ones, and of the spares
        those that are due by now."""
        unused = set(self._plan.spare_blocks) - set(self._spares_due())
        return tuple(trial for trial in self._trials if trial.block not in unused)

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
        self._listener(TrialEnded(number=record.number, valid=valid, text=text))
        tried = sum(self._attempts.values()) - sum(self._attempts_before.values())
        if not self._done and tried >= _HOPELESS_TRIALS:
            raise HopelessError(
                f"the first {tried} attempts were all invalid; the last: {text}",
                hint=f"Mend the cause, then: labctl sweep --resume {self._name}",
            )
