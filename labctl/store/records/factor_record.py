"""Hold a plan's factors: levels, declared interactions, and each cell's levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import ConfigDict, with_config

from labctl.store.records.tolerant import Flag, Text

AXES = ("tuning", "workload", "condition")
"""Factors that every trial has, and that imported trials may have as factors to analyse."""

NAME_ENDS = "["
"""Beginning of a cell's levels in its workload's name."""


def base_of(workload: str) -> str:
    """Return the workload that a cell's was made from."""
    return workload.partition(NAME_ENDS)[0]


def cell_name(workload: str, levels: Mapping[str, str]) -> str:
    """Return the name of a workload at these levels: "disk[mode=randread,iodepth=1]"."""
    if not levels:
        return workload
    return f"{workload}[{','.join(f'{factor}={level}' for factor, level in levels.items())}]"


_SLOTS = ConfigDict(extra="ignore")


class Place(NamedTuple):
    """Name where trials of a plan run: its tuning, its workload, its condition."""

    tuning: str
    workload: str
    condition: str


@with_config(_SLOTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFactor:
    """Describe a factor. `own_boot`: a level needs a boot of its own, so that the factor gives each
    contrast once per boot (METHOD 29)."""

    levels: tuple[Text, ...]
    own_boot: Flag = False


@with_config(_SLOTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedHeatmap:
    """Describe a picture that a study requests: a metric over two factors."""

    across: Text
    down: Text
    metric: Text


@with_config(_SLOTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class FactorCell:
    """Describe one combination of levels. `arm`, `group` and `under`: its tuning, workload and
    condition without what the factors set; `under` is None if a factor sets the condition.
    `levels`: by factor, of those that apply to it."""

    tuning: Text
    workload: Text
    condition: Text
    arm: Text
    group: Text
    under: Text | None = None
    levels: dict[str, Text]

    @property
    def place(self) -> Place:
        return Place(self.tuning, self.workload, self.condition)


@with_config(_SLOTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class Factorial:
    """Hold a plan's factors, in the order of the study. `excluded`: combinations that the study
    leaves out."""

    factors: dict[str, PlannedFactor]
    interactions: tuple[tuple[Text, Text], ...] = ()
    excluded: tuple[dict[str, Text], ...] = ()
    cells: tuple[FactorCell, ...] = ()

    def levels_by_place(self) -> dict[Place, dict[str, str]]:
        """Return the levels of each cell."""
        return {cell.place: cell.levels for cell in self.cells}
