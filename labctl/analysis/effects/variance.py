"""Find the sources of the variance of effects, and propose sizes for more precision.

T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time" (ISMM 2013), in the corrected
form of its T_i^2. The levels, from the highest: boots, blocks within a boot, and variation within a
trial. S_i^2 is the variance of the means of level i, and T_i^2 = S_i^2 - S_(i-1)^2 / r_(i-1) the
contribution of that level (unbiased, so sometimes below 0).

A trial shows the lowest level if its program printed the rate of windows, by the variance of batch
means (labctl/workloads/windows.py). Batches of a trial are not independent, but less dependent the
longer they are. So the longest batches are used, and trusted only if batches of half the length
give nearly the same variance. Otherwise a trial gives one value, the level can't be separated from
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
"""Factor by which the proposal narrows the interval: that of four times as many blocks, if blocks
are the only level."""
_MOST_BOOTS = 500
_MOST_BLOCKS_PER_BOOT = 20

_LONG, _SHORT = 4, 8
"""Number of batches that give a trial's variance, and number of batches of half the length."""
_TOLERANCE = 1.25
"""Factor by which the variance of long batches may exceed that of short ones. For batches longer
than their correlation, the bias is inversely proportional to their length (Schmeiser 1982): then it
is at most another quarter, an eighth of a standard deviation."""
_BY_CHANCE = 2.0
"""Factor by which the estimated variance of trials may exceed that of blocks, which includes it."""
_LENGTHS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600)
"""Seconds of a trial among which a proposal chooses; never less than those of a long batch."""


@dataclass(frozen=True, slots=True)
class Components:
    """Hold T^2 of boots, of blocks and of trials of one second, on the scale of effects. `boots` is
    None if they can't be separated: one boot, or a boot per block. `second` is None if the
    variation within trials is unknown; then `blocks` includes it."""

    boots: float | None
    blocks: float
    second: float | None = None

    def of_block(self, trial_s: float) -> float:
        """Return the variance of a block's effect, within its boot, with trials of that length."""
        return self.blocks if self.second is None else self.blocks + self.second / trial_s


@dataclass(frozen=True, slots=True)
class Costs:
    """Hold the seconds of a boot and of a block. `trial`: measured seconds of a trial of the
    workload; `trials`: its trials per block."""

    boot: float
    block: float
    trial: float = 0.0
    trials: int = 0

    def of_block(self, trial_s: float) -> float:
        """Return the seconds of a block with trials of another length, if the rest stays."""
        return self.block + self.trials * (trial_s - self.trial)


@dataclass(frozen=True, slots=True)
class Proposal:
    boots: int
    blocks_per_boot: int
    seconds: float
    """Time of the whole proposal."""
    trial_s: float
    """Length of a trial, unchanged if longer ones may not gain precision."""


def components(found: MeanSquares) -> Components:
    """Estimate both components: T_1^2 is the mean square within boots, and T_2^2 = S_2^2 - S_1^2 /
    r_1, which in mean squares is (between - within) / r_1; r_1 is n_0 if boots have unequal numbers
    of blocks."""
    if found.within is None:
        return Components(None, found.between)
    return Components((found.between - found.within) / found.blocks_per_boot, found.within)


def propose(of: Components, costs: Costs, half_width: float, alpha: float) -> Proposal | None:
    """Return the cheapest boots, blocks per boot and seconds per trial whose t interval reaches at
    most `half_width` from its middle; None if 500 boots of 20 blocks are not enough.

    It minimizes Kalibera and Jones' cost, boots * (c_boot + blocks * (c_block + c_second *
    seconds)), over whole numbers, with the few degrees of freedom of few boots, which are the unit
    of the interval: their closed form, r_i = sqrt((c_(i+1) / c_i) * (T_i^2 / T_(i+1)^2)), ignores
    them. If boots can't be separated from blocks, each block gets a boot.
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
    """Yield the lengths to try, first the present one: others must be cheaper. If the rest of a
    block's time is unknown, so is the cost of other lengths."""
    yield costs.trial
    if of.second is not None and costs.block > costs.trials * costs.trial > 0:
        yield from (float(s) for s in _LENGTHS if s >= costs.trial / _LONG and s != costs.trial)


@lru_cache(maxsize=8)
def _designs(alpha: float) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    boots = np.arange(2, _MOST_BOOTS + 1)[:, None]
    per_boot = np.arange(1, _MOST_BLOCKS_PER_BOOT + 1)[None, :]
    return boots, per_boot, stdtrit(boots - 1, 1 - alpha / 2)


def costs_of(run: LoadedRun) -> Costs:
    """Return the median seconds of a block and of a boot in this run. A block lasts from its first
    to its last trial, invalid attempts included; a boot is the time to its first answer (0 if
    unknown), without the settling that follows."""
    trials: defaultdict[int, list[TrialRecord]] = defaultdict(list)
    for trial in run.trials:
        trials[trial.record.block].append(trial.record)
    boots = [_time(taken) for taken in run.run.boot_seconds.values()]
    return Costs(
        boot=median(boots) if boots else 0.0,
        block=median(_seconds(records) for records in trials.values()) if trials else 0.0,
    )


def _trials_in_a_block(run: LoadedRun) -> dict[str, int]:
    """Return the trials of each workload in a block, over all tunings and conditions."""
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
    except (ValueError, OverflowError):  # times were not recorded
        return at_work
    ended = [start + _time(record.wall_s) for start, record in zip(begun, records, strict=True)]
    return max(at_work, max(ended) - min(begun))


def _in_time(seconds: float, costs: Costs) -> str:
    """Return a proposal's duration in words; "" if the run has no times, as imported runs."""
    if not costs.block:
        return ""
    return f" in about {roughly(seconds)}{'' if costs.boot else ', not counting boots'}"


def _time(seconds: float | None) -> float:
    """Return the time, or 0 for an impossible one: a file may hold anything."""
    return seconds if seconds is not None and 0 < seconds < math.inf else 0.0


def precision(run: LoadedRun, made: Sequence[Compared]) -> Iterator[Precision]:
    """Return, for each workload and condition with judged tunings, the components of variance of
    the primary metric's effects (medians over the tunings), and the proposal. Unpaired effects have
    no blocks, so they are left out."""
    judged: defaultdict[Scenario, list[Compared]] = defaultdict(list)
    for one in made:
        spread = one.effects.spread
        if not one.effects.paired:
            continue
        # One block may have an error, that of its histogram's bins, but it has no spread.
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
    """Hold the variance that trials' errors add to effects, at the present length of trials; None
    if it is unknown, with `why` as a clause."""

    variance: float | None = None
    why: str = "a trial gives one value"


def _within(effects: Sequence[Effects], blocks: float) -> _Within:
    """Return the median over tunings. It is known if long batches do not show more variance than
    short ones, and if the effects of blocks, of variance `blocks`, do not differ by far less: then
    the batches contain a pattern that every trial repeats."""
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
    """Return medians over tunings, of T^2 and not of deviations, so that values below 0 count."""
    found = [_components(one) for one in effects]
    told = [one.boots for one in found if one.boots is not None]
    boots = median(told) if told else None
    blocks = median(one.blocks for one in found if (one.boots is None) == (not told))
    return Components(boots, blocks)


def _divided(of: Components, within: float, trial_s: float) -> Components:
    """Return the components with variation within trials separated from blocks."""
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
