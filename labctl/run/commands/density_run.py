"""Count how many guests fit on this host under each tuning before a limit breaks."""

from __future__ import annotations

import shlex
from contextlib import ExitStack

from labctl.base.events import Listener, Note, Warned
from labctl.host.facts import host_facts
from labctl.run.commands.density_log import folder_path, recorded
from labctl.run.commands.sweep_checks import refuse_problems
from labctl.run.guests.guest_base import guest_base
from labctl.run.guests.lab_opening import open_lab
from labctl.run.guests.leftovers import alone
from labctl.run.planning.density_plan import (
    DensityPlan,
    DensityRequest,
    plan_density,
    planned_density,
)
from labctl.run.planning.run_plan import with_image
from labctl.run.trials.density_blocks import count_blocks
from labctl.run.trials.quiet import Quiet
from labctl.run.trials.together import Job
from labctl.store.density_record import OTHER_CPUS, DensityFolder, DensityLog
from labctl.workloads.registry import workload_of


def density(request: DensityRequest, words: tuple[str, ...], listener: Listener) -> DensityFolder:
    """Carry a density run out; returns its folder. `words`: the command, for its record.

    Everything that it starts or changes is ended and put back, however it ends. Raises
    LabctlError; KeyboardInterrupt for Ctrl-C, SIGTERM and SIGHUP.
    """
    with ExitStack() as stack:
        path = folder_path(request.results, request.workload.name)
        stack.enter_context(alone(request.places, listener, shlex.join(words), path))
        plan = plan_density(request)
        refuse_problems(request.places, plan.planned, has_clones=True)
        planned = with_image(request.sweep, plan.planned, listener)
        if planned is not plan.planned:
            plan = planned_density(request, planned)
        for warning in plan.planned.warnings:
            listener(Warned(text=warning))
        listener(
            Note(
                text=f"At most {plan.most} guests ({plan.most_by}): {plan.needed_mib} MiB of "
                "memory with their QEMUs."
            )
        )
        log = stack.enter_context(recorded(path, plan, words))
        _measure(request, plan, log, listener)
        return log.folder


def _measure(
    request: DensityRequest, plan: DensityPlan, log: DensityLog, listener: Listener
) -> None:
    base = guest_base(plan.planned, request.places, request.accel, listener)
    listener(Note(text=base.accelerator.reason))
    declared = request.workload.workload
    program = workload_of(declared)
    with open_lab(request.places, plan.planned, base, listener=listener) as lab:
        log.put(
            accelerator=base.accelerator.name,
            accelerator_reason=base.accelerator.reason,
            host=host_facts(request.places),
            image=base.image.name,
        )
        job = Job(
            program=program,
            parameters=program.check_parameters(declared.parameters),
            vcpus=lab.vcpus,
            duration_s=declared.duration_s,
            metric=request.limit.metric,
        )
        quiet = Quiet(OTHER_CPUS, request.wait_quiet_s, listener)
        count_blocks(lab, plan, job, log, quiet)
