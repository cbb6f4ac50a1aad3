"""Decide which spare blocks run (METHOD 27). Pure, and blind: it is told which trials have no valid
attempt, and never what the others measured.

A verdict takes ten valid blocks and a study plans ten, so one trial that stays invalid would make
a demonstration of each comparison that needs it. A spare block is planned like every other, and
runs after the planned ones only while some comparison has fewer valid blocks than were planned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from labctl.base.tuning import Kind
from labctl.base.wording import counted
from labctl.store.records.factor_record import Place
from labctl.store.records.plan_record import PlannedTrial
from labctl.study.plan import Plan

Factors = tuple[tuple[str, str], ...]
"""The factors of a cell but its tuning: where arms are compared."""


def spares_due(plan: Plan, lost: Collection[int], begun: Collection[int] = ()) -> tuple[int, ...]:
    """Return the spare blocks that are to run, in order.

    `lost`: numbers of trials that have used their attempts up and have no valid one; `begun`:
    blocks of which a trial was tried. A spare that has begun was decided on before it did. Others
    are due one by one until each comparison of arms has as many valid blocks as were planned, as
    far as the spares last. A spare counts for a comparison where it has lost no value of it itself.
    """
    if not plan.spares:
        return ()
    first = plan.spare_blocks[0]
    by_comparison = list(_blocks_lost(plan, lost))
    due: list[int] = []
    for spare in plan.spare_blocks:
        lacking = (
            sum(block < first for block in blocks) - sum(block not in blocks for block in due)
            for blocks in by_comparison
        )
        if spare not in begun and max(lacking, default=0) <= 0:
            break
        due.append(spare)
    return tuple(due)


def losses(plan: Plan, lost: Collection[int]) -> tuple[PlannedTrial, ...]:
    """Return the lost trials that spares stand in for, in order; none of an extension."""
    last = plan.last_spare
    return tuple(t for t in plan.in_order if t.number in lost and t.block <= last)


def why_spare(lost: Sequence[PlannedTrial]) -> str:
    """Return why a spare runs, as a clause."""
    first, *others = lost
    more = f" and {counted(len(others), 'other')}" if others else ""
    return (
        f"trial {first.number} ({', '.join(first.cell.values())}) of block "
        f"{first.block}{more} has no valid attempt"
    )


def _blocks_lost(plan: Plan, lost: Collection[int]) -> Iterator[set[int]]:
    """Return, for each comparison in each place, the blocks in which one of its arms has no
    value."""
    by_cell: defaultdict[Factors, defaultdict[str, set[int]]] = defaultdict(
        lambda: defaultdict(set)
    )
    for trial in losses(plan, lost):
        cell = dict(trial.cell)
        tuning = cell.pop("tuning")
        by_cell[tuple(cell.items())][tuning].add(trial.block)
    arms = set(_compared_together(plan))
    for blocks in by_cell.values():
        for together in arms:
            yield set().union(*(blocks[arm] for arm in together if arm in blocks))
    yield from _of_factors(plan, lost)


def _of_factors(plan: Plan, lost: Collection[int]) -> Iterator[set[int]]:
    """Return, for the cells of each arm that factors compare with each other, the blocks in which
    one of them has no value."""
    if plan.factorial is None:
        return
    groups = {cell.place: (cell.arm, cell.group, cell.under) for cell in plan.factorial.cells}
    found: defaultdict[tuple[str, str, str | None], set[int]] = defaultdict(set)
    for trial in losses(plan, lost):
        found[groups[Place(**trial.cell)]].add(trial.block)
    yield from found.values()


def _compared_together(plan: Plan) -> Iterator[frozenset[str]]:
    """Arms whose values of one block make an effect: a guest with baseline and control, with its
    native twin, and with its restored self; a native arm with the free one."""
    roles = plan.roles
    for name in dict.fromkeys(trial.cell["tuning"] for trial in plan.trials):
        tuning = plan.tunings.get(name)
        if tuning is not None and tuning.kind is Kind.NATIVE:
            yield frozenset(filter(None, (name, roles.native)))
            continue
        yield frozenset(filter(None, (name, roles.baseline, roles.control)))
        for other in (tuning.twin, tuning.restored_as) if tuning is not None else ():
            if other is not None:
                yield frozenset((name, other))
