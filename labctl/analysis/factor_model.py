"""Define what analysis says of a run's factors, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from labctl.base.units import Better, Unit
from labctl.store.records.factor_record import PlannedFactor


class Finding(StrEnum):
    """Name what a contrast's simultaneous interval says."""

    REAL = "real"
    """It excludes no effect."""
    SMALL = "real but small"
    """It does, and lies within the study's margin."""
    NOT_SHOWN = "not shown"
    """It includes no effect."""
    NONE = "demonstration, no verdict"
    """Fewer than ten blocks."""
    EXPLORATORY = "exploratory"
    """The metric isn't primary."""
    BEFORE_LOOK = "before the first look"
    """The plan declares looks, and none is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Compare levels of one factor, or say how one factor changes the effect of another.

    `factors` has one name for a main effect, two for an interaction; `levels` are compared with
    `against`, the first levels. `estimate`, `low`, `high`: the ratio of the levels (of an
    interaction the ratio of two ratios), or the difference where values may be 0; low and high are
    None where there is no interval. `values` has one for each block, or for each boot if `per` is
    "boot", in the same scale. `cells`: combinations of the other factors that it is averaged over.
    """

    arm: str
    workload: str
    condition: str
    metric: str
    unit: Unit
    better: Better
    is_ratio: bool
    factors: tuple[str, ...]
    levels: tuple[str, ...]
    against: tuple[str, ...]
    estimate: float
    low: float | None
    high: float | None
    confidence: float
    finding: Finding
    margin: float
    per: str
    values: Mapping[int, float]
    cells: int
    left_out: tuple[int, ...] = ()
    """Blocks in which one of its cells was tried and has no value: not imputed, so not in it."""
    without: tuple[str, ...] = ()
    """Cells that have no value in any block, and aren't in it; neither are those that they would
    be compared with."""
    paired: bool = True
    """False where trials were not interleaved: the cells' means are compared."""

    @property
    def is_interaction(self) -> bool:
        return len(self.factors) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMean:
    """Hold the typical value of the primary metric at a cell's levels, over blocks."""

    arm: str
    workload: str
    condition: str
    metric: str
    unit: Unit
    levels: Mapping[str, str]
    typical: float
    blocks: int
    is_geometric: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorAnalysis:
    """Hold what a run says of its factors. `family`: planned contrasts, among which `alpha` is
    shared; `pictured`: the two factors that pictures show."""

    factors: Mapping[str, PlannedFactor]
    family: int
    confidence: float
    contrasts: tuple[Contrast, ...]
    means: tuple[CellMean, ...]
    pictured: tuple[str, str] | None
    problems: tuple[str, ...] = ()
