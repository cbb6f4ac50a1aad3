"""Count how many guests fit on this host under each tuning before a limit breaks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import labctl
from labctl.base.errors import HostError
from labctl.base.events import Listener, Note, Warned
from labctl.base.process import cleaning_up
from labctl.host.facts import host_facts
from labctl.run.commands.host_checks import refuse_problems
from labctl.run.guests.base_guest import guest_base
from labctl.run.guests.lab_opening import open_lab
from labctl.run.guests.leftovers import alone
from labctl.run.planning.density import DensityPlan, DensityRequest, plan_density, planned_density
from labctl.run.planning.plan import with_image
from labctl.run.trials.density import Job, WhyEnded, count_blocks
from labctl.run.trials.quiet import Quiet
from labctl.store.density_record import (
    OTHER_CPUS,
    DensityFolder,
    DensityLog,
    DensityRecord,
    LimitRecord,
)
from labctl.workloads.registry import workload_of

# Keep the record of a density run up to date.


def folder_path(results: Path, workload: str) -> Path:
    """Return the folder for a new density run."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return results.resolve() / f"{moment}-density-{workload}"


@contextmanager
def recorded(path: Path, plan: DensityPlan, words: tuple[str, ...]) -> Iterator[DensityLog]:
    """Make the folder and keep its record up to date until the run ends. `words`: the command."""
    try:
        folder = DensityFolder.create(path)
    except OSError as error:
        raise HostError(
            f"cannot make the run's folder {path}: {error.strerror}",
            hint="Name a writable folder with --results.",
        ) from error
    log = DensityLog(folder, first_record(plan, words))
    log.put(status="running")
    try:
        yield log
        log.record = log.record.model_copy(update={"status": "done"})
    except KeyboardInterrupt as stopped:
        log.record = log.record.model_copy(update={"status": "interrupted"})
        if log.record.counts:
            shown = shlex.quote(str(folder.path))
            stopped.add_note(f"Show the result with: labctl density --show {shown}")
        raise
    except BaseException as error:
        log.record = log.record.model_copy(update={"status": "failed", "failure": str(error)})
        raise
    finally:
        with cleaning_up():
            log.put(ended_at=_now())


def first_record(plan: DensityPlan, words: tuple[str, ...]) -> DensityRecord:
    """Return what is known before anything is started."""
    request, limit = plan.request, plan.request.limit
    declared = request.workload.workload
    return DensityRecord.made(
        {
            "labctl": labctl.__version__,
            "command": shlex.join(words),
            "workload": request.workload.name,
            "parameters": dict(declared.parameters),
            "definition": dict(declared.definition or {}),
            "duration_s": declared.duration_s,
            "limit": LimitRecord(
                metric=limit.metric, bound=limit.bound, value=limit.value, unit=limit.unit
            ),
            "tunings": tuple(request.tunings),
            "blocks": request.blocks,
            "looks": len(request.tunings) > 1,
            "search": str(request.search),
            "most": plan.most,
            "most_by": plan.most_by,
            "seed": plan.planned.plan.seed,
            "vcpus": len(plan.planned.pin_plan.vcpus),
            "memory_mib": plan.memory_mib,
            "started_at": _now(),
        }
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def density(
    request: DensityRequest, words: tuple[str, ...], listener: Listener, why_ended: WhyEnded
) -> DensityFolder:
    """Run a density run; return its folder. `words`: the command, for its record; `why_ended`:
    asked after each block.

    Everything that it starts or changes is ended and restored, however it ends. Raises LabctlError;
    KeyboardInterrupt for Ctrl-C, SIGTERM and SIGHUP.
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
        _measure(request, plan, log, listener, why_ended)
        return log.folder


def _measure(
    request: DensityRequest,
    plan: DensityPlan,
    log: DensityLog,
    listener: Listener,
    why_ended: WhyEnded,
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
        count_blocks(lab, plan, job, log, quiet, why_ended)
