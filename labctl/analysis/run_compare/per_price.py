"""Set what one host does better against what it costs: performance per price of two runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from labctl.analysis.model import EffectKind
from labctl.analysis.run_compare.two_runs import Difference
from labctl.base.units import Better


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Hold what an hour of each run's host costs, in one currency."""

    a: float
    b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PerPrice:
    """Say how much performance run B's host gives for the same money as run A's (2: twice as much).
    `low`, `high`: as the ratio of the row that it is made of has them; prices are taken as exact.
    `why`: why there is no `estimate`."""

    tuning: str
    workload: str
    condition: str
    metric: str
    better: Better
    estimate: float | None
    low: float | None
    high: float | None
    confidence: float
    why: str = ""


def per_price(rows: Iterable[Difference], prices: Prices) -> Iterator[PerPrice]:
    """Yield performance per price for each value that both runs have.

    It is (metric_A / metric_B) x (price_A / price_B) where less is better, else (metric_B /
    metric_A) x (price_A / price_B).
    """
    for row in rows:
        why = _why_none(row)
        of = (row.estimate, row.low, row.high) if not why else (None, None, None)
        estimate, low, high = (_of(ratio, row.better, prices) for ratio in of)
        if row.better is Better.LOWER:
            low, high = high, low
        yield PerPrice(
            tuning=row.tuning,
            workload=row.workload,
            condition=row.condition,
            metric=row.metric,
            better=row.better,
            estimate=estimate,
            low=low,
            high=high,
            confidence=row.confidence,
            why=why,
        )


def _why_none(row: Difference) -> str:
    if row.better is Better.NEITHER:
        return "neither direction of it is better"
    if row.kind is not EffectKind.RATIO or not row.estimate > 0:
        return "it is compared by difference, and performance per price takes a ratio"
    return ""


def _of(ratio: float | None, better: Better, prices: Prices) -> float | None:
    if ratio is None or ratio <= 0:
        return None
    performance = 1 / ratio if better is Better.LOWER else ratio
    return performance * prices.a / prices.b
