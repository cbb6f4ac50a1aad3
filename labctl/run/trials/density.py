"""Count guests that keep a limit together: block by block, in many guests at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from labctl.base.command import Command, CommandResult
from labctl.base.errors import BrokenError, HostError, LabctlError
from labctl.base.events import Note, Warned
from labctl.base.notation import quantity
from labctl.base.wording import counted
from labctl.collect.snapshots import cpu_ticks
from labctl.run.collectors.calibrate import Calibrations
from labctl.run.guests.bench import host_changed, with_cpus_of_now
from labctl.run.guests.boots import Boots
from labctl.run.guests.clones import clone_room, cpu_ns
from labctl.run.guests.lab import Lab
from labctl.run.guests.neighbours import TunedGuest, TunedGuests, tuned_guests
from labctl.run.planning.density import DensityPlan, bracket, next_count
from labctl.run.trials.engine import PostBootSetup
from labctl.run.trials.parse import believable
from labctl.run.trials.proof import Proof
from labctl.run.trials.quiet import Quiet
from labctl.run.trials.request import SLACK_S
from labctl.run.trials.trial import ran_reasons, store_output
from labctl.run.trials.warmup import WINDOW_S, WINDOWS
from labctl.store.density_record import (
    OTHER_CPUS,
    CountRecord,
    DensityFolder,
    DensityLog,
    DensityRecord,
    GuestRecord,
    StepRecord,
)
from labctl.store.samples import Sample
from labctl.store.trial import TrialFolder
from labctl.workloads.setting import Parameters, Setting
from labctl.workloads.workload import Workload

# Run one workload in many guests at once, over one window, and read the metric of each.


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Hold the work of each guest. `metric`: the one that is read."""

    program: Workload
    parameters: Parameters
    vcpus: int
    duration_s: float
    metric: str

    def setting(self, guest: TunedGuest) -> Setting:
        return Setting(
            parameters=self.parameters,
            vcpus=self.vcpus,
            duration_s=self.duration_s,
            data_paths=guest.data_paths,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Result of guests over one window. `values`: each guest's metric, or a sentence on why it has
    none; `common_s`: seconds in which all of them ran; `other_cpus`: CPUs kept busy by others than
    these guests."""

    values: Sequence[float | str]
    common_s: float
    other_cpus: float


def run_together(
    job: Job, guests: Sequence[TunedGuest], folders: Sequence[TrialFolder]
) -> Together:
    """Warm all guests up at once, then run the job in all of them at once. `folders`: each guest's,
    for its output. Raises BrokenError if one is gone or fails to warm up."""
    with ExitStack() as stack:
        serving = []
        for guest in guests:
            servers = job.program.servers(job.setting(guest))
            serving.append(stack.enter_context(guest.channel.serving(servers)))
        # A load of fixed pace has no rate that could show a trend, so one run of it is enough.
        windows = 1 if job.program.rate_metric is None else WINDOWS
        for _ in range(windows):
            warmed = _at_once(
                guests,
                lambda guest: job.program.warmup_command(job.setting(guest), WINDOW_S, None),
                WINDOW_S + SLACK_S,
            )
            for guest, result in zip(guests, warmed.results, strict=True):
                if why := job.program.why_failed(result):
                    raise BrokenError(f"the warm-up in {guest.clone.identity.name} failed: {why}")
        window = _at_once(
            guests,
            lambda guest: job.program.command(job.setting(guest)),
            job.duration_s + SLACK_S,
        )
    values = []
    for guest, served, folder, result in zip(guests, serving, folders, window.results, strict=True):
        store_output(folder, result)
        command = job.program.command(job.setting(guest))
        reasons = ran_reasons(job.program, command, result, served, folder)
        values.append("; ".join(reasons) or _value(job, folder))
    return Together(values=values, common_s=window.common_s, other_cpus=window.other_cpus)


@dataclass(frozen=True, slots=True)
class _Window:
    results: list[CommandResult]
    common_s: float
    other_cpus: float


def _at_once(
    guests: Sequence[TunedGuest], command: Callable[[TunedGuest], Command], seconds: float
) -> _Window:
    """Fork a command in every guest, then release all of them."""
    with ExitStack() as stack:
        executions = [
            stack.enter_context(guest.channel.prepared(command(guest), seconds=seconds))
            for guest in guests
        ]
        began_s, busy_s, own_s = time.monotonic(), _busy_s(), _own_s(guests)
        went = []
        for execution in executions:
            execution.go()
            went.append(time.monotonic())
        # Nothing is sent to them until each has ended.
        for execution in executions:
            execution.wait_exited()
        taken_s = time.monotonic() - began_s
        others_s = (_busy_s() - busy_s) - (_own_s(guests) - own_s)
        results = [execution.result() for execution in executions]
    ends = [at + result.duration_s for at, result in zip(went, results, strict=True)]
    return _Window(results, max(0.0, min(ends) - max(went)), max(0.0, others_s / taken_s))


def _busy_s() -> float:
    """Return the busy CPU seconds of this host's CPUs."""
    ticks = cpu_ticks(Path("/proc/stat").read_text(encoding="ascii"), "cpu", "/proc/stat")
    return (ticks.total - ticks.idle - ticks.steal) / _TICKS_PER_S


def _own_s(guests: Sequence[TunedGuest]) -> float:
    """Return CPU seconds of the guests, and of this process, which waits."""
    used = sum(cpu_ns(guest.clone.running) for guest in guests)
    return used / 1e9 + time.process_time()


def _value(job: Job, folder: TrialFolder) -> float | str:
    """Return the guest's metric, or why it has none."""
    program = job.program.with_parameters(job.parameters)
    try:
        with believable(str(folder.path)):
            for reading in program.parse(folder):
                if isinstance(reading, Sample):
                    if reading.key == job.metric:
                        return reading.value
                elif reading.metric == job.metric:
                    return reading.reason
    except LabctlError as error:
        return error.message
    return f"its output has no '{job.metric}'"


# Count how many guests of a tuning keep the limit, in one block.


ATTEMPTS = 3
"""Attempts at a step."""


def count_guests(
    plan: DensityPlan,
    guests: TunedGuests,
    job: Job,
    block: int,
    log: DensityLog,
    quiet: Quiet,
) -> CountRecord:
    """Return the number of guests of the room's tuning that keep the limit, in this block; each
    step goes to the log. Raises BrokenError if a guest or its workload fails."""
    tuning = guests.room.tuning.name
    held: dict[int, bool] = {}
    ended: str | None = None
    while ended is None and (wanted := next_count(held, plan.most, plan.request.search)):
        if lacking := _resize(plan, guests, wanted):
            # Another process took memory that was free when the run was planned.
            wanted, ended = len(guests.guests), f"memory: {lacking}"
            if wanted == 0:
                return CountRecord(block=block, tuning=tuning, why=lacking)
            if wanted in held:
                break
        step = _undisturbed_step(plan, guests, job, block, log, quiet)
        if step.held is None:
            why = next(guest.why for guest in step.guests if guest.why is not None)
            why = f"{counted(wanted, 'guest')}: {why}"
            return CountRecord(block=block, tuning=tuning, why=why)
        if step.disturbed:
            ended = f"other processes on this host beside {counted(wanted, 'guest')}"
            break
        held[wanted] = step.held
        if not step.held:
            ended = None
    fitting, broken = bracket(held)
    if broken is not None and fitting == broken - 1:
        return CountRecord(block=block, tuning=tuning, number=fitting)
    if ended is not None and fitting == 0:
        # "At least none" would count as a number, and says nothing.
        return CountRecord(block=block, tuning=tuning, why=ended)
    bounded = ended or plan.most_by
    return CountRecord(block=block, tuning=tuning, number=fitting, bounded=bounded)


def _resize(plan: DensityPlan, guests: TunedGuests, wanted: int) -> str | None:
    """Add or end guests until there are so many; return why the host's memory does not suffice."""
    while len(guests.guests) > wanted:
        guests.remove_last()
    while len(guests.guests) < wanted:
        try:
            guests.room.check_memory(1)
        except HostError as error:
            return error.message
        guests.add(plan.places.of(len(guests.guests)))
    return None


def _undisturbed_step(
    plan: DensityPlan,
    guests: TunedGuests,
    job: Job,
    block: int,
    log: DensityLog,
    quiet: Quiet,
) -> StepRecord:
    """Return a step that others did not disturb, or the last of ATTEMPTS.

    CPU time taken by others can only break the limit, so a step that held is accepted in any
    case.
    """
    for attempt in range(1, ATTEMPTS + 1):
        step = _step(plan, guests, job, block, log.folder, attempt)
        log.add_step(step)
        guests.room.lab.listener(Note(text=_said(plan, step)))
        if not step.disturbed:
            break
        if attempt < ATTEMPTS and quiet.may_wait:
            quiet.wait()
    return step


def _step(
    plan: DensityPlan,
    guests: TunedGuests,
    job: Job,
    block: int,
    folder: DensityFolder,
    attempt: int,
) -> StepRecord:
    tuning, limit = guests.room.tuning.name, plan.request.limit
    count = len(guests.guests)
    again = "" if attempt == 1 else f".{attempt}"
    names = [f"b{block:02d}-{tuning}-n{count:02d}-g{g.number:02d}{again}" for g in guests.guests]
    found = run_together(job, guests.guests, [folder.guest(name) for name in names])
    guests.check_places()
    rows = []
    for guest, name, value in zip(guests.guests, names, found.values, strict=True):
        folder.guest(name).write_raw_json("guest.json", guest.clone.to_json())
        told = {"why": value} if isinstance(value, str) else {"value": value}
        rows.append(
            GuestRecord.made({"number": guest.number, "cpus": guest.cpus, "folder": name, **told})
        )
    values = [row.value for row in rows if row.value is not None]
    whole = len(values) == len(rows)
    held = limit.holds(limit.worst(values)) if whole else None
    return StepRecord(
        block=block,
        tuning=tuning,
        count=count,
        guests=tuple(rows),
        held=held,
        common_s=found.common_s,
        other_cpus=found.other_cpus,
        disturbed=held is False and found.other_cpus > OTHER_CPUS,
    )


def _said(plan: DensityPlan, step: StepRecord) -> str:
    limit = plan.request.limit
    where = f"Block {step.block} of {plan.request.blocks}, {step.tuning}"
    newest = step.guests[-1]
    placed = f"guest {newest.number} on {newest.cpus}"
    if step.held is None:
        return f"{where}: {counted(step.count, 'guest')} ({placed}): a guest has no value."
    worst = quantity(limit.worst(step.values), limit.unit)
    holds = "the limit holds" if step.held else "the limit breaks"
    if step.disturbed:
        others = step.other_cpus or 0.0
        holds = f"discarded, because other processes kept {others:.2f} CPUs busy"
    return (
        f"{where}: {counted(step.count, 'guest')} ({placed}), worst {limit.metric} {worst}: "
        f"{holds}."
    )


# Count in blocks: a boot each, every tuning in it, in the plan's order.


_HOPELESS = 2
"""Consecutive failures that end a run: the next would fail as well."""


WhyEnded = Callable[[DensityRecord], str | None]
"""Says why a run ends after a whole block; None: it goes on."""


def count_blocks(
    lab: Lab,
    plan: DensityPlan,
    job: Job,
    log: DensityLog,
    quiet: Quiet,
    why_ended: WhyEnded,
) -> None:
    """Count the guests of every tuning in every block until the run ends; the counts go to the log.

    A failure makes one number unavailable, with the reason. Raises BrokenError if two fail in a
    row, HostError if the host cannot go on.
    """
    proof = Proof(lab, plan.planned.plan)
    proof.check_tree()
    set_up = PostBootSetup(lab, plan.planned.plan, Calibrations(lab, {}), proof).set_up
    baseline = lab.tunings[plan.planned.plan.roles.baseline]
    blocks = range(1, plan.request.blocks + 1)
    disks = lab.source.disks(lab, baseline)
    boots = Boots(lab, disks, baseline, set_up, to_come=blocks)
    failed = 0
    with ExitStack() as stack:
        stack.callback(boots.drop)
        for block in blocks:
            for name in plan.order(block):
                try:
                    count = _counted(lab, boots, plan, name, job, block, log, quiet)
                except HostError:
                    raise
                except BrokenError as error:
                    count = CountRecord(block=block, tuning=name, why=error.message)
                    lab.listener(Warned(text=f"block {block}, {name}: {error.message}"))
                log.add_count(count)
                failed = failed + 1 if count.why is not None else 0
                if failed == _HOPELESS:
                    raise BrokenError(
                        f"{_HOPELESS} counts failed in a row; the last one: {count.why}",
                        hint=f"'labctl workload try {job.program.name} --guest' runs it once.",
                    )
            if block < plan.request.blocks and (why := why_ended(log.record)):
                log.put(stopped=why)
                lab.listener(Note(text=f"Stopped: {why}."))
                return


def _counted(
    lab: Lab,
    boots: Boots,
    plan: DensityPlan,
    name: str,
    job: Job,
    block: int,
    log: DensityLog,
    quiet: Quiet,
) -> CountRecord:
    # On the unchanged host, because every other tuning's guests are clones of this boot as well.
    saved, tuning = boots.saved(block), lab.tunings[name]
    with ExitStack() as stack:
        stack.enter_context(host_changed(lab, tuning))
        here = with_cpus_of_now(lab, tuning)
        seed = f"{plan.planned.plan.seed}:{block}"
        room = stack.enter_context(clone_room(here, saved, tuning, seed))
        guests = stack.enter_context(tuned_guests(room))
        return count_guests(plan, guests, job, block, log, quiet)
