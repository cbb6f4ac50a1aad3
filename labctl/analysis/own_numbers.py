"""Find this run's own number for a metric that a table names: an arm's value, or the ratio of two
arms, each with an interval of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from labctl.analysis.cells import Cells, Scenario, Series, read_cells
from labctl.analysis.design import Design, read_design
from labctl.analysis.effects import alone, ratio_of, ratios
from labctl.analysis.intervals import t_interval
from labctl.base.units import Unit
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import base_name, labels_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Hold a value or a ratio of a run. `low`, `high`: 95 %, by itself; more where a rule may end
    the run (METHOD 22). `unit` None: a ratio. `why`: why there is none."""

    number: float | None = None
    low: float | None = None
    high: float | None = None
    blocks: int = 0
    unit: Unit | None = None
    why: str = ""
    is_no_metric: bool = False
    """True if nobody says that the arm should have it: a workload's own metric in another."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold what a run measured, and the design by which it is read."""

    run: LoadedRun
    design: Design
    cells: Cells

    @classmethod
    def of(cls, run: LoadedRun) -> Measured:
        return cls(run, read_design(run), read_cells(run))

    def ratio(
        self, metric: str, tuning: str, place: Scenario, against: str, other: Scenario
    ) -> Own:
        """Return `tuning` in `place` / `against` in `other`.

        Against baseline the reference is the mean of baseline and control, as everywhere (METHOD
        17).
        """
        design = self.design
        if tuning == against and other == place:
            return Own(why="an arm is not compared with itself")
        ours, theirs = self._series(tuning, place, metric), self._series(against, other, metric)
        if ours is None or theirs is None:
            return self._missing(tuning if ours is None else against, place, metric)
        second = design.control if against == design.baseline and other == place else None
        control = self._series(second, place, metric) if second != tuning else None
        found = ratios(ours, [theirs] if control is None else [theirs, control])
        if isinstance(found, str):
            return Own(why=f"it {found}")
        interval = t_interval(found.spread, design.level)
        return Own(
            number=found.shown(found.spread.mean),
            low=None if interval is None else found.shown(interval.low),
            high=None if interval is None else found.shown(interval.high),
            blocks=found.spread.n,
        )

    def value(self, metric: str, tuning: str, place: Scenario) -> Own:
        """Return the typical value of an arm: the geometric mean over blocks where all values are
        above 0, else the arithmetic one; of maxima the largest, which has no interval."""
        series = self._series(tuning, place, metric)
        if series is None:
            return self._missing(tuning, place, metric)
        unit, blocks = series.sample.unit, len(series.values)
        if series.is_maximum:
            return Own(number=series.typical, blocks=blocks, unit=unit)
        logs = series.least > 0
        interval = t_interval(alone(series, logs=logs), self.design.level)
        ends = (None, None) if interval is None else (interval.low, interval.high)
        low, high = (ratio_of(end) if logs and end is not None else end for end in ends)
        return Own(number=series.typical, low=low, high=high, blocks=blocks, unit=unit)

    def _series(self, tuning: str | None, place: Scenario, metric: str) -> Series | None:
        """Return what has the metric's name and its labels and no more, or else what has them,
        summed by block; None where there is nothing, or where the numbers come from more than one
        source (METHOD 12)."""
        if tuning is None:
            return None
        base, labels = base_name(metric), labels_of(metric)
        found = [
            series
            for series in self.cells.at(tuning, place).values()
            if series.sample.metric == base and labels.items() <= series.sample.labels.items()
        ]
        # A total that stands beside its parts, as exits beside exits{reason=HLT}, is not one of
        # them.
        wanted = labels.keys() | {"source"}
        found = [series for series in found if series.sample.labels.keys() <= wanted] or found
        if len({series.sample.labels.get("source") for series in found}) != 1:
            return None
        first, *more = found
        if not more:
            return first
        blocks = set.intersection(*(set(series.values) for series in found))
        return replace(
            first,
            values={b: math.fsum(series.values[b] for series in found) for b in sorted(blocks)},
        )

    def _missing(self, tuning: str, place: Scenario, metric: str) -> Own:
        """Return the reasons why an arm has no such number."""
        if why := self.run.plan.skipped.get(tuning):
            return Own(why=why)
        base = base_name(metric)
        reasons = dict.fromkeys(
            item.reason
            for item in self.cells.missing
            if base_name(item.metric) == base
            and tuning in item.tunings
            and place.workload in item.workloads
        )
        if reasons:
            return Own(why="; ".join(reason.rstrip(".") for reason in reasons))
        return Own(why=f"{tuning} has no value of it", is_no_metric=True)
