"""Draw raw trials by block, a small picture per arm. Guests share one scale, native arms another.

Coordinates are for a picture of 100 by HEIGHT that is stretched to its place; strokes keep their
width, so that a path of no length with round ends is a dot. One path holds all dots of a panel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from labctl.analysis.answer.view import View, primary_column
from labctl.analysis.effects.cells import Scenario, cell_of
from labctl.base.notation import NOT_AVAILABLE, quantity
from labctl.base.units import Unit
from labctl.report.page.axis import Axis, axis_of
from labctl.store.samples import Sample
from labctl.store.trial import TrialStatus

_LABEL = 17
"""Height that a number at the axis takes."""
HEIGHT = 64
_FLOOR = HEIGHT - 3
"""Height at which a trial without a value is marked."""
_MOST_SINGLE = 60
"""Blocks up to which each trial is a dot and a row of the table; beyond, neighbours are joined."""
_MOST_GROUPS = 40
_MOST_BOOTS = 12
_MOST_MARKS = 40
"""Marks of invalid trials in a panel; all are counted."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark an invalid trial, in percent of the width and units of height."""

    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Draw one arm. `dots` and `spans` are SVG paths: trials, or for joined blocks their middle and
    their range. `typical_y`: the height of the typical value."""

    name: str
    summary: str
    dots: str
    spans: str
    marks: tuple[Mark, ...]
    typical_y: float | None
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Draw all arms. `rows`: blocks, or groups of them, with the value of each of `arms` as
    text.
    """

    title: str
    metric: str
    panels: tuple[Panel, ...]
    arms: tuple[str, ...]
    natives_apart: bool
    """True if native arms have a separate scale."""
    boots: tuple[float, ...]
    """Places where another boot begins."""
    first: int
    last: int
    joined: int
    """Blocks that one mark stands for."""
    later: int | None
    """First block that is not drawn because no verdict rests on it or on later ones."""
    invalid: int
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    height: int = HEIGHT


Invalid = Mapping[tuple[str, Scenario], Sequence[tuple[int, Mapping[str, float]]]]
"""Invalid attempts by arm and place: block, and the values of that trial by metric key."""


def invalid_attempts(view: View) -> Invalid:
    """Return every discarded attempt. Read it once per page: runs have thousands of trials."""
    found: dict[tuple[str, Scenario], list[tuple[int, Mapping[str, float]]]] = {}
    for trial in view.run.trials:
        cell = cell_of(trial.record.cell)
        if trial.record.status is not TrialStatus.INVALID or cell is None:
            continue
        values = {r.key: r.value for r in trial.readings if isinstance(r, Sample)}
        found.setdefault((cell.tuning, cell.place), []).append((trial.record.block, values))
    return found


def dots(view: View, place: Scenario, invalid: Invalid, shown: Collection[str]) -> Dots | None:
    """Return the primary metric of every trial of a place; None if no trial has it.

    `shown`: the arms that are drawn; the table has all.
    """
    metric = view.primary(place.workload)
    if metric is None:
        return None
    column = primary_column(metric)
    later = view.judgement.added.first if view.judgement.added is not None else None
    levels = {arm: view.level(arm, place, column) for arm in view.tunings}
    values = {arm: dict(level.values) for arm, level in levels.items() if level is not None}
    lost = {
        arm: [
            (block, numbers.get(metric))
            for block, numbers in invalid.get((arm, place), ())
            if later is None or block < later
        ]
        for arm in view.tunings
    }
    arms = [arm for arm in view.tunings if values.get(arm) or lost[arm]]
    axes = {
        native: axis_of(
            value
            for arm, found in values.items()
            if view.is_native(arm) is native
            for value in found.values()
        )
        for native in (False, True)
    }
    known = axes[False] or axes[True]
    if known is None:
        return None
    unit = next(level.unit for level in levels.values() if level is not None)
    blocks = sorted(
        {block for found in values.values() for block in found}
        | {block for arm in arms for block, _ in lost[arm]}
    )
    joined = 1 if len(blocks) <= _MOST_SINGLE else math.ceil(len(blocks) / _MOST_GROUPS)
    groups = [blocks[at : at + joined] for at in range(0, len(blocks), joined)]
    across = {
        native: _Across(axis or known, blocks[0], blocks[-1]) for native, axis in axes.items()
    }
    return Dots(
        title=f"{place.title}: {view.title(place.workload, metric)} of every trial, by block",
        metric=view.title(place.workload, metric),
        panels=tuple(
            _panel(arm, values.get(arm, {}), lost[arm], groups, across[view.is_native(arm)], unit)
            for arm in arms
            if arm in shown
        ),
        arms=tuple(arms),
        natives_apart=all(axes.values()),
        boots=tuple(across[False].edge(block) for block in _boots(view, blocks)),
        first=blocks[0],
        last=blocks[-1],
        joined=joined,
        later=later,
        invalid=sum(len(found) for found in lost.values()),
        rows=tuple(
            (_blocks(group), tuple(_cell(values.get(arm, {}), group, unit) for arm in arms))
            for group in groups
        ),
    )


@dataclass(frozen=True, slots=True)
class _Across:
    axis: Axis
    first: int
    last: int

    def x(self, block: float) -> float:
        """Return a block's place, with half a block free at both ends."""
        return round(100 * (block - self.first + 0.5) / (self.last - self.first + 1), 2)

    def edge(self, block: int) -> float:
        return self.x(block - 0.5)

    def y(self, value: float) -> float:
        return round(HEIGHT * (1 - self.axis.share(value)), 1)


def _panel(
    arm: str,
    values: Mapping[int, float],
    lost: Sequence[tuple[int, float | None]],
    groups: Sequence[Sequence[int]],
    across: _Across,
    unit: Unit,
) -> Panel:
    points, spans = [], []
    for group in groups:
        there = [values[block] for block in group if math.isfinite(values.get(block, math.nan))]
        if not there:
            continue
        x = across.x((group[0] + group[-1]) / 2)
        points.append(f"M{x:g} {across.y(median(there)):g}h0")
        if len(there) > 1:
            spans.append(f"M{x:g} {across.y(max(there)):g}V{across.y(min(there)):g}")
    middle = median(values.values()) if values else None
    said = [f"median {quantity(middle, unit)}" if middle is not None else NOT_AVAILABLE]
    if lost:
        said.append(f"{len(lost)} invalid")
    return Panel(
        name=arm,
        summary=", ".join(said),
        dots="".join(points),
        spans="".join(spans),
        marks=tuple(
            Mark(
                across.x(block),
                across.y(value) if value is not None and math.isfinite(value) else _FLOOR,
            )
            for block, value in lost[:_MOST_MARKS]
        ),
        typical_y=across.y(middle) if middle is not None else None,
        ticks=tuple(
            (across.y(value), text) for value, text in across.axis.ticks(unit, _LABEL / HEIGHT)
        ),
    )


def _boots(view: View, blocks: Sequence[int]) -> list[int]:
    """Return the blocks with which another boot begins; none if they are too many to tell apart."""
    boot_of = {trial.record.block: trial.record.boot for trial in view.run.trials}
    known = [block for block in blocks if block in boot_of]
    starts = [after for before, after in pairwise(known) if boot_of[before] != boot_of[after]]
    return starts if len(starts) <= min(_MOST_BOOTS, len(blocks) // 2) else []


def _blocks(group: Sequence[int]) -> str:
    return str(group[0]) if len(group) == 1 else f"{group[0]} to {group[-1]}"


def _cell(values: Mapping[int, float], group: Sequence[int], unit: Unit) -> str:
    there = [values[block] for block in group if block in values]
    if not there:
        return ""
    text = quantity(median(there), unit)
    if len(there) == 1:
        return text
    return f"{text} ({quantity(min(there), unit)} to {quantity(max(there), unit)})"
