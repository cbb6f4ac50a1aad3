"""Make the plan of a new run, from what a user asked for, for this host. Only reads."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace

from labctl.base.errors import UsageError
from labctl.host.accelerator import known_accelerator
from labctl.host.topology import read_topology
from labctl.run.planning.conditions_here import GuestsHere, unfit_conditions
from labctl.run.planning.fitting import (
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
from labctl.run.planning.guest_image import recipe_asked_for
from labctl.run.planning.layers import refuse_files, with_what_is_needed, with_what_neighbours_need
from labctl.run.planning.needed_tracers import Kernels, tracers_of, untraceable
from labctl.run.planning.own_domain import (
    OwnGuest,
    check_places,
    check_room,
    durabilities,
    misfits,
    own_study,
    read_own,
    refuse_misfit,
)
from labctl.run.planning.planned import Planned, SweepRequest, has_peers
from labctl.run.planning.programs_there import check_programs
from labctl.study.load_study import load_study
from labctl.study.make_plan import make_plan
from labctl.study.study import Study
from labctl.study.tunings import load_tunings
from labctl.workloads.registry import checkers, workload_of


def plan_sweep(request: SweepRequest, accelerator: str | None = None) -> Planned:
    """Return the plan that `sweep` would carry out. Only reads.

    `accelerator`: what guests run under, where the caller has found out. Raises UsageError for a
    bad request, HostError when this host can't have what was asked for by name, what has a role,
    or any tuning of the study.
    """
    study = load_study(
        request.study, programs=checkers(), quick=request.quick, overrides=request.overrides
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
            raise UsageError("--keep-network is for a domain of your own", hint="Name it: --domain")
        return None
    if request.kernel is not None or request.initrd is not None:
        raise UsageError(
            "--kernel and --initrd are for labctl's images, and --domain names another guest",
            hint="A domain boots what its own XML says: change a copy of that.",
        )
    return read_own(request.domain, connect=request.connect, keep_network=request.keep_network)


def check_no_peers(study: Study) -> None:
    """Raise UsageError for a study whose guests must have labctl's link."""
    if has_peers(study):
        raise UsageError(
            f"study '{study.name}' has workloads that talk to a peer over labctl's own link, "
            "which a copy of a foreign domain doesn't have",
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
    tunings = load_tunings(study.tunings)
    recipe = recipe_asked_for(study.guest.image, request.kernel, request.initrd)
    unchecked: tuple[str, ...] = ()
    if own is None:
        recipe = with_what_is_needed(recipe, study)
        workloads = {name: workload_of(item) for name, item in study.workloads.items()}
        unchecked = check_programs(workloads, recipe, request.places)
    else:
        refuse_files(study.workloads, request.domain or "")
        recipe = with_what_neighbours_need(recipe, study)
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
    baseline = tunings[study.roles.baseline]
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
    plan = replace(plan, guest=replace(plan.guest, vcpus=vcpus))
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
    )
