"""Count in blocks: a boot each, every tuning in it, in the plan's order."""

from __future__ import annotations

from contextlib import ExitStack

from labctl.base.errors import BrokenError, HostError
from labctl.base.events import Warned
from labctl.run.collectors.calibrate import Calibrations
from labctl.run.guests.boots import Boots
from labctl.run.guests.clones import clone_room
from labctl.run.guests.host_side import host_changed, with_cpus_of_now
from labctl.run.guests.lab import Lab
from labctl.run.guests.tuned_guest import tuned_guests
from labctl.run.planning.density_plan import DensityPlan
from labctl.run.trials.density_count import count_guests
from labctl.run.trials.post_boot import PostBootSetup
from labctl.run.trials.proof import Proof
from labctl.run.trials.quiet import Quiet
from labctl.run.trials.together import Job
from labctl.store.density_record import CountRecord, DensityLog

_HOPELESS = 2
"""Failures, one after the other, that end a run: the next would fail like them."""


def count_blocks(lab: Lab, plan: DensityPlan, job: Job, log: DensityLog, quiet: Quiet) -> None:
    """Count the guests of every tuning in every block; the counts go to the log.

    What fails makes one number unavailable, with the reason. Raises BrokenError where two fail in
    a row, HostError where the host can't go on.
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
    # On the host as it is: every other tuning's guests are clones of this boot as well.
    saved, tuning = boots.saved(block), lab.tunings[name]
    with ExitStack() as stack:
        stack.enter_context(host_changed(lab, tuning))
        here = with_cpus_of_now(lab, tuning)
        seed = f"{plan.planned.plan.seed}:{block}"
        room = stack.enter_context(clone_room(here, saved, tuning, seed))
        guests = stack.enter_context(tuned_guests(room))
        return count_guests(plan, guests, job, block, log, quiet)
