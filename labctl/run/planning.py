"""From what a user asked for to a plan for this host. Only reads."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from labctl.base.errors import BrokenError, UsageError
from labctl.base.places import StatePlaces
from labctl.base.tuning import Tuning
from labctl.domain.pincheck import check as check_pins
from labctl.domain.pincheck import refuse
from labctl.domain.pinplan import PinPlan, default_vcpus, pin_plan
from labctl.host.accelerator import Requested
from labctl.host.topology import Topology, read_rt_runtime_us, read_topology
from labctl.store.jsonfile import canonical
from labctl.store.run_folder import RunFolder
from labctl.study.plan import Plan, changed_tunings, make_plan
from labctl.study.study import Overrides, Study, load_study
from labctl.study.tunings import load_tunings
from labctl.workloads.registry import checkers


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """What a user asked for. `resume`: the run to go on with; the rest of its plan is on disk."""

    study: str
    places: StatePlaces
    results: Path
    quick: bool = False
    overrides: Overrides = field(default_factory=Overrides)
    seed: int | None = None
    accel: Requested = "auto"
    connect: str | None = None
    fresh_boots: bool = False
    resume: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan for this host, and what it was made from. Nothing was started or changed."""

    plan: Plan
    tunings: Mapping[str, Tuning]
    topology: Topology
    pin_plan: PinPlan
    warnings: tuple[str, ...]


def plan_sweep(request: SweepRequest) -> Planned:
    """The plan that `sweep` would carry out. Only reads; raises UsageError for a bad request."""
    study = load_study(
        request.study, programs=checkers(), quick=request.quick, overrides=request.overrides
    )
    seed = secrets.randbelow(2**31) if request.seed is None else request.seed
    return _planned(study, seed, asked_for=request.overrides.tunings or ())


def _planned(study: Study, seed: int, asked_for: Collection[str]) -> Planned:
    topology = read_topology()
    tunings = load_tunings(study.tunings)
    vcpus = study.guest.vcpus or default_vcpus(topology)
    iothreads = max(tuning.iothreads for tuning in tunings.values())
    pins = pin_plan(topology, vcpus, max(1, iothreads))
    skipped: dict[str, str] = {}
    warnings: list[str] = []
    for name, tuning in tunings.items():
        problems = check_pins(tuning, pins, topology, read_rt_runtime_us())
        if name in asked_for:
            refuse(tuning, problems)
        refusals = [problem.text for problem in problems if problem.refused]
        if refusals:
            skipped[name] = "; ".join(refusals)
        else:
            warnings += [f"{name}: {problem.text}" for problem in problems]
    plan = make_plan(study, tunings, seed=seed, host_digest=_topology_digest(pins), skipped=skipped)
    # The study stays as it is, so that its digest is the same on every host.
    plan = replace(plan, guest=replace(plan.guest, vcpus=vcpus))
    return Planned(
        plan=plan,
        tunings={name: tunings[name] for name in plan.tunings},
        topology=topology,
        pin_plan=pins,
        warnings=tuple(warnings),
    )


def resumed_plan(folder: RunFolder) -> Planned:
    """The plan of a run, for a host that is still the one it was made for."""
    plan = Plan.from_json(folder.read_plan())
    topology = read_topology()
    tunings = load_tunings(tuple(plan.tunings))
    if plan.guest.vcpus is None:
        raise BrokenError(f"{folder.path / 'plan.json'} does not say how many vCPUs the guest has")
    iothreads = max(tuning.iothreads for tuning in tunings.values())
    pins = pin_plan(topology, plan.guest.vcpus, max(1, iothreads))
    if _topology_digest(pins) != plan.host_digest:
        raise UsageError(
            f"run '{folder.name}' was planned for other CPUs than this host has now",
            hint="Resume it where it began, or start a new run.",
        )
    if changed := changed_tunings(plan, tunings):
        raise UsageError(
            f"{', '.join(changed)}: changed since run '{folder.name}' was planned",
            hint="Put the files in 'domains/' back as they were, or start a new run.",
        )
    return Planned(plan=plan, tunings=tunings, topology=topology, pin_plan=pins, warnings=())


def _topology_digest(pins: PinPlan) -> str:
    return hashlib.sha256(canonical(pins.to_json()).encode()).hexdigest()
