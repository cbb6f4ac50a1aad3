"""Plan a run: a new one, one that goes on, or one that is extended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from labctl.base.errors import BrokenError, UsageError
from labctl.base.events import Listener
from labctl.domain.session import EMBEDDED, is_embedded
from labctl.host.topology import read_topology
from labctl.run.planning.fitting import pin_plans_of, pins_digest
from labctl.run.planning.guest_image import accelerator_of, recipe_of_run
from labctl.run.planning.own_domain import own_of_run
from labctl.run.planning.planned import Planned, SweepRequest
from labctl.run.planning.planner import plan_sweep
from labctl.store.records.plan_record import ExtensionRecord, PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import RunFolder
from labctl.study.extension import as_carried_out, extended, extension
from labctl.study.plan import Plan, changed_tunings
from labctl.study.tunings import load_tunings


@dataclass(frozen=True, slots=True)
class Begun:
    """Hold what the folder of a run that goes on says of how it began, and of how far its rule and
    its extensions took it."""

    folder: RunFolder
    record: RunRecord
    plan: PlanRecord
    extensions: Sequence[ExtensionRecord]

    @classmethod
    def read(cls, folder: RunFolder) -> Begun:
        """Return what is there. Raises UsageError for a run that labctl can't go on with,
        BrokenError for one that isn't whole."""
        record = folder.read_run()
        if record.imported:
            raise UsageError(
                f"run '{folder.name}' was imported: labctl did not measure it and can't go on with "
                "it"
            )
        if record.redacted:
            raise UsageError(
                f"run '{folder.name}' is a redacted copy: its trials and new ones would name two "
                "hosts",
                hint="Go on with the run that it was made of.",
            )
        return cls(folder, record, folder.read_plan(), folder.read_extensions())


def on_its_connection(request: SweepRequest, begun: Begun | None) -> SweepRequest:
    """Return the request over the connection that its run was begun with: another one has another
    QEMU user and other cgroups."""
    if begun is None or request.connect is not None:
        return request
    began = begun.record.connection or EMBEDDED
    return request if is_embedded(began) else replace(request, connect=began)


def planned_for(request: SweepRequest, begun: Begun | None) -> Planned:
    """Return the plan of a request: of a new run, or of one that was begun."""
    if begun is None:
        return plan_sweep(request)
    if request.extend:
        return extended_plan(begun, request.overrides.blocks or 0)
    return resumed_plan(begun)


def with_image(request: SweepRequest, planned: Planned, listener: Listener) -> Planned:
    """Return the plan, made once more where it hangs on what guests run under, which only a kernel
    that boots can tell, or on what that kernel or the image has: there is none before the image is
    built."""
    if not (planned.hangs_on_accelerator or planned.hangs_on_image or planned.unchecked):
        return planned
    chosen = accelerator_of(planned.recipe, request.places, request.accel, listener)
    return plan_sweep(replace(request, seed=planned.plan.seed), chosen.name)


def plan_of(begun: Begun) -> Plan:
    """Return what a run carries out: its plan until its rule ended it, and what extends it
    since."""
    stopped = begun.record.stopped
    ended_after = stopped.blocks if stopped else None
    return as_carried_out(Plan.of(begun.plan), ended_after, begun.extensions)


def extended_plan(begun: Begun, blocks: int) -> Planned:
    """Return `resumed_plan` of a finished run with so many more blocks.

    Raises UsageError where the run is not finished.
    """
    planned = resumed_plan(begun)
    folder, status = begun.folder, begun.record.status
    tried = {record.block for record in folder.records(planned.plan.record())[0]}
    if status != "done" or planned.plan.blocks not in tried:
        said = f"status: {status}" if status != "done" else "its last extension has not begun"
        raise UsageError(
            f"run '{folder.name}' is not finished ({said}), so there is nothing to extend",
            hint=f"First: labctl sweep --resume {folder.name}",
        )
    last = begun.extensions[-1].digest if begun.extensions else begun.plan.digest
    added = extension(planned.plan, blocks, extends=str(last))
    return replace(planned, plan=extended(planned.plan, added), added=added)


def resumed_plan(begun: Begun) -> Planned:
    """Return the plan of a run and of its extensions, for a host that is still the one it was made
    for."""
    plan, folder = plan_of(begun), begun.folder
    topology = read_topology()
    tunings = load_tunings(tuple(plan.tunings))
    if plan.guest.vcpus is None:
        raise BrokenError(f"{folder.path / 'plan.json'} does not say how many vCPUs the guest has")
    pin_plans, unplaced = pin_plans_of(topology, plan.guest.vcpus, tunings.values())
    if unplaced or pins_digest(pin_plans) != plan.host_digest:
        raise UsageError(
            f"run '{folder.name}' was planned for other CPUs than this host has now",
            hint="Resume it where it began, or start a new run.",
        )
    if changed := changed_tunings(plan, tunings):
        raise UsageError(
            f"{', '.join(changed)}: changed since run '{folder.name}' was planned",
            hint="Put the files in 'domains/' back as they were, or start a new run.",
        )
    return Planned(
        plan=plan,
        recipe=recipe_of_run(plan, folder.name, begun.record.kernel),
        tunings=tunings,
        topology=topology,
        pin_plans=pin_plans,
        warnings=(),
        own=own_of_run(folder, begun.record.domain),
    )
