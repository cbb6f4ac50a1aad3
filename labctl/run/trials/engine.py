"""Run a plan's trials in its order, repeat invalid ones on a fresh restore, resume."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby

from labctl.base.channel import Channel
from labctl.base.errors import BrokenError, HostError, LabctlError
from labctl.base.events import Listener, Note, Progress, TrialEnded, Warned
from labctl.base.paths import StatePaths
from labctl.base.process import Deadline
from labctl.base.stopping import Looks
from labctl.base.tuning import Kind, Tuning
from labctl.base.wording import roughly
from labctl.host.machines import machine_facts, same_kernel
from labctl.run.collectors.calibrate import Calibrations
from labctl.run.collectors.trace_room import BlockRoom
from labctl.run.contained import foreseen
from labctl.run.guests.bench import Bench, bench_of
from labctl.run.guests.boots import BootError, Boots
from labctl.run.guests.lab import Lab
from labctl.run.planning.plan import done, reached
from labctl.run.resources.disks import Disks
from labctl.run.trials.beside import PlanNeighbours, serving
from labctl.run.trials.proof import Proof, of_older_trials
from labctl.run.trials.quiet import Quiet
from labctl.run.trials.trial import Attempts
from labctl.run.trials.warmup import WINDOW_S
from labctl.store import collecting_costs, restores
from labctl.store.exit_prices import known_prices
from labctl.store.records.plan_record import PlannedTrial, PlanRecord
from labctl.store.records.run_record import LookTaken, still_to_run
from labctl.store.run_folder import RunFolder, RunLog
from labctl.store.trial import TrialRecord, TrialStatus
from labctl.study.plan import Plan
from labctl.study.spares import losses, spares_due, why_spare
from labctl.study.study import StudyWorkload
from labctl.workloads.registry import workload_of
from labctl.workloads.setting import Setting

# Keep count of a run's trials: what is done, what is left, what is given up.


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
        self.looks: Sequence[LookTaken] = plan.looks
        """Looks that the run went on after, in order."""
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
            text = f"trial {lost.folder} does not count and is repeated: {lost.why}"
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
            why = why_spare(losses(self._plan, self._missed()))
            self._listener(Note(text=f"Block {spare} is a spare block, run because {why}."))
        return True

    def _spares_due(self) -> tuple[int, ...]:
        return spares_due(self._plan, self._missed(), self._begun)

    def _missed(self) -> set[int]:
        """Return trials that are given up in cells that are still measured."""
        lost = self._lost()
        ended = (
            trial.number
            for trial in self._trials
            if trial.number in lost and any(look.ends(trial) for look in self.looks)
        )
        return lost - set(ended)

    def _lost(self) -> set[int]:
        """Return trials that are given up."""
        trials = still_to_run(self._trials, self.looks)
        left = (trial for trial in trials if trial.number not in self._done)
        return {trial.number for trial in left if not self.may_try(trial)}

    def _to_do(self) -> tuple[PlannedTrial, ...]:
        """Return the trials of the run as far as it is decided: all planned ones, and of the spares
        those that are due by now."""
        unused = set(self._plan.spare_blocks) - set(self._spares_due())
        left = still_to_run(self._trials, self.looks)
        return tuple(trial for trial in left if trial.block not in unused)

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
                hint=f"Fix the cause, then run: labctl sweep --resume {self._name}",
            )


@dataclass(slots=True)
class _Pace:
    """Seconds that a trial of each tuning takes, with its share of restores and boots."""

    _spent: dict[str, list[float]] = field(default_factory=dict)

    def add(self, trials: Sequence[PlannedTrial], seconds: float) -> None:
        """Count trials of one tuning that took so long together."""
        each = [seconds / len(trials)] * len(trials)
        self._spent.setdefault(trials[0].cell["tuning"], []).extend(each)

    def of(self, trial: PlannedTrial) -> float:
        """Return what a trial takes: the mean of its tuning's, else of all; 0.0 before any."""
        spent = self._spent.get(trial.cell["tuning"]) or list(chain(*self._spent.values()))
        return sum(spent) / len(spent) if spent else 0.0


_HOPELESS_BOOTS = 2
"""Failed boots, one after the other: each costs minutes, and every tuning starts from them."""


WhyEnd = Callable[[int], str | LookTaken | None]
"""Asked after so many whole blocks: why the run ends there by its plan's rule, or which cells it
goes on without; None: it goes on."""


def never(blocks: int) -> str | LookTaken | None:
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
        attempts: Attempts,
        boots: Boots,
        proof: Proof,
        *,
        fresh_boots: bool,
        why_end: WhyEnd = never,
        on_look: Callable[[LookTaken], None] = lambda taken: None,
        quiet: Quiet | None = None,
        began: float | None = None,
    ) -> None:
        """`began`: start of the run by the monotonic clock, for a rule with a time; None: now."""
        lab, folder, plan = attempts.lab, attempts.folder, attempts.plan
        self._attempts = attempts
        self._lab = lab
        self._plan = plan
        self._trials = plan.in_order
        self._boots = boots
        self._proof = proof
        self._fresh = fresh_boots
        self._why_end = why_end
        self._on_look = on_look
        self.quiet = quiet or Quiet(plan.limits.other_cpu, 0.0, lab.listener)
        self._was_disturbed = False
        self.ended: Ended | None = None
        self._began = time.monotonic() if began is None else began
        self._pace = _Pace()
        self._failed_boots = 0
        self._room = BlockRoom(folder, plan, lab.listener)
        self._tally = Tally(folder, plan, lab.listener)

    def run(self) -> None:
        """Run every trial that isn't done, and spare blocks that are due, until the plan's rule
        ends the run, which `ended` then says.

        Raises what makes going on pointless.
        """
        for block, members in groupby(self._trials, key=lambda t: t.block):
            planned = list(members)
            if block in self._plan.spare_blocks and not self._tally.stands_in(block):
                continue
            if why := self._asked(planned):
                self.ended = Ended(block - 1, why)
                most = self._plan.blocks
                self._lab.listener(Note(text=f"Stopped after {block - 1} of {most} blocks: {why}."))
                return
            trials = still_to_run(planned, self._tally.looks)
            self._room.look(block, self._tally.not_done(trials))
            for _, inside in groupby(trials, key=lambda t: t.position):
                todo = self._tally.not_done(inside)
                while todo := [trial for trial in todo if self._tally.may_try(trial)]:
                    if self._was_disturbed:
                        self.quiet.wait()
                        self._was_disturbed = False
                    self._run_once(todo)
        if isinstance(self._plan.stopping, Looks):
            # What is decided now is left out of what may extend the run.
            self._ask(self._plan.blocks)

    def _asked(self, trials: Sequence[PlannedTrial]) -> str | None:
        """Return why the run ends before this block. One that has begun was decided on before it
        did."""
        rule, blocks = self._plan.stopping, trials[0].block - 1
        if rule is None or not rule.may_end_after(blocks):
            return None
        if self._tally.has_begun(trials):
            return None
        return self._ask(blocks)

    def _ask(self, blocks: int) -> str | None:
        """Return why the run ends after so many blocks. What the rule leaves out instead is
        recorded, once."""
        if any(look.blocks == blocks for look in self._tally.looks):
            return None
        found = self._why_end(blocks)
        if isinstance(found, LookTaken):
            before = [one for look in self._tally.looks for one in look.left_out]
            self._on_look(found)
            self._tally.looks = (*self._tally.looks, found)
            out = [
                f"{one.tuning} in {one.workload}"
                for one in found.left_out
                if not one.every and one not in before
            ]
            said = f": no more of {', '.join(dict.fromkeys(out))}" if out else ""
            late = self._too_late(blocks)
            rule = self._plan.stopping
            more = late is None and isinstance(rule, Looks) and blocks < rule.most_blocks
            shown = shlex.quote(str(self._attempts.folder.path))
            so_far = f" So far: labctl report {shown}" if more else ""
            self._lab.listener(Note(text=f"Look after {blocks} blocks{said}.{so_far}"))
            return late
        return found or self._too_late(blocks)

    def _too_late(self, blocks: int) -> str | None:
        """Return why the run ends at this look because the next one would come after its time, at
        the pace of each tuning so far; None: it comes in time, or nothing limits the time."""
        rule = self._plan.stopping
        if not isinstance(rule, Looks) or rule.within_s is None or blocks == rule.most_blocks:
            return None
        after = next(at for at in rule.at if at > blocks)
        to_come = still_to_run(
            [trial for trial in self._plan.trials if blocks < trial.block <= after],
            self._tally.looks,
        )
        at_s = time.monotonic() - self._began + sum(map(self._pace.of, to_come))
        if at_s <= rule.within_s:
            return None
        return (
            f"the next look, after {after} blocks, would have come after about {roughly(at_s)}, "
            f"and the time was {roughly(rule.within_s)}"
        )

    def _run_once(self, trials: Sequence[PlannedTrial]) -> None:
        """Run these trials of one tuning, inside one restore."""
        started = time.monotonic()
        try:
            with ExitStack() as stack:
                with foreseen("a machine was ready"):
                    self._attempts.neighbours.make_ready(trials)
                    bench = stack.enter_context(self._bench(trials[0]))
                if bench.boot:
                    self._failed_boots = 0
                else:
                    self._proof.for_arm(bench.tuning).check(bench.kind, bench.channel)
                for trial in trials:
                    self._lab.listener(self._tally.progress(trial))
                    if not self._run_trial(bench, trial):
                        return
            self._pace.add(trials, time.monotonic() - started)
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
                hint=f"{error.hint or 'Fix the cause.'} Then run: labctl sweep --resume "
                f"{self._attempts.folder.name}",
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
        serves = bench.serves() and self._attempts.neighbours.are_fit()
        return serves and not self._was_disturbed

    def counts(self) -> dict[str, int]:
        """Return trials planned (as far as the run went, where its rule ended it; with those of
        spares that are due), done, and invalid attempts so far."""
        last = self.ended.blocks if self.ended else self._plan.last_block
        return self._tally.counts(last)


# Define what a booted guest goes through before it is saved: facts, hashes, counts, warm files.


class PostBootSetup:
    """Set up each boot; keep the guest's facts from the first one."""

    def __init__(self, lab: Lab, plan: Plan, calibrations: Calibrations, proof: Proof) -> None:
        self._lab = lab
        self._plan = plan
        self._calibrations = calibrations
        self._proof = proof
        self._facts: dict[str, object] | None = None
        self._once = threading.Lock()

    def set_up(self, channel: Channel, data_paths: tuple[str, ...], tuning: Tuning) -> None:
        """Set up the guest in every boot, so that all are saved in the same state. `data_paths`:
        the data disks in that guest; `tuning`: the one that it booted with."""
        with self._once:  # two guests may boot at once
            if self._facts is None:
                self._facts = machine_facts(
                    lambda paths: channel.read(paths, Deadline.after(30, "the guest's facts"))
                )
            self._calibrations.for_arm(tuning).count_in_guest(channel)
        self._proof.for_arm(tuning).check(Kind.GUEST, channel)
        # One window of each program: its files are in the guest's page cache when it is saved,
        # so that no restore waits for them.
        programs = {item.program: item for item in self._in_guests()}
        for declared in programs.values():
            program = workload_of(declared)
            setting = Setting(
                parameters=program.check_parameters(declared.parameters),
                vcpus=self._lab.vcpus,
                duration_s=declared.duration_s,
                data_paths=data_paths,
                peer=self._lab.link.guest.peer if self._lab.link else None,
            )
            with (
                serving(self._lab, program, setting.parameters),
                channel.serving(program.servers(setting)),
            ):
                result = channel.run(program.warmup_command(setting, WINDOW_S, None), seconds=60)
            if why := program.why_failed(result):
                raise BrokenError(f"{declared.program} fails in the guest: {why}")

    def _in_guests(self) -> list[StudyWorkload]:
        left_out = self._plan.skipped_workloads
        return [
            declared
            for name, declared in self._plan.workloads.items()
            if Kind.GUEST not in left_out.get(name, {})
        ]

    def facts(self, host: dict[str, object]) -> dict[str, object]:
        """Return what run.json says of the guest, and of both sides together."""
        if self._facts is None:
            raise BrokenError("no boot has reported its facts yet")
        same, sentence = same_kernel(host, self._facts)
        return {
            "guest": self._facts,
            "binaries": self._proof.binaries(),
            "same_kernel": same,
            "kernel_sentence": sentence,
        }


# Carry out the trials of a plan in an open lab, and keep the run's record of how it went.


def carry_out(
    lab: Lab,
    log: RunLog,
    plan: Plan,
    disks: Disks,
    *,
    fresh_boots: bool,
    wait_quiet_s: float,
    why_end: WhyEnd,
    began: float,
) -> None:
    """Prove the programs, boot, and run every trial that is left. `disks`: what boots start from;
    `log`: of run.json, which is written when the boots are ready and by the caller at the end;
    `began`: when the command did, by the monotonic clock.
    """
    baseline = lab.tunings[plan.roles.baseline]
    folder, earlier = log.folder, log.record.hashed
    proof = Proof(lab, plan, earlier)
    proof.check_tree()
    if earlier is None and (before := done(folder, plan)):
        log.put(warnings=[*log.record.warnings, of_older_trials(len(before))])
    log.put(hashed=proof.to_json())
    calibrations = Calibrations(lab, plan.workloads)
    calibrations.count_natively()
    post_boot = PostBootSetup(lab, plan, calibrations, proof)
    so_far = reached(plan, folder)
    if log.record.fresh_boots is not None:
        fresh_boots = log.record.fresh_boots
    boots = Boots(
        lab,
        disks,
        baseline,
        post_boot.set_up,
        boots_before=so_far.last_boot,
        # Else one boot alone is saved, for what it tells of the guest.
        to_come=() if fresh_boots else so_far.boots,
    )
    with ExitStack() as stack:
        stack.callback(boots.drop)
        boots.saved(so_far.boots[0])
        log.put(
            **post_boot.facts(log.record.host),
            hashed=proof.to_json(),
            calibration=calibrations.summary(),
            fresh_boots=fresh_boots,
            restored_state=not fresh_boots,
        )
        _recall(lab.places, plan.record(), str(plan.collect), log)
        log.write()

        def on_look(taken: LookTaken) -> None:
            log.put(looks=[*log.record.looks, taken])
            log.write()

        def note(text: str) -> None:
            if text not in log.record.warnings:
                log.put(warnings=[*log.record.warnings, text])
                lab.listener(Warned(text=text))

        only_boot = so_far.boots[0] if fresh_boots else None
        neighbours = stack.enter_context(PlanNeighbours(lab, boots, plan, only_boot=only_boot))
        engine = Engine(
            Attempts(lab, folder, plan, calibrations, neighbours, note),
            boots,
            proof,
            fresh_boots=fresh_boots,
            why_end=why_end,
            on_look=on_look,
            quiet=Quiet(plan.limits.other_cpu, wait_quiet_s, lab.listener),
            began=began,
        )
        began = time.monotonic()
        try:
            engine.run()
        finally:
            _say_who_took_it(engine.quiet, time.monotonic() - began, lab.listener, log)
            if engine.ended:
                log.put(stopped=asdict(engine.ended))
            seconds = {str(number): taken for number, taken in boots.seconds.items()}
            log.put(
                trials=engine.counts(),
                hashed=proof.to_json(),
                boot_seconds=log.record.boot_seconds | seconds,
            )


def _say_who_took_it(quiet: Quiet, run_s: float, listener: Listener, log: RunLog) -> None:
    """Say what others cost the run, and put it into its record."""
    if text := quiet.summary(run_s):
        listener(Note(text=text))
        log.put(waited_for_quiet_s=(log.record.waited_for_quiet_s or 0.0) + quiet.waited_s)


def _recall(places: StatePaths, plan: PlanRecord, level: str, log: RunLog) -> None:
    """Copy the results of earlier runs about this host into the run's record, so that a report of
    this run does not depend on later ones."""
    record = log.record
    if record.restores_shown is None:
        known = [] if record.fresh_boots else restores.shown(places.restore_checks, record, plan)
        log.put(restores_shown=known)
    if record.collecting_costs is None:
        costs = collecting_costs.known(places.collecting_costs, record, level)
        log.put(collecting_costs=[asdict(cost) for cost in costs])
    if "exit_prices" not in record.model_fields_set:
        log.put(exit_prices=known_prices(places.exit_prices, record.host))
