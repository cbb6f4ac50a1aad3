"""Count how many guests of a tuning keep the limit, in one block."""

from __future__ import annotations

from labctl.base.errors import HostError
from labctl.base.events import Listener, Note
from labctl.base.notation import quantity
from labctl.base.wording import counted
from labctl.run.guests.tuned_guest import TunedGuests
from labctl.run.planning.density_plan import DensityPlan
from labctl.run.planning.density_search import bracket, next_count
from labctl.run.trials.together import Job, run_together
from labctl.store.density_record import (
    CountRecord,
    DensityFolder,
    DensityLog,
    GuestRecord,
    StepRecord,
)


def count_guests(
    plan: DensityPlan,
    guests: TunedGuests,
    job: Job,
    block: int,
    log: DensityLog,
    listener: Listener,
) -> CountRecord:
    """Return the number of guests of the room's tuning that keep the limit, in this block; each
    step goes to the log. Raises BrokenError where a guest or its workload fails."""
    tuning = guests.room.tuning.name
    held: dict[int, bool] = {}
    bounded = plan.most_by
    most = plan.most
    while (wanted := next_count(held, most, plan.request.search)) is not None:
        try:
            _resize(plan, guests, wanted)
        except HostError as error:
            # Another took what was there when the run was planned: what held is a lower bound.
            most, bounded = len(guests.guests), f"memory: {error.message}"
            if most in held:
                continue
            wanted = most
            if wanted == 0:
                return CountRecord(block=block, tuning=tuning, why=error.message)
        step = _step(plan, guests, job, block, log.folder)
        log.add_step(step)
        listener(Note(text=_said(plan, step)))
        if step.held is None:
            why = next(guest.why for guest in step.guests if guest.why is not None)
            why = f"{counted(wanted, 'guest')}: {why}"
            return CountRecord(block=block, tuning=tuning, why=why)
        held[wanted] = step.held
    fitting, broken = bracket(held)
    if broken is None:
        return CountRecord(block=block, tuning=tuning, number=fitting, bounded=bounded)
    return CountRecord(block=block, tuning=tuning, number=fitting)


def _resize(plan: DensityPlan, guests: TunedGuests, wanted: int) -> None:
    """Make guests, or end some, until there are so many. Raises HostError where memory ends it."""
    while len(guests.guests) > wanted:
        guests.remove_last()
    while len(guests.guests) < wanted:
        guests.room.check_memory(1)
        guests.add(plan.places.of(len(guests.guests)))


def _step(
    plan: DensityPlan, guests: TunedGuests, job: Job, block: int, folder: DensityFolder
) -> StepRecord:
    tuning, limit = guests.room.tuning.name, plan.request.limit
    count = len(guests.guests)
    names = [f"b{block:02d}-{tuning}-n{count:02d}-g{guest.number:02d}" for guest in guests.guests]
    found = run_together(job, guests.guests, [folder.guest(name) for name in names])
    rows = []
    for guest, name, value in zip(guests.guests, names, found.values, strict=True):
        folder.guest(name).write_raw_json("guest.json", guest.clone.to_json())
        told = {"why": value} if isinstance(value, str) else {"value": value}
        rows.append(
            GuestRecord.made({"number": guest.number, "cpus": guest.cpus, "folder": name, **told})
        )
    values = [row.value for row in rows if row.value is not None]
    whole = len(values) == len(rows)
    return StepRecord(
        block=block,
        tuning=tuning,
        count=count,
        guests=tuple(rows),
        held=limit.holds(limit.worst(values)) if whole else None,
        common_s=found.common_s,
        other_cpus=found.other_cpus,
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
    return (
        f"{where}: {counted(step.count, 'guest')} ({placed}), worst {limit.metric} {worst}: "
        f"{holds}."
    )
