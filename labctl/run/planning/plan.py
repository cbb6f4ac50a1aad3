"""Make the plan of a new run for this host, from a user's request. Only reads."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from labctl.base.errors import FileError, UsageError
from labctl.base.events import Listener
from labctl.base.tuning import Tuning
from labctl.domain.session import EMBEDDED, is_embedded
from labctl.guest.recipe import Recipe
from labctl.host.accelerator import known_accelerator
from labctl.host.topology import Topology, read_topology
from labctl.run.planning.builds import check_builds, read_builds, recipes_of, with_kernel_of
from labctl.run.planning.conditions import (
    GuestsHere,
    noisy,
    unfit_conditions,
    why_not_isolated,
)
from labctl.run.planning.host import (
    check_any_left,
    check_memory,
    fitted,
    host_memory_bytes,
    left_out,
    needing,
    offers_here,
    pin_plans_of,
    pins_digest,
)
from labctl.run.planning.images import (
    accelerator_of,
    built_image,
    recipe_asked_for,
    recipe_of_run,
    refuse_files,
    with_what_is_needed,
    with_what_neighbours_need,
)
from labctl.run.planning.own_domain import (
    OwnGuest,
    check_places,
    check_room,
    durabilities,
    misfits,
    own_of_run,
    own_study,
    read_own,
    refuse_misfit,
)
from labctl.run.planning.planned import Planned, SweepRequest, has_peers
from labctl.run.planning.programs_there import check_programs
from labctl.run.planning.requirements import Kernels, tracers_of, untraceable
from labctl.store.records.plan_record import ExtensionRecord, PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import RunFolder
from labctl.store.trial import TrialRecord, TrialStatus
from labctl.study.extension import as_carried_out, extended, extension
from labctl.study.load_study import load_study
from labctl.study.make_plan import make_plan
from labctl.study.plan import Plan, changed_tunings
from labctl.study.study import Study
from labctl.study.tunings import load_tunings
from labctl.workloads.registry import checkers, workload_of


def plan_sweep(request: SweepRequest, accelerator: str | None = None) -> Planned:
    """Return the plan that `sweep` would run. Only reads.

    `accelerator`: the guests', if the caller knows it. Raises UsageError for a bad request,
    HostError if this host does not support what was requested by name, what has a role, or any
    tuning of the study.
    """
    study = load_study(
        request.question or request.study,
        programs=checkers(),
        quick=request.quick,
        overrides=request.overrides,
    )
    seed = secrets.randbelow(2**31) if request.seed is None else request.seed
    own = _own_asked_for(request)
    if own is not None:
        study = own_study(study, own, request.overrides.vcpus, request.overrides.memory_mib)
        check_no_peers(study)
    return _planned(request, study, seed, accelerator, own)


def _own_asked_for(request: SweepRequest) -> OwnGuest | None:
    if request.domain is None:
        if request.keep_network:
            raise UsageError("--keep-network needs --domain", hint="Add --domain")
        return None
    if request.kernel is not None or request.initrd is not None:
        raise UsageError(
            "--kernel and --initrd apply only to labctl's images, not to --domain",
            hint="A domain boots from its own XML: edit a copy of it.",
        )
    return read_own(request.domain, connect=request.connect, keep_network=request.keep_network)


def check_no_peers(study: Study) -> None:
    """Raise UsageError for a study whose guests must have labctl's link."""
    if has_peers(study):
        raise UsageError(
            f"study '{study.name}' has workloads with a peer on labctl's own link, which a "
            "copy of your domain does not have",
            hint="Leave --domain out, or choose other workloads with --workload.",
        )


def _planned(
    request: SweepRequest, study: Study, seed: int, accelerator: str | None, own: OwnGuest | None
) -> Planned:
    topology = read_topology()
    check_memory(study.guest.memory_mib, host_memory_bytes())
    if own is not None:
        check_room(own.domain, topology)
        check_places(own.domain, topology)
    tunings = load_tunings(study.tunings, study.defined)
    baseline = tunings[study.roles.baseline]

    def recipe_named(image: str) -> Recipe:
        recipe = recipe_asked_for(image, request.kernel, request.initrd)
        if own is None:
            return with_what_is_needed(recipe, study)
        return with_what_neighbours_need(recipe, study)

    if own is not None:
        refuse_files(study.workloads, request.domain or "")
        _refuse_builds(tunings.values())
    recipe = with_kernel_of(recipe_named(baseline.image or study.guest.image), baseline)
    recipes = recipes_of(recipe_named, study.guest.image, baseline, tunings)
    unchecked = () if own is not None else _unchecked(request, study, [recipe, *recipes.values()])
    kernels = Kernels.of(recipe, request.places, is_own_domain=own is not None)
    if accelerator is None and any(tuning.requires.accelerator for tuning in tunings.values()):
        kernel = kernels.image.kernel if kernels.image else None
        accelerator = known_accelerator(request.accel, kernel, request.places)
    asked_for = request.overrides.tunings or ()
    needs = needing(study, tunings, asked_for)
    every = (*tunings.values(), *needs.values())
    offers = offers_here(every, study.guest, topology, accelerator)
    vcpus = offers.vcpus
    misfitting: dict[str, str] = {}
    if own is not None:
        pin_plans, _ = pin_plans_of(topology, vcpus, tunings.values())
        reasons = misfits(own.domain, tunings, baseline, pin_plans, accelerator or "kvm")
        for name in (name for name in asked_for if name in reasons):
            refuse_misfit(own.domain, tunings[name], reasons[name])
        misfitting = {name: "; ".join(r.text for r in found) for name, found in reasons.items()}
    misfitting |= left_out(needs, offers)
    fitting = {name: tuning for name, tuning in tunings.items() if name not in misfitting}
    skipped, warnings = fitted(fitting, offers, topology, asked_for)
    skipped |= misfitting
    skipped |= _disturbed(request, study, fitting, topology, vcpus)
    check_any_left(study, tunings, skipped)
    planned = {name: tuning for name, tuning in tunings.items() if name not in skipped}
    pin_plans, _ = pin_plans_of(topology, vcpus, planned.values())
    digest = pins_digest(pin_plans)
    kept: Mapping[str, str] = {}
    if own is not None:
        kept = durabilities(own.domain, planned, baseline, pin_plans, accelerator or "kvm")
    unfit = unfit_conditions(
        study.neighbours,
        topology,
        pin_plans,
        request.overrides.conditions or (),
        GuestsHere.of(study.guest.memory_mib, keeps_network=own is not None and own.keep_network),
    )
    plan = make_plan(
        study,
        tunings,
        seed=seed,
        host_digest=digest,
        skipped=skipped,
        skipped_workloads=untraceable(
            study, {t.kind for t in planned.values()}, kernels, request.overrides.workloads or ()
        ),
        skipped_conditions=unfit,
        durabilities=kept,
    )
    # The study stays as it is, so that its digest is the same on every host.
    builds = read_builds(planned.values())
    plan = replace(plan, guest=replace(plan.guest, vcpus=vcpus), builds=builds)
    waiting = [t.name for t in planned.values() if t.requires.accelerator and not accelerator]
    return Planned(
        plan=plan,
        recipe=recipe,
        tunings=planned,
        topology=topology,
        pin_plans=pin_plans,
        warnings=tuple(warnings),
        hangs_on_accelerator=tuple(waiting),
        hangs_on_image=tuple(tracers_of(study)) if kernels.guests_are_unknown else (),
        unchecked=unchecked,
        own=own,
        recipes={name: one for name, one in recipes.items() if name in planned},
    )


def _disturbed(
    request: SweepRequest,
    study: Study,
    tunings: Mapping[str, Tuning],
    topology: Topology,
    vcpus: int,
) -> dict[str, str]:
    """Return tunings that no trial can have beside the study's neighbours, with the reason. Raises
    UsageError for one that was requested by name."""
    pin_plans, unplaced = pin_plans_of(topology, vcpus, tunings.values())
    found = {}
    for name, tuning in tunings.items():
        if tuning.pin.strategy in unplaced:
            continue
        why = why_not_isolated(tuning, noisy(study), topology, pin_plans)
        if why is None:
            continue
        if name in (request.overrides.tunings or ()):
            raise UsageError(
                f"'{name}' cannot be measured: {why}",
                hint="Choose another condition: --condition quiet.",
            )
        found[name] = why
    return found


def _unchecked(request: SweepRequest, study: Study, recipes: Iterable[Recipe]) -> tuple[str, ...]:
    """Return `check_programs` of each image."""
    workloads = {name: workload_of(item) for name, item in study.workloads.items()}
    program = request.overrides.program
    sources = program.sources if program else {}
    by_name = {recipe.name: recipe for recipe in recipes}
    found = (
        sentence
        for recipe in by_name.values()
        for sentence in check_programs(workloads, recipe, request.places, sources)
    )
    return tuple(dict.fromkeys(found))


def _refuse_builds(tunings: Iterable[Tuning]) -> None:
    for tuning in tunings:
        if tuning.emulator or tuning.kernel or tuning.image:
            raise UsageError(
                f"tuning '{tuning.name}' has its own 'emulator', 'kernel' or 'image', which a copy "
                "of your domain does not have",
                hint="Leave --domain out, or the tuning.",
            )


# Plan a run: a new, resumed or extended one.


@dataclass(frozen=True, slots=True)
class Begun:
    """Hold from the folder of a resumed run how it was started, and how far its rule and its
    extensions have taken it."""

    folder: RunFolder
    record: RunRecord
    plan: PlanRecord
    extensions: Sequence[ExtensionRecord]

    @classmethod
    def read(cls, folder: RunFolder) -> Begun:
        """Return the folder's content. Raises UsageError for a run that labctl cannot resume,
        BrokenError for one that is damaged."""
        record = folder.read_run()
        if record.imported:
            raise UsageError(f"run '{folder.name}' was imported, so labctl cannot continue it")
        if record.redacted:
            raise UsageError(
                f"run '{folder.name}' is a redacted copy, so new trials cannot be added",
                hint="Continue the original run.",
            )
        return cls(folder, record, folder.read_plan(), folder.read_extensions())


def on_its_connection(request: SweepRequest, begun: Begun | None) -> SweepRequest:
    """Return the request over the connection that its run was started with: another one has another
    QEMU user and other cgroups."""
    if begun is None or request.connect is not None:
        return request
    began = begun.record.connection or EMBEDDED
    return request if is_embedded(began) else replace(request, connect=began)


def planned_for(request: SweepRequest, begun: Begun | None) -> Planned:
    """Return the plan of a request, for a new or a resumed run."""
    if begun is None:
        return plan_sweep(request)
    if request.extend:
        return extended_plan(begun, request.overrides.blocks or 0)
    return resumed_plan(begun)


def with_image(request: SweepRequest, planned: Planned, listener: Listener) -> Planned:
    """Return the plan, made again if it depends on the guests' accelerator, which only a booting
    kernel shows, or on the contents of the kernel or the image, which exists only once it is
    built."""
    if not (planned.hangs_on_accelerator or planned.hangs_on_image or planned.unchecked):
        return planned
    chosen = accelerator_of(planned.recipe, request.places, request.accel, listener)
    for recipe in planned.recipes.values():
        built_image(recipe, request.places, listener)
    return plan_sweep(replace(request, seed=planned.plan.seed), chosen.name)


def plan_of(begun: Begun) -> Plan:
    """Return the plan that a run follows: its original plan until its rule ended it, and its
    extensions."""
    stopped = begun.record.stopped
    ended_after = stopped.blocks if stopped else None
    plan = Plan.of(begun.plan)
    return as_carried_out(plan, ended_after, begun.extensions, begun.record.looks)


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
            hint=f"First run: labctl sweep --resume {folder.name}",
        )
    last = begun.extensions[-1].digest if begun.extensions else begun.plan.digest
    added = extension(planned.plan, blocks, extends=str(last))
    return replace(planned, plan=extended(planned.plan, added), added=added)


def resumed_plan(begun: Begun) -> Planned:
    """Return the plan of a run and of its extensions, for a host that has not changed since."""
    plan, folder = plan_of(begun), begun.folder
    topology = read_topology()
    tunings = load_tunings(tuple(plan.tunings), plan.defined)
    if plan.guest.vcpus is None:
        raise FileError(f"{folder.path / 'plan.json'} has no number of vCPUs")
    pin_plans, unplaced = pin_plans_of(topology, plan.guest.vcpus, tunings.values())
    if unplaced or pins_digest(pin_plans) != plan.host_digest:
        raise UsageError(
            f"run '{folder.name}' was planned for other CPUs than this host has now",
            hint="Resume it on its original host, or start a new run.",
        )
    if changed := changed_tunings(plan, tunings):
        raise UsageError(
            f"{', '.join(changed)}: changed since run '{folder.name}' was planned",
            hint="Restore the files in 'domains/', or start a new run.",
        )
    check_builds(folder.name, plan.builds, read_builds(tunings.values()))
    baseline = tunings[plan.roles.baseline]
    # That of a tuning is one of its builds.
    kernel = None if baseline.kernel else begun.record.kernel

    def recipe_named(image: str) -> Recipe:
        return recipe_of_run(plan, image, folder.name, kernel)

    return Planned(
        plan=plan,
        recipe=with_kernel_of(recipe_named(baseline.image or plan.guest.image), baseline),
        recipes=recipes_of(recipe_named, plan.guest.image, baseline, tunings),
        tunings=tunings,
        topology=topology,
        pin_plans=pin_plans,
        warnings=(),
        own=own_of_run(folder, begun.record.domain),
    )


# Find how far a run has come with its plan.


@dataclass(frozen=True, slots=True)
class Reached:
    """Hold how far a run is. `boots`: the plan's boots with a trial still to do, in order;
    `last_boot`: the number of the last boot that was made, 0 for a new run."""

    boots: tuple[int, ...]
    last_boot: int

    @property
    def is_over(self) -> bool:
        return not self.boots


def reached(plan: Plan, folder: RunFolder) -> Reached:
    """Return how far the run in `folder` has come with `plan`."""
    records = _records(folder, plan)
    finished = _done(records)
    # Whether other spares run is only known when the planned blocks are over.
    unused = set(plan.spare_blocks) - {record.block for record in records}
    left = [t.boot for t in plan.in_order if t.number not in finished and t.block not in unused]
    last = max((record.boot for record in records), default=0)
    return Reached(tuple(dict.fromkeys(left)), last)


def done(folder: RunFolder, plan: Plan) -> set[int]:
    """Return the numbers of the trials that have a valid result."""
    return _done(_records(folder, plan))


def _done(records: Iterable[TrialRecord]) -> set[int]:
    return {record.number for record in records if record.status is TrialStatus.DONE}


def _records(folder: RunFolder, plan: Plan) -> list[TrialRecord]:
    return folder.records(plan.record())[0]
