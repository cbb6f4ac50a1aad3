"""Find the numbers of a run that a rule speaks of, and those of which it would if they were there.

What was planned and has no value is a finding as well: a rule about every tuning does not hold
because one of them could not be measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from labctl.analysis.cells import Cell, Cells, Series
from labctl.analysis.design import Design
from labctl.analysis.gate.policy import Rule
from labctl.analysis.words import listed
from labctl.base.nearest import nearest
from labctl.store.run_folder import LoadedRun

TWIN = "twin"
"""Value of `against` for the native arm that has the tuning's placement and policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Hold one metric of one cell. Without a `series`, `why` says why the rule can't be applied;
    `nothing`: the run has no such metric or cell."""

    cell: Cell | None = None
    key: str = ""
    series: Series | None = None
    why: str = ""
    nothing: bool = False


def scope(rule: Rule, run: LoadedRun, design: Design, cells: Cells) -> Iterator[Spot]:
    """Yield each spot that the rule speaks of; one without a cell where it speaks of none."""
    metric = rule.metric or ""
    arms = {cell.tuning for cell in _cells(design, cells)}
    if rule.against not in (None, TWIN, *arms):
        yield Spot(why=_nobody("arm", str(rule.against), [TWIN, *arms]), nothing=True)
        return
    spoken = [cell for cell in _cells(design, cells) if _speaks_of(rule, cell, design)]
    if not spoken:
        yield _no_cell(rule, run, design, cells)
        return
    found = [
        Spot(cell=cell, key=key, series=series)
        for cell in spoken
        for key, series in cells.series.get(cell, {}).items()
        if rule.takes_metric(key)
    ]
    if not found:
        yield _no_metric(rule, spoken, design, cells)
        return
    yield from found
    have = {spot.cell for spot in found}
    keys = {spot.cell.place.workload: spot.key for spot in found if spot.cell is not None}
    for cell in spoken:
        if cell in have:
            continue
        unavailable = _unavailable(rule, [cell], cells)
        key = keys.get(cell.place.workload) or _primary(rule, cell, design)
        if key or unavailable:  # else a workload that has no such metric
            why = unavailable or f"no valid trial of it has {metric}"
            yield Spot(cell=cell, key=key or metric, why=why)


def _primary(rule: Rule, cell: Cell, design: Design) -> str:
    """Return the primary metric of the cell's workload, where the rule speaks of it."""
    primary = design.primaries.get(cell.place.workload)
    return primary.metric if primary and rule.takes_metric(primary.metric) else ""


def _cells(design: Design, cells: Cells) -> list[Cell]:
    """Return cells in the order of the values, then those that were only planned."""
    planned = sorted(design.planned_cells - cells.series.keys())
    return [*cells.series, *planned]


def _speaks_of(rule: Rule, cell: Cell, design: Design) -> bool:
    # A pattern speaks of what may be rolled out; checks of the run are named or left out.
    if rule.tuning != cell.tuning and cell.tuning not in design.candidates:
        return False
    return all(_is(name, pattern) for _, name, pattern in _named(rule, cell))


def _is(name: str, pattern: str) -> bool:
    """Return whether a pattern speaks of a name. Names of factors' cells hold brackets, which in a
    pattern stand for one of several letters: written out, such a name is itself."""
    return name == pattern or fnmatchcase(name, pattern)


def _named(rule: Rule, cell: Cell) -> tuple[tuple[str, str, str], ...]:
    return (
        ("tuning", cell.tuning, rule.tuning),
        ("workload", cell.place.workload, rule.workload),
        ("condition", cell.place.condition, rule.condition),
    )


def _no_cell(rule: Rule, run: LoadedRun, design: Design, cells: Cells) -> Spot:
    skipped = run.plan.skipped or run.run.skipped
    if rule.tuning in skipped:
        return Spot(why=f"'{rule.tuning}' was skipped: {skipped[rule.tuning]}")
    lacks = run.plan.skipped_workloads.get(rule.workload, {})
    side = "native" if rule.tuning in design.natives else "guest"
    if side in lacks:
        return Spot(why=f"'{rule.workload}' was skipped: {lacks[side]}")
    if rule.condition in run.plan.skipped_conditions:
        why = run.plan.skipped_conditions[rule.condition]
        return Spot(why=f"'{rule.condition}' was skipped: {why}")
    there = _cells(design, cells)
    if not there:
        return Spot(why="the run has no trials", nothing=True)
    for what, pattern in (
        ("tuning", rule.tuning),
        ("workload", rule.workload),
        ("condition", rule.condition),
    ):
        names = {name for cell in there for kind, name, _ in _named(rule, cell) if kind == what}
        if not any(_is(name, pattern) for name in names):
            return Spot(why=_nobody(what, pattern, names), nothing=True)
    if rule.tuning not in {cell.tuning for cell in there} and not any(
        _is(name, rule.tuning) for name in design.candidates
    ):
        return Spot(why="none of these tunings is there to be rolled out", nothing=True)
    return Spot(why="no trial of the run is of all that the rule names", nothing=True)


def _no_metric(rule: Rule, spoken: Collection[Cell], design: Design, cells: Cells) -> Spot:
    if why := _unavailable(rule, spoken, cells):
        return Spot(why=why)
    keys = {key for cell in spoken for key in cells.series.get(cell, {})}
    if not keys:
        return Spot(why="no valid trial has a value there")
    if any(_primary(rule, cell, design) for cell in spoken):
        return Spot(why=f"no valid trial has {rule.metric}")
    return Spot(why=_nobody("metric", rule.metric or "", keys), nothing=True)


def _unavailable(rule: Rule, spoken: Collection[Cell], cells: Cells) -> str:
    """Return the reasons why a metric that was asked of these cells could not be had."""
    tunings = {cell.tuning for cell in spoken}
    workloads = {cell.place.workload for cell in spoken}
    reasons = dict.fromkeys(
        item.reason.rstrip(".")
        for item in cells.missing
        if rule.takes_metric(item.metric)
        and not tunings.isdisjoint(item.tunings)
        and not workloads.isdisjoint(item.workloads)
    )
    return f"not available: {listed(list(reasons))}" if reasons else ""


def _nobody(what: str, pattern: str, names: Collection[str]) -> str:
    told = f"the run has no {what} '{pattern}', and a rule that speaks of nothing can't pass"
    return f"{told}. {nearest(pattern, names).rstrip('.')}"
