"""Where the variance of effects comes from, and what would buy more precision.

T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time" (ISMM 2013), in the corrected
form of its T_i^2. Their levels are here, from the highest: boots, blocks within a boot, and what
happens within a trial. S_i^2 is the variance of the means of level i, and
T_i^2 = S_i^2 - S_(i-1)^2 / r_(i-1) what that level itself adds (unbiased, so below 0 at times).

A trial gives one value per metric, so the lowest level can't be told from the one above it: what
longer trials would buy stays open, and the proposal keeps their seconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from labctl.analysis.boots import MeanSquares, mean_squares, sharing
from labctl.analysis.cells import Place
from labctl.analysis.compare import Compared
from labctl.analysis.effects import Effects
from labctl.analysis.intervals import Spread, quantile
from labctl.analysis.model import Comparison, EffectKind, Precision
from labctl.analysis.verdicts import FEWEST_BLOCKS
from labctl.analysis.words import size_text
from labctl.base.wording import counted, duration, metric_title, roughly
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialRecord

_NARROWER = 2.0
"""The proposal halves the interval: what four times as many blocks do where blocks are all."""
_MOST_BOOTS = 500
_MOST_BLOCKS_PER_BOOT = 20


@dataclass(frozen=True, slots=True)
class Components:
    """T^2 of boots and of blocks, on the scale of effects. `boots` is None where they can't be
    told apart: one boot, or a boot to each block."""

    boots: float | None
    blocks: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that a boot and a block took."""

    boot: float
    block: float


@dataclass(frozen=True, slots=True)
class Proposal:
    boots: int
    blocks_per_boot: int
    seconds: float
    """What it would take."""


def components(found: MeanSquares) -> Components:
    """T_1^2 is the mean square within boots, and T_2^2 = S_2^2 - S_1^2 / r_1, which with the mean
    squares reads (between - within) / r_1; r_1 is n_0 where boots have unequally many blocks."""
    if found.within is None:
        return Components(None, found.between)
    return Components((found.between - found.within) / found.blocks_per_boot, found.within)


def optimal_repetitions(
    lower: float, higher: float, lower_cost: float, higher_cost: float
) -> float:
    """Kalibera and Jones' r_i = sqrt((c_(i+1) / c_i) * (T_i^2 / T_(i+1)^2)): how often to repeat
    the lower level within one of the higher; infinite where the higher adds nothing."""
    if higher <= 0:
        return math.inf
    return math.sqrt(higher_cost / lower_cost * max(0.0, lower) / higher)


def propose(of: Components, costs: Costs, half_width: float, alpha: float) -> Proposal | None:
    """The cheapest boots and blocks per boot whose t interval reaches no further than `half_width`
    from its middle; None where none up to 500 boots of 20 blocks does.

    It minimizes Kalibera and Jones' cost, boots * (c_boot + blocks * c_block), over whole numbers,
    with the degrees of freedom that few boots leave: their closed form has none, and boots are the
    unit of the interval. Where boots can't be told from blocks, each block gets a boot.
    """
    boots, per_boot, quantiles = _designs(alpha)
    if of.boots is None:
        per_boot = per_boot[:, :1]
    variance = max(0.0, of.boots or 0.0) / boots + of.blocks / (boots * per_boot)
    reaches = (quantiles * np.sqrt(variance) <= half_width) & (boots * per_boot >= FEWEST_BLOCKS)
    if not reaches.any():
        return None
    seconds = np.where(reaches, boots * (costs.boot + per_boot * costs.block), np.inf)
    row, column = np.unravel_index(int(seconds.argmin()), seconds.shape)
    return Proposal(int(boots[row, 0]), int(per_boot[0, column]), float(seconds[row, column]))


@lru_cache(maxsize=8)
def _designs(alpha: float) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    boots = np.arange(2, _MOST_BOOTS + 1)[:, None]
    per_boot = np.arange(1, _MOST_BLOCKS_PER_BOOT + 1)[None, :]
    return boots, per_boot, stdtrit(boots - 1, 1 - alpha / 2)


def costs_of(run: LoadedRun) -> Costs:
    """What a block and a boot took in this run, medians. A block is all of its trials and what lay
    between them, invalid attempts included; a boot is the time to its first answer (0 where the
    run doesn't say), without the settling that follows."""
    trials: defaultdict[int, list[TrialRecord]] = defaultdict(list)
    for trial in run.trials:
        trials[trial.record.block].append(trial.record)
    boots = [_time(taken) for taken in (run.run.get("boot_seconds") or {}).values()]
    return Costs(
        boot=median(boots) if boots else 0.0,
        block=median(_seconds(records) for records in trials.values()) if trials else 0.0,
    )


def _seconds(records: Sequence[TrialRecord]) -> float:
    at_work = math.fsum(_time(record.wall_s) for record in records)
    try:
        begun = [datetime.fromisoformat(record.started_at).timestamp() for record in records]
    except (ValueError, OverflowError):  # a clock that nobody wrote down
        return at_work
    ended = [start + _time(record.wall_s) for start, record in zip(begun, records, strict=True)]
    return max(at_work, max(ended) - min(begun))


def _in_time(seconds: float, costs: Costs) -> str:
    """How long that takes, as far as the run tells: trials from elsewhere say nothing of it."""
    if not costs.block:
        return ""
    return f" in about {roughly(seconds)}{'' if costs.boot else ', the time of boots not counted'}"


def _time(seconds: float | None) -> float:
    """0 for what is no time that can have passed: a file may say anything."""
    return seconds if seconds is not None and 0 < seconds < math.inf else 0.0


def precision(run: LoadedRun, made: Sequence[Compared]) -> Iterator[Precision]:
    """Of each workload and condition with judged tunings: the components of variance of the
    primary metric's effects (medians over the tunings), and the proposal."""
    judged: defaultdict[Place, list[Compared]] = defaultdict(list)
    for one in made:
        spread = one.effects.spread
        # One block may have an error, that of its histogram's bins, but has nothing to spread from.
        if one.is_primary and one.effects.fallback is None and spread.error > 0 and spread.n > 1:
            judged[one.place].append(one)
    if not judged:
        return
    costs = costs_of(run)
    workloads = run.plan.get("workloads") or {}
    for place, those in judged.items():
        seconds = _time(workloads[place.workload].get("duration_s"))
        yield _precision(place, those, costs, seconds or None)


def _precision(
    place: Place, made: Sequence[Compared], costs: Costs, seconds: float | None
) -> Precision:
    found = _typical([one.effects for one in made])
    alpha = 1 - made[0].comparison.confidence
    now = median(_half_width(one.effects.spread, alpha) for one in made)
    proposed = propose(found, costs, now / _NARROWER, alpha)
    comparison = made[0].comparison
    return Precision(
        workload=place.workload,
        condition=place.condition,
        metric=comparison.metric,
        between_boots=None if found.boots is None else math.sqrt(max(0.0, found.boots)),
        between_blocks=math.sqrt(found.blocks),
        within_trials=None,
        boots=None if proposed is None else proposed.boots,
        blocks_per_boot=None if proposed is None else proposed.blocks_per_boot,
        seconds=None if proposed is None else seconds,
        sentence=" ".join(_sentences(comparison, found, proposed, costs, seconds)),
    )


def _typical(effects: Sequence[Effects]) -> Components:
    """Medians over tunings, of T^2 and not of deviations: a T^2 below 0 counts as such."""
    found = [_components(one) for one in effects]
    told = [one.boots for one in found if one.boots is not None]
    return Components(
        median(told) if told else None,
        median(one.blocks for one in found if (one.boots is None) == (not told)),
    )


def _components(effects: Effects) -> Components:
    if effects.spread.boot_error is None:
        return Components(None, effects.spread.sd**2)
    groups = sharing(effects.by_block, effects.boots)
    found = components(mean_squares([[effects.by_block[b] for b in group] for group in groups]))
    return Components(found.boots, max(found.blocks, effects.floor**2))


def _half_width(of: Spread, alpha: float) -> float:
    return quantile(1 - alpha / 2, of.units - 1) * of.error


def _sentences(
    of: Comparison,
    found: Components,
    proposed: Proposal | None,
    costs: Costs,
    seconds: float | None,
) -> Iterator[str]:
    def spread(variance: float) -> str:
        deviation = math.sqrt(max(0.0, variance))
        return size_text(
            math.expm1(deviation) if of.kind is EffectKind.RATIO else deviation, of.kind, of.unit
        )

    what = f"effects on {metric_title(of.metric)} in {of.workload} under '{of.condition}'"
    if found.boots is None and of.boots == 1:
        yield (
            f"The {what} spread by {spread(found.blocks)} from block to block; what boots add "
            "can't be told from one."
        )
    elif found.boots is None:
        yield (
            f"The {what} spread by {spread(found.blocks)} from block to block, boots included: "
            "each block had a boot of its own."
        )
    else:
        most = "boots" if found.boots > found.blocks else "blocks"
        yield (
            f"The spread of {what} comes mostly from {most}: {spread(found.boots)} between boots, "
            f"{spread(found.blocks)} between blocks of one boot."
        )
    yield "What longer trials would add can't be told: a trial gives one value."
    if proposed is None:
        yield "No number of boots and blocks that anyone would run halves the interval."
        return
    trials = f" with trials of {duration(seconds)}" if seconds is not None else ""
    yield (
        f"{counted(proposed.boots, 'boot')} × {counted(proposed.blocks_per_boot, 'block')}"
        f"{trials} would halve the interval{_in_time(proposed.seconds, costs)}."
    )
