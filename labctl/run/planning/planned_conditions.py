"""Look the conditions of a plan up, and the workloads that run beside its trials."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.store.records.plan_record import HOG
from labctl.study.condition import Condition, Kind, Neighbour
from labctl.study.conditionfile import load_condition
from labctl.study.plan import Plan
from labctl.study.study import Study
from labctl.workloads.beside import Beside
from labctl.workloads.registry import checkers
from labctl.workloads.workload import Workload


def condition_of(plan: Plan | Study, name: str) -> Condition | None:
    """Return what runs beside trials of a plan's condition; None: nothing."""
    if name in plan.neighbours:
        return plan.neighbours[name]
    if plan.neighbours or name != HOG:
        return None
    return load_condition(HOG, checkers())


def noisy(plan: Plan | Study) -> list[Condition]:
    """Return the conditions of a plan that have neighbours."""
    found = (condition_of(plan, name) for name in plan.conditions)
    return [condition for condition in found if condition is not None]


def beside_of(neighbour: Neighbour) -> Beside:
    """Return what a neighbour runs. Raises as `Beside.of` does."""
    return Beside.of(neighbour.program, neighbour.definition, neighbour.parameters, neighbour.run_s)


def neighbours_of(plan: Plan | Study) -> Iterator[Neighbour]:
    """Yield all neighbours of a plan's conditions."""
    for condition in noisy(plan):
        yield from condition.neighbours


def programs_beside(plan: Plan | Study) -> list[Workload]:
    """Return the workloads that neighbours run."""
    return [beside_of(one).program for one in neighbours_of(plan)]


def most_guests(plan: Plan | Study) -> int:
    """Return how many guests run beside a trial at most."""
    return max((condition.guests for condition in noisy(plan)), default=0)


def on_the_host(plan: Plan | Study) -> list[str]:
    """Return the conditions whose neighbours run in the image's tree on the host."""
    return [
        condition.name
        for condition in noisy(plan)
        if any(one.kind is not Kind.GUESTS for one in condition.neighbours)
    ]
