"""Count how many guests of a tuning keep the limit, in one block."""

from __future__ import annotations

from labctl.base.errors import HostError
from labctl.base.events import Note
from labctl.base.notation import quantity
from labctl.base.wording import counted
from labctl.run.guests.tuned_guest import TunedGuests
from labctl.run.planning.density_plan import DensityPlan
from labctl.run.planning.density_search import bracket, next_count
from labctl.run.trials.quiet import Quiet
from labctl.run.trials.together import Job, run_together
from labctl.store.density_record import (
    OTHER_CPUS,
    CountRecord,
    DensityFolder,
    DensityLog,
    GuestRecord,
    StepRecord,
)

ATTEMPTS = 3
"""Times that a step is tried."""


def count_guests(
    plan: DensityPlan,
    guests: TunedGuests,
    job: Job,
    block: int,
    log: DensityLog,
    quiet: Quiet,
) -> CountRecord:
    """Return the number of guests of the room's tuning that keep the limit, in this block; each
    step goes to the log. Raises BrokenError where a guest or its workload fails."""
    tuning = guests.room.tuning.name
    held: dict[int, bool] = {}
    ended: str | None = None
    while ended is None and (wanted := next_count(held, plan.most, plan.request.search)):
        if lacking := _resize(plan, guests, wanted):
            # Another took what was there when the run was planned.
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
            ended = f"others at work on this host beside {counted(wanted, 'guest')}"
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
    """Make guests, or end some, until there are so many; return why the host's memory doesn't
    suffice for them."""
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
    """Return a step that others didn't spoil, or the last of ATTEMPTS.

    What others take can only break the limit: a step that held is believed whoever ran beside it.
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
        holds = f"not believed, as others kept {others:.2f} CPUs busy"
    return (
        f"{where}: {counted(step.count, 'guest')} ({placed}), worst {limit.metric} {worst}: "
        f"{holds}."
    )
