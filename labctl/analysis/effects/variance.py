"""Find where the variance of effects comes from, and what would buy more precision.

T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time" (ISMM 2013), in the corrected
form of its T_i^2. Their levels are here, from the highest: boots, blocks within a boot, and what
happens within a trial. S_i^2 is the variance of the means of level i, and
T_i^2 = S_i^2 - S_(i-1)^2 / r_(i-1) what that level itself adds (unbiased, so below 0 at times).

Of the lowest level a trial tells where its program printed the rate of windows: the variance of
batch means (labctl/workloads/windows.py). Batches of a trial are no independent draws either, but
less alike the longer they are. So it is taken from the longest ones, and believed only where those
half as long tell nearly the same. Elsewhere a trial gives one value, the level can't be told from
the one above it, and the proposal keeps the seconds of a trial.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from statistics import median

import numpy as np
from numpy.typing import NDArray

from labctl.analysis.answer.words import size_text
from labctl.analysis.effects.cells import Scenario, scenario_of
from labctl.analysis.effects.compare import Compared
from labctl.analysis.effects.effects import Effects
from labctl.analysis.effects.intervals import MeanSquares, Spread, mean_squares, quantile, sharing
from labctl.analysis.model import Comparison, EffectKind, Precision
from labctl.analysis.special import stdtrit
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.base.wording import counted, duration, metric_title, roughly
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialRecord

_NARROWER = 2.0
"""The proposal halves the interval: what four times as many blocks do where blocks are all."""
_MOST_BOOTS = 500
_MOST_BLOCKS_PER_BOOT = 20

_LONG, _SHORT = 4, 8
"""Batches of a trial that its own variance is taken from, and those half as long."""
_TOLERANCE = 1.25
"""Factor by which long batches' variance may exceed short ones'. Where batches outlast their
correlation, the bias is inverse to their length (Schmeiser 1982): then at most another quarter, an
eighth of a standard deviation."""
_BY_CHANCE = 2.0
"""Factor by which trials' variance may seem to exceed that of blocks, which includes it."""
_LENGTHS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600)
"""Seconds of a trial that a proposal chooses from. None is shorter than the batches looked at."""


@dataclass(frozen=True, slots=True)
class Components:
    """Hold T^2 of boots, of blocks and of trials of one second, on the scale of effects. `boots` is
    None where they can't be told apart: one boot, or a boot to each block. `second` is None where
    what happens within a trial isn't known; it is in `blocks` then."""

    boots: float | None
    blocks: float
    second: float | None = None

    def of_block(self, trial_s: float) -> float:
        """Return the variance of a block's effect, within its boot, with trials of that length."""
        return self.blocks if self.second is None else self.blocks + self.second / trial_s


@dataclass(frozen=True, slots=True)
class Costs:
    """Hold the seconds that a boot and a block took. `trial`: those that a trial of the workload
    measured, and `trials` how many of them a block has."""

    boot: float
    block: float
    trial: float = 0.0
    trials: int = 0

    def of_block(self, trial_s: float) -> float:
        """Return what a block takes with trials of another length: all else of it stays."""
        return self.block + self.trials * (trial_s - self.trial)


@dataclass(frozen=True, slots=True)
class Proposal:
    boots: int
    blocks_per_boot: int
    seconds: float
    """Time that it would take."""
    trial_s: float
    """Length of a trial: as before where longer ones may gain nothing."""


def components(found: MeanSquares) -> Components:
    """Estimate both components: T_1^2 is the mean square within boots, and T_2^2 = S_2^2 - S_1^2 /
    r_1, which with the mean squares reads (between - within) / r_1; r_1 is n_0 where boots have
    unequally many blocks."""
    if found.within is None:
        return Components(None, found.between)
    return Components((found.between - found.within) / found.blocks_per_boot, found.within)


def propose(of: Components, costs: Costs, half_width: float, alpha: float) -> Proposal | None:
    """Return the cheapest boots, blocks per boot and seconds per trial whose t interval reaches no
    further than `half_width` from its middle; None where none up to 500 boots of 20 blocks does.

    It minimizes Kalibera and Jones' cost, boots * (c_boot + blocks * (c_block + c_second *
    seconds)), over whole numbers, with the degrees of freedom that few boots leave: their closed
    form, r_i = sqrt((c_(i+1) / c_i) * (T_i^2 / T_(i+1)^2)), has none, and boots are the unit of
    the interval. Where boots can't be told from blocks, each block gets a boot.
    """
    boots, per_boot, quantiles = _designs(alpha)
    if of.boots is None:
        per_boot = per_boot[:, :1]
    best: Proposal | None = None
    for trial_s in _lengths(of, costs):
        variance = max(0.0, of.boots or 0.0) / boots + of.of_block(trial_s) / (boots * per_boot)
        reaches = (quantiles * np.sqrt(variance) <= half_width) & (
            boots * per_boot >= FEWEST_BLOCKS
        )
        if not reaches.any():
            continue
        each = costs.boot + per_boot * costs.of_block(trial_s)
        seconds = np.where(reaches, boots * each, np.inf)
        row, column = np.unravel_index(int(seconds.argmin()), seconds.shape)
        least = float(seconds[row, column])
        if best is None or least < best.seconds:
            best = Proposal(int(boots[row, 0]), int(per_boot[0, column]), least, trial_s)
    return best


def _lengths(of: Components, costs: Costs) -> Iterator[float]:
    """First the seconds that a trial had: others must be cheaper. Where nothing tells what else a
    block takes, nothing tells what they would cost."""
    yield costs.trial
    if of.second is not None and costs.block > costs.trials * costs.trial > 0:
        yield from (float(s) for s in _LENGTHS if s >= costs.trial / _LONG and s != costs.trial)


@lru_cache(maxsize=8)
def _designs(alpha: float) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    boots = np.arange(2, _MOST_BOOTS + 1)[:, None]
    per_boot = np.arange(1, _MOST_BLOCKS_PER_BOOT + 1)[None, :]
    return boots, per_boot, stdtrit(boots - 1, 1 - alpha / 2)


def costs_of(run: LoadedRun) -> Costs:
    """Return what a block and a boot took in this run, medians. A block is all of its trials and
    what lay between them, invalid attempts included; a boot is the time to its first answer (0
    where the run doesn't say), without the settling that follows."""
    trials: defaultdict[int, list[TrialRecord]] = defaultdict(list)
    for trial in run.trials:
        trials[trial.record.block].append(trial.record)
    boots = [_time(taken) for taken in run.run.boot_seconds.values()]
    return Costs(
        boot=median(boots) if boots else 0.0,
        block=median(_seconds(records) for records in trials.values()) if trials else 0.0,
    )


def _trials_in_a_block(run: LoadedRun) -> dict[str, int]:
    """Return how often a block runs each workload: under each tuning and condition."""
    planned = Counter((trial.block, trial.cell.get("workload")) for trial in run.plan.trials)
    most: dict[str, int] = {}
    for (_, workload), count in planned.items():
        if workload is not None:
            most[workload] = max(count, most.get(workload, 0))
    return most


def _seconds(records: Sequence[TrialRecord]) -> float:
    at_work = math.fsum(_time(record.wall_s) for record in records)
    try:
        begun = [datetime.fromisoformat(record.started_at).timestamp() for record in records]
    except (ValueError, OverflowError):  # a clock that nobody wrote down
        return at_work
    ended = [start + _time(record.wall_s) for start, record in zip(begun, records, strict=True)]
    return max(at_work, max(ended) - min(begun))


def _in_time(seconds: float, costs: Costs) -> str:
    """Return how long that takes, as far as the run tells: trials from elsewhere say nothing of
    it."""
    if not costs.block:
        return ""
    return f" in about {roughly(seconds)}{'' if costs.boot else ', not counting boots'}"


def _time(seconds: float | None) -> float:
    """Return the time, or 0 for an impossible one: a file may hold anything."""
    return seconds if seconds is not None and 0 < seconds < math.inf else 0.0


def precision(run: LoadedRun, made: Sequence[Compared]) -> Iterator[Precision]:
    """Return, for each workload and condition with judged tunings, the components of variance of
    the primary metric's effects (medians over the tunings), and the proposal. Effects that aren't
    paired have no blocks, and none is returned of them."""
    judged: defaultdict[Scenario, list[Compared]] = defaultdict(list)
    for one in made:
        spread = one.effects.spread
        if not one.effects.paired:
            continue
        # One block may have an error, that of its histogram's bins, but has nothing to spread from.
        if one.is_primary and one.effects.fallback is None and spread.error > 0 and spread.n > 1:
            judged[one.place].append(one)
    if not judged:
        return
    costs, trials = costs_of(run), _trials_in_a_block(run)
    for place, those in judged.items():
        trial_s = _time(run.plan.workloads[place.workload].duration_s)
        here = replace(costs, trial=trial_s, trials=trials.get(place.workload, 0))
        yield _precision(place, those, here)


def _precision(place: Scenario, made: Sequence[Compared], costs: Costs) -> Precision:
    effects = [one.effects for one in made]
    found = _typical(effects)
    within = _within(effects, found.blocks) if costs.trial else _Within()
    if within.variance is not None:
        found = _divided(found, within.variance, costs.trial)
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
        within_trials=None if within.variance is None else math.sqrt(within.variance),
        boots=None if proposed is None else proposed.boots,
        blocks_per_boot=None if proposed is None else proposed.blocks_per_boot,
        seconds=(proposed.trial_s or None) if proposed is not None else None,
        sentence=" ".join(_sentences(comparison, found, within, proposed, costs)),
    )


@dataclass(frozen=True, slots=True)
class _Within:
    """Hold the variance that trials' own errors put into effects, at the length that trials had;
    None where it can't be told, and `why` as a clause."""

    variance: float | None = None
    why: str = "a trial gives one value"


def _within(effects: Sequence[Effects], blocks: float) -> _Within:
    """Return the median over tunings; known where long batches tell no more than short ones, and
    effects of blocks, whose variance is `blocks`, don't differ by far less: what every trial
    repeats is in its batches alone."""
    known = [one.of_trials for one in effects if {_LONG, _SHORT} <= one.of_trials.keys()]
    if not known:
        return _Within()
    by_long, by_short = (sum(found[count] for found in known) for count in (_LONG, _SHORT))
    if by_long > _TOLERANCE * by_short:
        return _Within(None, "the quarters of a trial still correlate")
    variance = median(found[_LONG] for found in known)
    if variance > _BY_CHANCE * blocks:
        return _Within(None, "the quarters of a trial differ more than blocks do")
    return _Within(variance)


def _typical(effects: Sequence[Effects]) -> Components:
    """Medians over tunings, of T^2 and not of deviations: a T^2 below 0 counts as such."""
    found = [_components(one) for one in effects]
    told = [one.boots for one in found if one.boots is not None]
    boots = median(told) if told else None
    blocks = median(one.blocks for one in found if (one.boots is None) == (not told))
    return Components(boots, blocks)


def _divided(of: Components, within: float, trial_s: float) -> Components:
    """Return the same with variation within trials apart from blocks."""
    share = min(within, of.blocks)
    return Components(of.boots, of.blocks - share, share * trial_s)


def _components(effects: Effects) -> Components:
    if effects.spread.boot_error is None:
        return Components(None, effects.spread.sd**2)
    groups = sharing(effects.by_block, effects.boots)
    found = components(mean_squares([[effects.by_block[b] for b in group] for group in groups]))
    return Components(found.boots, max(found.blocks, effects.floor**2))


def _half_width(of: Spread, alpha: float) -> float:
    return quantile(1 - alpha / 2, of.degrees) * of.error


def _sentences(
    of: Comparison,
    found: Components,
    within: _Within,
    proposed: Proposal | None,
    costs: Costs,
) -> Iterator[str]:
    def spread(variance: float) -> str:
        deviation = math.sqrt(max(0.0, variance))
        return size_text(
            math.expm1(deviation) if of.kind is EffectKind.RATIO else deviation, of.kind, of.unit
        )

    what = f"effects on {metric_title(of.metric)} in {scenario_of(of)}"
    boots_unknown = found.boots is None and of.boots == 1
    if boots_unknown:
        yield (
            f"The {what} spread by {spread(found.blocks)} from block to block; the share of "
            "boots cannot be estimated from one boot."
        )
    elif found.boots is None:
        yield (
            f"The {what} spread by {spread(found.blocks)} from block to block, boots "
            "included: each block had its own boot."
        )
    else:
        levels = {
            "boots": found.boots,
            "blocks": found.blocks,
            "variation within trials": (found.second or 0.0) / (costs.trial or 1.0),
        }
        most = max(levels, key=lambda level: levels[level])
        yield (
            f"The spread of {what} comes mostly from {most}: {spread(found.boots)} between boots, "
            f"{spread(found.blocks)} between blocks of one boot."
        )
    if within.variance is None:
        yield f"The gain of longer trials cannot be estimated: {within.why}."
    else:
        yield (
            f"Variation within trials of {duration(costs.trial)} adds "
            f"{spread(within.variance)}; longer trials would lower it."
        )
    if proposed is None:
        yield "No feasible number of boots and blocks halves the interval."
        return
    trials = f" with trials of {duration(proposed.trial_s)}" if proposed.trial_s else ""
    if_so = ", if boots do not differ" if boots_unknown else ""
    yield (
        f"{counted(proposed.boots, 'boot')} × {counted(proposed.blocks_per_boot, 'block')}"
        f"{trials} would halve the interval{_in_time(proposed.seconds, costs)}{if_so}."
    )
