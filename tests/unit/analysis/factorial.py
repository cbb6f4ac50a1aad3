"""Factorial runs whose truth is known: the values of each cell in each block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

from labctl.analysis.effects.cells import Cell, Cells, Scenario, Series
from labctl.analysis.effects.design import Design, Primary
from labctl.base.units import Better, Unit
from labctl.store.records.factor_record import FactorCell, Factorial, PlannedFactor
from labctl.store.samples import Sample

METRIC = "events_per_s"
PRIMARY = Primary(METRIC, 0.05, 0.05)
RATE = Sample(
    metric=METRIC, value=1.0, unit=Unit.PER_SECOND, better=Better.HIGHER, labels={}, source="it"
)

Value = Callable[[Mapping[str, str], int], float]
"""The value at these levels in a block."""


def factorial(
    levels: Mapping[str, tuple[str, ...]],
    *,
    own_boot: tuple[str, ...] = (),
    interactions: tuple[tuple[str, str], ...] = (),
    excluded: tuple[dict[str, str], ...] = (),
    arms: tuple[str, ...] = ("baseline",),
) -> Factorial:
    cells = []
    for arm in arms:
        for chosen in product(*levels.values()):
            at = dict(zip(levels, chosen, strict=True))
            if any(one.items() <= at.items() for one in excluded):
                continue
            name = ",".join(f"{factor}={level}" for factor, level in at.items())
            cells.append(
                FactorCell(
                    tuning=arm,
                    workload=f"it[{name}]",
                    condition="quiet",
                    arm=arm,
                    group="it",
                    under="quiet",
                    levels=at,
                )
            )
    return Factorial(
        factors={
            name: PlannedFactor(levels=values, own_boot=name in own_boot)
            for name, values in levels.items()
        },
        interactions=interactions,
        excluded=excluded,
        cells=tuple(cells),
    )


def measured(
    of: Factorial,
    value: Value,
    *,
    blocks: int = 10,
    blocks_per_boot: int = 1,
    lost: Callable[[Mapping[str, str], int], bool] = lambda *_: False,
    interleaved: bool = True,
    sample: Sample = RATE,
) -> Cells:
    """The cells of a run in which each cell has `value` in each block, unless it was lost."""
    numbers = range(1, blocks + 1)
    series, tried = {}, {}
    for cell in of.cells:
        place = Cell(cell.tuning, Scenario(cell.workload, cell.condition))
        tried[place] = frozenset(numbers)
        values = {b: value(cell.levels, b) for b in numbers if not lost(cell.levels, b)}
        if values:
            series[place] = {
                sample.key: Series(
                    sample,
                    values,
                    boots={block: 1 + (block - 1) // blocks_per_boot for block in values},
                    interleaved=interleaved,
                )
            }
    return Cells(series=series, tried=tried, missing=(), blocks=blocks, boots=1, problems=())


def design(of: Factorial, *, metric: str = METRIC) -> Design:
    workloads = {cell.workload for cell in of.cells}
    return Design(
        baseline="baseline",
        control="control",
        known_loss="handicap",
        candidates=(),
        natives=(),
        twins={},
        restored_as={},
        durabilities={},
        on_disk=frozenset(),
        primaries={name: Primary(metric, 0.05, 0.05) for name in workloads},
        planned_cells=frozenset(),
        places=(),
        problems=(),
    )
