"""Expand a study's factors into the axes that every study has: tunings, workloads, conditions.

A level that sets parameters makes a workload `NAME[factor=level,…]`, one that sets a tuning makes
the arm that combines it with each guest's, and one that sets a condition takes the place of the
study's own. So the engine, the plan and the checks need to know nothing of factors; the plan keeps
each cell's levels for the analysis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from labctl.base.errors import UsageError, nearest
from labctl.base.tuning import Tuning
from labctl.store.records.factor_record import (
    FactorCell,
    Factorial,
    Place,
    PlannedFactor,
    cell_name,
)
from labctl.study.combine import JOINT

BASELINE = "baseline"
"""Part of every combination, so that no combination's name says it."""

MOST_CELLS = 1000
"""Cells of one block: with more, a block lasts for hours and the host is another one at its end."""

_LONGEST_NAME = 150

Value = int | float | bool | str
Levels = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Hold what a level sets."""

    parameters: Mapping[str, Value] = field(default_factory=dict)
    condition: str | None = None
    tuning: str | None = None
    workload: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Hold a factor with all its levels; `chosen`: those that are measured, in their order."""

    name: str
    levels: Mapping[str, Level]
    chosen: tuple[str, ...]

    @property
    def parameters(self) -> frozenset[str]:
        """Return the parameters that any of its levels sets."""
        return frozenset(name for level in self.levels.values() for name in level.parameters)

    @property
    def sets_tuning(self) -> bool:
        return any(level.tuning for level in self.levels.values())

    @property
    def sets_condition(self) -> bool:
        return any(level.condition for level in self.levels.values())

    @property
    def sets_workload(self) -> bool:
        return any(level.workload for level in self.levels.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Hold what a study declares of factors."""

    factors: tuple[Factor, ...] = ()
    excluded: tuple[Mapping[str, str], ...] = ()
    interactions: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.factors)

    def choosing(self, chosen: Mapping[str, Collection[str]]) -> Declared:
        """Return the same with only these levels of the factors named; raises UsageError for one
        that isn't there."""
        by_name = {factor.name: factor for factor in self.factors}
        for name, levels in chosen.items():
            if name not in by_name:
                raise UsageError(
                    f"the study has no factor '{name}'" + ("" if by_name else ": it varies none"),
                    hint=nearest(name, by_name) if by_name else None,
                )
            for level in levels:
                if level not in by_name[name].levels:
                    raise UsageError(
                        f"factor '{name}' has no level '{level}'",
                        hint=nearest(level, by_name[name].levels),
                    )
        return Declared(
            factors=tuple(_choosing(factor, chosen.get(factor.name)) for factor in self.factors),
            excluded=self.excluded,
            interactions=self.interactions,
        )


def _choosing(factor: Factor, chosen: Collection[str] | None) -> Factor:
    kept = tuple(name for name in factor.chosen if chosen is None or name in chosen)
    if not kept:
        raise UsageError(
            f"factor '{factor.name}' has none of the chosen levels left",
            hint=f"Choose among: {', '.join(factor.chosen)}.",
        )
    return Factor(name=factor.name, levels=factor.levels, chosen=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Hold the axes of a study. `workloads`: the parameters of each; `single`: arms that no
    factor's tuning is combined with; `baseline`: the arm that runs as it is in any case."""

    tunings: tuple[str, ...]
    single: frozenset[str]
    baseline: str
    workloads: Mapping[str, Mapping[str, Value]]
    conditions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded:
    """Hold the axes that factors make. `workloads`: name to what it was made of, and its
    parameters; `tunings`: name to the arm that it was made of."""

    tunings: Mapping[str, str]
    workloads: Mapping[str, tuple[str, Mapping[str, Value]]]
    conditions: tuple[str, ...]
    factorial: Factorial


def expand(declared: Declared, axes: Axes) -> Expanded:
    """Return the axes with all levels combined, and the levels of each cell.

    Raises UsageError where nothing is left, where two combinations are the same cell, and for more
    than MOST_CELLS.
    """
    cells: dict[Place, FactorCell] = {}
    tunings: dict[str, str] = {}
    workloads: dict[str, tuple[str, Mapping[str, Value]]] = {}
    for arm in axes.tunings:
        for cell, parameters, workload in _cells_of(declared, axes, arm):
            first = cells.setdefault(cell.place, cell)
            if (first.arm, first.levels) != (cell.arm, cell.levels):
                raise UsageError(
                    f"'factors' make the same cell twice: {_words(first)} and "
                    f"{_words(cell)} are both {', '.join(cell.place)}",
                    hint="Do not use a tuning both as an arm and as a factor's level, and give "
                    "each level different settings.",
                )
            tunings.setdefault(cell.tuning, arm)
            workloads.setdefault(cell.workload, (workload, parameters))
            if len(cells) > MOST_CELLS:
                raise UsageError(
                    f"'factors' make more than {MOST_CELLS} cells ({_product(declared, axes)})",
                    hint="Exclude combinations, or give fewer levels, tunings or workloads.",
                )
    if not cells:
        raise UsageError("'exclude' leaves no cell", hint="Exclude fewer combinations.")
    order = {name: at for at, name in enumerate(_conditions(declared, axes))}
    found = {cell.condition for cell in cells.values()}
    return Expanded(
        tunings=tunings,
        workloads=workloads,
        conditions=tuple(sorted(found, key=lambda name: order[name])),
        factorial=Factorial(
            factors={
                factor.name: PlannedFactor(levels=factor.chosen) for factor in declared.factors
            },
            interactions=declared.interactions,
            excluded=tuple(dict(item) for item in declared.excluded),
            cells=tuple(cells.values()),
        ),
    )


def _words(cell: FactorCell) -> str:
    levels = ", ".join(f"{factor}={level}" for factor, level in cell.levels.items())
    return f"'{cell.arm}' with {levels or 'no level'}"


def _product(declared: Declared, axes: Axes) -> str:
    levels = " x ".join(f"{len(factor.chosen)} {factor.name}" for factor in declared.factors)
    return f"{len(axes.tunings)} tunings x {len(axes.workloads)} workloads x {levels}"


def _conditions(declared: Declared, axes: Axes) -> dict[str, None]:
    by_level = (level.condition for f in declared.factors for level in f.levels.values())
    return dict.fromkeys([*axes.conditions, *filter(None, by_level)])


def _cells_of(
    declared: Declared, axes: Axes, arm: str
) -> Iterator[tuple[FactorCell, Mapping[str, Value], str]]:
    """Yield an arm's cells, each with its workload's parameters and the workload they are of."""
    for workload, group, given in _workloads(declared, axes):
        bearing = [f for f in declared.factors if _bears(f, arm, workload, axes)]
        variants = [bearing]
        tuned = [factor for factor in bearing if factor.sets_tuning]
        if arm == axes.baseline and any(all(_tunings(f)) for f in tuned):
            # Everything is compared with the baseline as it is, whatever the levels are.
            variants.append([factor for factor in bearing if factor not in tuned])
        for factors in variants:
            for combination in product(*(factor.chosen for factor in factors)):
                names = (factor.name for factor in factors)
                levels = {**given, **dict(zip(names, combination, strict=True))}
                if any(excludes.items() <= levels.items() for excludes in declared.excluded):
                    continue
                in_order = {f.name: levels[f.name] for f in declared.factors if f.name in levels}
                yield from _made(declared, axes, arm, workload, group, in_order)


def _tunings(factor: Factor) -> list[str | None]:
    return [factor.levels[name].tuning for name in factor.chosen]


def _workloads(declared: Declared, axes: Axes) -> Iterator[tuple[str, str, Levels]]:
    """Yield each workload, the name of what it is analysed with, and the levels that choose it."""
    chosen: set[str] = set()
    for factor in declared.factors:
        if factor.sets_workload:
            named = [(name, factor.levels[name].workload or "") for name in factor.chosen]
            every = {level.workload or "" for level in factor.levels.values()}
            group = JOINT.join(dict.fromkeys(w for _, w in named if w in axes.workloads))
            chosen |= every
            for name, workload in named:
                if workload in axes.workloads:
                    yield workload, group, {factor.name: name}
    for workload in axes.workloads:
        if workload not in chosen:
            yield workload, workload, {}


def _bears(factor: Factor, arm: str, workload: str, axes: Axes) -> bool:
    """Return whether a factor sets anything there, other than the workload itself."""
    if factor.sets_workload:
        return False
    if factor.sets_condition or (factor.sets_tuning and arm not in axes.single):
        return True
    return bool(factor.parameters) and factor.parameters <= axes.workloads[workload].keys()


def _made(
    declared: Declared, axes: Axes, arm: str, workload: str, group: str, levels: Levels
) -> Iterator[tuple[FactorCell, Mapping[str, Value], str]]:
    by_name = {factor.name: factor for factor in declared.factors}
    parameters = dict(axes.workloads[workload])
    combined = [] if arm == BASELINE else [arm]
    condition: str | None = None
    in_name: Levels = {}
    for name, chosen in levels.items():
        factor, level = by_name[name], by_name[name].levels[chosen]
        if factor.parameters and factor.parameters <= parameters.keys():
            parameters |= level.parameters
            in_name[name] = chosen
        if level.tuning and arm not in axes.single:
            combined.append(level.tuning)
        condition = level.condition or condition
    name = cell_name(workload, in_name)
    if len(name) > _LONGEST_NAME:
        raise UsageError(
            f"'factors' make a workload's name of {len(name)} characters (limit: "
            f"{_LONGEST_NAME}): {name[:60]}…",
            hint="Give factors or levels shorter names.",
        )
    for under in axes.conditions if condition is None else (None,):
        cell = FactorCell(
            tuning=JOINT.join(combined) or arm,
            workload=name,
            condition=condition or under or "",
            arm=arm,
            group=group,
            under=under,
            levels=levels,
        )
        yield cell, parameters, workload


def with_boots(factorial: Factorial, tunings: Mapping[str, Tuning]) -> Factorial:
    """Return the factors, those marked of which levels differ in how their guests start. `tunings`:
    those that run; the cells of others are left out."""
    cells = tuple(cell for cell in factorial.cells if cell.tuning in tunings)
    factors = {
        name: PlannedFactor(levels=factor.levels, own_boot=_needs_boot(name, cells, tunings))
        for name, factor in factorial.factors.items()
    }
    return replace(factorial, factors=factors, cells=cells)


def _needs_boot(factor: str, cells: Sequence[FactorCell], tunings: Mapping[str, Tuning]) -> bool:
    """Return whether guests boot otherwise at some level than at another, all else being equal."""
    starts: dict[tuple[object, ...], tuple[object, ...]] = {}
    for cell in cells:
        if factor in cell.levels:
            others = sorted((f, level) for f, level in cell.levels.items() if f != factor)
            tuning = tunings[cell.tuning]
            how = (tuning.restore, tuning.guest.command_line)
            if starts.setdefault((cell.arm, cell.group, *others), how) != how:
                return True
    return False


def only_workloads(expanded: Expanded, named: Collection[str]) -> Expanded:
    """Return the cells of these workloads, which are named as they are or by what they are made
    of."""
    workloads = {
        name: made for name, made in expanded.workloads.items() if name in named or made[0] in named
    }
    cells = tuple(cell for cell in expanded.factorial.cells if cell.workload in workloads)
    factorial = replace(expanded.factorial, cells=cells)
    return replace(expanded, workloads=workloads, factorial=factorial)
