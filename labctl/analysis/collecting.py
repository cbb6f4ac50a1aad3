"""Compute what collecting costs: from paired windows with and without it, and as a run's report
says it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from labctl.analysis.design import ALPHA
from labctl.analysis.intervals import spread, t_interval
from labctl.analysis.words import listed
from labctl.base.notation import shares, significant
from labctl.store.run_folder import LoadedRun

LEAST = "counters"
"""The level of runs that say none."""

_TIED = 1e-9
"""Log ratios closer together are one number: sysbench prints two decimals."""


class Cost(NamedTuple):
    """Hold the share of the throughput that is lost, with its 95 % interval; below 0: gained."""

    estimate: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """Return "3.1 % (2.0…4.2 %)"."""
        return shares(*self)


def cost(collected: Sequence[float], bare: Sequence[float]) -> Cost:
    """Return the cost from throughputs with and without collecting, in pairs: 1 - exp(mean of
    ln(with / without)), its interval from Student's t on the pairs. Raises ValueError without a
    pair, or for throughputs that aren't above 0."""
    effects = [math.log(a / b) for a, b in zip(collected, bare, strict=True)]
    found = spread(effects, _TIED)
    interval = t_interval(found, ALPHA)
    if interval is None:
        return Cost(_lost(found.mean), None, None)
    return Cost(_lost(found.mean), _lost(interval.high), _lost(interval.low))


def _lost(effect: float) -> float:
    return -math.expm1(effect)


def busy_words(labctl_cpu: float) -> str:
    """Return "0.05 % of a CPU" of CPU seconds per second."""
    return f"{significant(100 * labctl_cpu, 2)} % of a CPU"


def _own(busy: float | None) -> str:
    # Of older measurements it isn't known
    return "" if busy is None else f" and {busy_words(busy)} for labctl itself"


def level_of(run: LoadedRun) -> str:
    """Return what a run's trials collected."""
    return run.plan.collect or LEAST


def costs_said(run: LoadedRun) -> str:
    """Return what collecting at the run's level was known to cost when it began, as a sentence."""
    level = level_of(run)
    costs = run.run.collecting_costs
    if not costs:
        return (
            f"Collected at level '{level}': what that costs here is not measured. "
            f"'labctl collectors --overhead --level {level}' does."
        )
    named = [
        f"{Cost(cost.estimate, cost.low, cost.high)} of {cost.workload}'s throughput "
        f"{'natively' if cost.side == 'native' else 'in the guest'}"
        f"{_own(cost.labctl_cpu)} (measured {str(cost.measured_at)[:10]})"
        for cost in costs
    ]
    return f"Collected at level '{level}', which cost {listed(named, 8)} here."
