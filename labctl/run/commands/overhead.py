"""Measure what collecting costs: a workload's throughput at each level and with nothing collected.

Levels take turns within each block in a balanced, seeded order (METHOD: interleaved, paired), in
one guest and in one native session. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from labctl.base.errors import UsageError
from labctl.base.events import Listener, Note
from labctl.base.levels import Level
from labctl.base.paths import StatePaths
from labctl.base.tuning import Kind
from labctl.host.accelerator import Requested
from labctl.run.commands.host_record import class_of_host
from labctl.run.commands.overhead_windows import Rates, Windows
from labctl.run.commands.sweep_checks import refuse_problems
from labctl.run.guests.guest_base import guest_base
from labctl.run.guests.lab_opening import open_lab
from labctl.run.guests.leftovers import alone
from labctl.run.planning.planned import Planned, SweepRequest
from labctl.run.planning.planner import plan_sweep
from labctl.study.study import Overrides
from labctl.workloads.registry import workload

SIDES = (Kind.NATIVE, Kind.GUEST)

COMMAND = "labctl collectors --overhead"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadRequest:
    """Request a measurement of overhead. `workload`: one of the study's, None for its first.
    `pairs`: blocks, of which each measures every level and nothing once. `seconds`: of each window,
    None for the study's own."""

    places: StatePaths
    study: str = "selftest"
    workload: str | None = None
    levels: tuple[Level, ...] = tuple(Level)
    sides: tuple[Kind, ...] = SIDES
    pairs: int = 20
    seconds: float | None = None
    seed: int = 1
    accel: Requested = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Hold the measured overheads. `here`: the part of run.json that distinguishes hosts, guests
    and versions.
    """

    workload: str
    seconds: float
    sides: tuple[Rates, ...]
    here: Mapping[str, Any]


def measure_overheads(request: OverheadRequest, listener: Listener) -> Overheads:
    """Measure natively and in a guest, with the image and roles of the study.

    Raises UsageError for a workload whose throughput says nothing; what a sweep raises.
    """
    with ExitStack() as stack:
        stack.enter_context(alone(request.places, listener, COMMAND))
        planned, name = _planned(request)
        refuse_problems(request.places, planned)
        base = guest_base(planned, request.places, request.accel, listener)
        listener(Note(text=base.accelerator.reason))
        lab = stack.enter_context(open_lab(request.places, planned, base, listener=listener))
        windows = Windows(lab, planned.plan, name, request.levels, request.pairs, request.seed)
        sides = tuple(windows.side(kind, of=len(request.sides)) for kind in request.sides)
    return Overheads(
        workload=name,
        seconds=planned.plan.workloads[name].duration_s,
        sides=sides,
        here=class_of_host(lab),
    )


def _planned(request: OverheadRequest) -> tuple[Planned, str]:
    """Return a plan of the study's roles under that workload alone, and the workload's name."""
    planned = plan_sweep(
        SweepRequest(
            study=request.study,
            places=request.places,
            results=request.places.root,
            overrides=Overrides(
                tunings=(),
                workloads=[request.workload] if request.workload else None,
                duration_s=request.seconds,
            ),
            seed=request.seed,
            accel=request.accel,
        )
    )
    name, declared = next(iter(planned.plan.workloads.items()))
    program = workload(declared.program)
    if program.rate_metric is None or program.peer(declared.parameters) is not None:
        why = "runs at a fixed pace" if program.rate_metric is None else "talks to a peer"
        raise UsageError(
            f"workload '{name}' {why}: what collecting costs does not show in its throughput",
            hint="Name another with --workload, or a study that has one with --study.",
        )
    if Kind.NATIVE in request.sides and planned.plan.roles.native is None:
        raise UsageError(
            f"study '{planned.plan.study}' has no native role to measure",
            hint="Give '--side guest', or a study that has one with --study.",
        )
    return planned, name
