"""Plan a user's request for this host. Only reads."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.paths import StatePaths
from labctl.base.tuning import Kind, Strategy, Tuning
from labctl.domain.pinning import pin_check
from labctl.domain.pinning.pin_plan import PinPlan, default_vcpus, pin_plan, same_placement
from labctl.guest.images import find
from labctl.guest.recipe import Recipe
from labctl.host.accelerator import Requested, known_accelerator
from labctl.host.settings import tuned
from labctl.host.settings.knob_table import RT_RUNTIME
from labctl.host.topology import Topology, read_rt_runtime_us, read_topology
from labctl.run.planning.guest_image import recipe_asked_for, recipe_of_run
from labctl.run.planning.needed_tracers import Kernels, tracers_of, untraceable
from labctl.run.planning.own_domain import (
    OwnGuest,
    check_places,
    check_room,
    misfits,
    own_of_run,
    own_study,
    promises,
    read_own,
    refuse_misfit,
)
from labctl.run.planning.requirements import Offers, Unmet, read_offers, refuse, unmet
from labctl.store.jsonfile import canonical
from labctl.store.run_folder import RunFolder
from labctl.study.extension import Extension, as_carried_out, extended, extension
from labctl.study.plan import Plan, changed_tunings, make_plan
from labctl.study.study import Overrides, Study, load_study
from labctl.study.tunings import load_tunings
from labctl.workloads.registry import checkers, workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """Hold what a user asked for. `resume`: the run to go on with; the rest of its plan is on disk.
    `extend`: the finished run that `overrides.blocks` more blocks are for, under its own seed.
    `kernel`, `initrd`: what guests boot in place of what the image brings. `domain`: the user's
    own, a name or a file, in place of an image; `keep_network`: its copy stays on its networks.
    `verifies`: the run and the tuning of the advice that is measured once more. `wait_quiet_s`: for
    how long altogether a run may wait for others to leave the host alone."""

    study: str
    places: StatePaths
    results: Path
    quick: bool = False
    overrides: Overrides = field(default_factory=Overrides)
    seed: int | None = None
    accel: Requested = "auto"
    connect: str | None = None
    fresh_boots: bool = False
    kernel: Path | None = None
    initrd: Path | None = None
    domain: str | None = None
    keep_network: bool = False
    verifies: Mapping[str, str] | None = None
    resume: str | None = None
    extend: str | None = None
    wait_quiet_s: float = 600.0

    @property
    def earlier(self) -> str | None:
        """Return the run that this is a part of; None for a new one."""
        return self.resume or self.extend


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Hold a plan for this host, and its input. Nothing was started or changed.

    `pin_plans`: of each strategy that a tuning of the plan pins by, compact always.
    `hangs_on_accelerator`: tunings that are in the plan although nobody knows yet whether guests
    run under what they need: only a kernel that boots can tell. `hangs_on_image`: so are workloads
    that need something of the kernel of an image that isn't built yet.
    """

    plan: Plan
    recipe: Recipe
    tunings: Mapping[str, Tuning]
    topology: Topology
    pin_plans: Mapping[Strategy, PinPlan]
    warnings: tuple[str, ...]
    hangs_on_accelerator: tuple[str, ...] = ()
    hangs_on_image: tuple[str, ...] = ()
    own: OwnGuest | None = None
    """The user's own domain, where that is what runs."""
    added: Extension | None = None
    """Part of the plan that is not on disk yet, for a run that is extended."""

    @property
    def pin_plan(self) -> PinPlan:
        """Return the one that tunings use unless they say otherwise."""
        return self.pin_plans[Strategy.COMPACT]


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
        study = own_study(study, own, request.overrides)
        check_no_peers(study)
    return _planned(request, study, seed, accelerator, own)


def has_peers(what: Plan | Study) -> bool:
    """Return whether any of its workloads talks to a peer, so that its machines need a link to
    one."""
    return any(
        workload(declared.program).peer(declared.parameters) is not None
        for declared in what.workloads.values()
    )


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
            "which a copy of somebody's domain doesn't have",
            hint="Leave --domain out, or choose other workloads with --workload.",
        )


def _planned(
    request: SweepRequest, study: Study, seed: int, accelerator: str | None, own: OwnGuest | None
) -> Planned:
    topology = read_topology()
    if own is not None:
        check_room(own.domain, topology)
        check_places(own.domain, topology)
    tunings = load_tunings(study.tunings)
    vcpus = study.guest.vcpus or default_vcpus(topology)
    recipe = recipe_asked_for(study.guest.image, request.kernel, request.initrd)
    image = find(recipe, request.places)
    if accelerator is None and any(tuning.requires.accelerator for tuning in tunings.values()):
        kernel = image.kernel if image else None
        accelerator = known_accelerator(request.accel, kernel, request.places)
    offers = read_offers(
        tunings.values(),
        topology,
        vcpus=vcpus,
        memory_mib=study.guest.memory_mib,
        accelerator=accelerator,
    )
    asked_for = request.overrides.tunings or ()
    reasons: Mapping[str, list[Unmet]] = {}
    baseline = tunings[study.roles.baseline]
    if own is not None:
        pin_plans, _ = _pin_plans(topology, vcpus, tunings.values())
        reasons = misfits(own.domain, tunings, baseline, pin_plans, accelerator or "kvm")
        for name in (name for name in asked_for if name in reasons):
            refuse_misfit(own.domain, tunings[name], reasons[name])
    fitting = {name: tuning for name, tuning in tunings.items() if name not in reasons}
    skipped, warnings = _fitted(fitting, offers, topology, asked_for)
    skipped |= {name: "; ".join(r.text for r in found) for name, found in reasons.items()}
    _check_any_left(study, tunings, skipped)
    planned = {name: tuning for name, tuning in tunings.items() if name not in skipped}
    pin_plans, _ = _pin_plans(topology, vcpus, planned.values())
    digest = _pins_digest(pin_plans)
    kept: Mapping[str, str] = {}
    if own is not None:
        kept = promises(own.domain, planned, baseline, pin_plans, accelerator or "kvm")
    kernels = Kernels(recipe=recipe, image=image, is_own_domain=own is not None)
    plan = make_plan(
        study,
        tunings,
        seed=seed,
        host_digest=digest,
        skipped=skipped,
        skipped_workloads=untraceable(
            study, {t.kind for t in planned.values()}, kernels, request.overrides.workloads or ()
        ),
        promises=kept,
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
        own=own,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Hold what stands between a tuning and this host. `lacking`: what it needs and the host
    hasn't; `crowding`: what its pins and policies would do here."""

    lacking: tuple[Unmet, ...]
    crowding: tuple[pin_check.PinProblem, ...]

    @property
    def hindrances(self) -> tuple[Unmet, ...]:
        """Return why it can't run here; () when it can."""
        refused = (Unmet(text=p.text, remedy=p.hint) for p in self.crowding if p.refused)
        return (*self.lacking, *refused)


def fits(tunings: Mapping[str, Tuning], offers: Offers, topology: Topology) -> dict[str, Fit]:
    """Return, for each tuning, what keeps it from running here and what its pins would do."""
    pin_plans, unplaced = _pin_plans(topology, offers.vcpus, tunings.values())
    found = {}
    for name, tuning in tunings.items():
        strategy = tuning.pin.strategy
        lacking = unmet(tuning, offers)
        crowding: list[pin_check.PinProblem] = []
        if strategy in unplaced:
            lacking.append(unplaced[strategy])
        else:
            lacking += _same_place(tuning, pin_plans)
            pins = pin_plans[strategy]
            crowding = pin_check.check(tuning, pins, topology, _rt_runtime_us(tuning))
        found[name] = Fit(lacking=tuple(lacking), crowding=tuple(crowding))
    return found


def _rt_runtime_us(tuning: Tuning) -> int:
    """Return what real-time tasks may take of each second while the tuning is in force."""
    value = tuning.host.get(RT_RUNTIME)
    if value is None and tuned.TUNED in tuning.host:
        value = tuned.sysctl(tuning.host[tuned.TUNED], "kernel.sched_rt_runtime_us")
    return read_rt_runtime_us() if value is None else int(value)


def _fitted(
    tunings: Mapping[str, Tuning],
    offers: Offers,
    topology: Topology,
    asked_for: Collection[str],
) -> tuple[dict[str, str], list[str]]:
    """Return tunings that this host can't have, with the reason, and warnings of the others' pins.
    Raises for one that was asked for by name."""
    skipped: dict[str, str] = {}
    warnings: list[str] = []
    for name, fit in fits(tunings, offers, topology).items():
        if name in asked_for:
            refuse(tunings[name], fit.lacking)
            pin_check.refuse(tunings[name], fit.crowding)
        if fit.hindrances:
            skipped[name] = "; ".join(hindrance.text for hindrance in fit.hindrances)
        else:
            warnings += [f"{name}: {problem.text}" for problem in fit.crowding]
    return skipped, warnings


def _pin_plans(
    topology: Topology, vcpus: int, tunings: Collection[Tuning]
) -> tuple[dict[Strategy, PinPlan], dict[Strategy, Unmet]]:
    """Return the plan of each strategy that a tuning pins by, and why there is none. Compact there
    is always: raises UsageError when even that has no room."""
    iothreads = max(1, *(tuning.iothreads for tuning in tunings))
    plans = {Strategy.COMPACT: pin_plan(topology, vcpus, iothreads)}
    unplaced = {}
    for strategy in {tuning.pin.strategy for tuning in tunings} - {Strategy.COMPACT}:
        try:
            plans[strategy] = pin_plan(topology, vcpus, iothreads, strategy)
        except UsageError as error:
            remedy = error.hint or "'labctl pin plan' shows this host's CPUs."
            unplaced[strategy] = Unmet(text=error.message, remedy=remedy)
    return plans, unplaced


def _same_place(tuning: Tuning, plans: Mapping[Strategy, PinPlan]) -> list[Unmet]:
    """Find the strategies that put every thread where compact does and so are no other tuning,
    unless the guest is shown its topology or has its memory by it."""
    pins, compact = plans[tuning.pin.strategy], plans[Strategy.COMPACT]
    shown = tuning.cpu.topology or tuning.memory.numa or tuning.memory.cells
    if tuning.pin.strategy is Strategy.COMPACT or shown:
        return []
    if not same_placement(pins, compact):
        return []
    return [
        Unmet(
            text=f"on this host '{tuning.pin.strategy}' is the same placement as vcpupin",
            remedy="Take that one, or give the guest more vCPUs ('--vcpus').",
        )
    ]


def _check_any_left(
    study: Study, tunings: Mapping[str, Tuning], skipped: Mapping[str, str]
) -> None:
    """Raise HostError when nothing is left of what the study would try."""
    roles = study.roles.names()
    tried = [n for n in study.tunings if n not in roles and tunings[n].kind is Kind.GUEST]
    if tried and all(name in skipped for name in tried):
        raise HostError(
            "this host can't have any tuning of the study: "
            + ". ".join(f"'{name}': {skipped[name]}" for name in tried),
            hint=f"'labctl sweep {study.name} --tuning {tried[0]}' says what could be done.",
        )


def plan_of(folder: RunFolder) -> Plan:
    """Return what a run carries out: its plan until its rule ended it, and what extends it
    since."""
    record = folder.read_run()
    if record.get("imported"):
        raise UsageError(
            f"run '{folder.name}' was imported: labctl did not measure it and can't go on with it"
        )
    if record.get("redacted"):
        raise UsageError(
            f"run '{folder.name}' is a redacted copy: its trials and new ones would name two hosts",
            hint="Go on with the run that it was made of.",
        )
    stopped = record.get("stopped")
    return as_carried_out(
        Plan.from_json(folder.read_plan()),
        stopped and stopped["blocks"],
        folder.read_extensions(),
    )


def extended_plan(folder: RunFolder, blocks: int) -> Planned:
    """Return `resumed_plan` of a finished run with so many more blocks.

    Raises UsageError where the run is not finished.
    """
    planned = resumed_plan(folder)
    status = folder.read_run().get("status")
    begun = {record.block for record in folder.records(planned.plan.to_json())[0]}
    if status != "done" or planned.plan.blocks not in begun:
        said = f"status: {status}" if status != "done" else "its last extension has not begun"
        raise UsageError(
            f"run '{folder.name}' is not finished ({said}), so there is nothing to extend",
            hint=f"First: labctl sweep --resume {folder.name}",
        )
    last = next(iter(reversed(folder.read_extensions())), folder.read_plan())
    added = extension(planned.plan, blocks, extends=last["digest"])
    return replace(planned, plan=extended(planned.plan, added), added=added)


def resumed_plan(folder: RunFolder) -> Planned:
    """Return the plan of a run and of its extensions, for a host that is still the one it was made
    for."""
    plan = plan_of(folder)
    topology = read_topology()
    tunings = load_tunings(tuple(plan.tunings))
    if plan.guest.vcpus is None:
        raise BrokenError(f"{folder.path / 'plan.json'} does not say how many vCPUs the guest has")
    pin_plans, unplaced = _pin_plans(topology, plan.guest.vcpus, tunings.values())
    if unplaced or _pins_digest(pin_plans) != plan.host_digest:
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
        recipe=recipe_of_run(plan.guest.image, folder),
        tunings=tunings,
        topology=topology,
        pin_plans=pin_plans,
        warnings=(),
        own=own_of_run(folder),
    )


def _pins_digest(pin_plans: Mapping[Strategy, PinPlan]) -> str:
    plans = {str(strategy): pins.to_json() for strategy, pins in pin_plans.items()}
    return hashlib.sha256(canonical(plans).encode()).hexdigest()
