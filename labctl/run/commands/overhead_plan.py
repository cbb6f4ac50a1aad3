"""Plan a measurement of what collecting costs."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.base.errors import UsageError
from labctl.base.levels import Level
from labctl.base.paths import StatePaths
from labctl.base.tuning import Kind
from labctl.host.accelerator import Requested
from labctl.run.planning.planned import Planned, SweepRequest
from labctl.run.planning.planner import plan_sweep
from labctl.study.load_study import Overrides
from labctl.study.study import StudyWorkload
from labctl.workloads.registry import workload_of

SIDES = (Kind.NATIVE, Kind.GUEST)


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


def plan_overhead(request: OverheadRequest) -> tuple[Planned, str]:
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
    _check_measurable(name, declared)
    if Kind.NATIVE in request.sides and planned.plan.roles.native is None:
        raise UsageError(
            f"study '{planned.plan.study}' has no native role to measure",
            hint="Give '--side guest', or a study that has one with --study.",
        )
    return planned, name


def _check_measurable(name: str, declared: StudyWorkload) -> None:
    """Raise UsageError for a workload whose throughput doesn't show what collecting costs."""
    program = workload_of(declared)
    if program.rate_metric is None or program.peer(declared.parameters) is not None:
        why = "runs at a fixed pace" if program.rate_metric is None else "talks to a peer"
        raise UsageError(
            f"workload '{name}' {why}: what collecting costs does not show in its throughput",
            hint="Name another with --workload, or a study that has one with --study.",
        )
