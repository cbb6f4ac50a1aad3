"""Decide when a run may end, and what its verdicts rest on (METHOD 22).

- Stopping by width asks how long the intervals are and never where they lie. With normal noise the
  mean of the blocks is independent of their deviations, so the estimate has no bias from it. The
  intervals have one: a run ends rather when its deviations came out small, so they miss a little
  more often than they say (Chow and Robbins, Annals of Mathematical Statistics 36, 1965: the
  promise holds in the limit alone). They are made at a share of alpha that pays for it.
- Declared looks ask for verdicts, and a look drops what is decided (multi-arm, multi-stage). Each
  test is made as often as the run looks, so each look tests at a level of its own, the same at
  every look, so that all looks together err with the chance that the test is allowed (S. J.
  Pocock, Biometrika 64, 1977). A tuning that is dropped is tested less often, and errs less.
  Older plans have alpha / looks (Bonferroni), and drop nothing.
- Blocks that someone added after the result was known are under neither rule. The verdicts rest on
  the blocks before them.

Pure. Who measures asks `stop_after` through a function that the command hands in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Protocol

import numpy as np

from labctl.analysis.model import Comparison, EffectKind, Role
from labctl.analysis.special import ndtri
from labctl.analysis.verdicts.table import Verdict
from labctl.base.notation import size
from labctl.base.stopping import (
    FEWEST_BLOCKS,
    UNTIL_WIDTH_SHARE,
    Looks,
    Stopping,
    UntilWidth,
    percent,
)
from labctl.store.records.run_record import LookTaken, still_to_run
from labctl.store.run_folder import LoadedRun


def share_of(rule: Stopping | None, alpha: float) -> float:
    """Return the share of `alpha`, the level of one test, that each look may use so that all of
    them together use no more."""
    match rule:
        case None:
            return 1.0
        case UntilWidth():
            return UNTIL_WIDTH_SHARE
        case Looks(drops=False):
            return 1 / len(rule.at)
        case Looks():
            return nominal_level(rule.at, alpha) / alpha


_NODES = 128
"""Nodes of the quadrature over a statistic; with looks close together its kernel is narrow."""


@cache
def nominal_level(at: tuple[int, ...], alpha: float) -> float:
    """Return the two-sided level at which each look may test, so that a test of no effect rejects
    at any of them with chance `alpha`: Pocock's boundary, for looks after `at` blocks.

    The statistic's density among the runs that have not rejected is carried from look to look
    (Armitage, McPherson and Rowe, JRSS A 132, 1969), for a known variance; that t quantiles at
    this level keep to it is simulated (docs/calibration.md).
    """
    low, high = alpha / len(at), alpha
    while high - low > 1e-6 * alpha:
        middle = (low + high) / 2
        if _rejects(at, float(ndtri(1 - middle / 2))) > alpha:
            high = middle
        else:
            low = middle
    return low


def _rejects(at: tuple[int, ...], bound: float) -> float:
    """Return the chance that |z| passes `bound` at any of the looks."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    z, weights = bound * nodes, bound * weights
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    for before, now in pairwise(at):
        sd = math.sqrt(now - before)
        steps = (z[:, np.newaxis] * math.sqrt(now) - z * math.sqrt(before)) / sd
        kernel = np.exp(-(steps**2) / 2) / math.sqrt(2 * math.pi) * math.sqrt(now) / sd
        density = kernel @ (weights * density)
    return 1 - float(weights @ density)


@dataclass(frozen=True, slots=True)
class Stop:
    """Say that a run ends after so many whole blocks; `why` ends a sentence that begins with
    that.
    """

    blocks: int
    why: str


class Judged(Protocol):
    """Describe a judgement, or its verdicts alone (`judge.decide`)."""

    @property
    def comparisons(self) -> Sequence[Comparison]: ...


def stop_after(judged: Judged, rule: Stopping, blocks: int) -> Stop | None:
    """Return whether a run ends after `blocks` whole blocks, of which `judged` is; None: it goes
    on.

    A run that has nothing to judge goes on to its last block: the cause may be mended.
    """
    if not rule.may_end_after(blocks):
        return None
    deciding = list(_deciding(judged.comparisons))
    if not deciding:
        return None
    if isinstance(rule, Looks):  # one that drops ends where nothing is left (`decide.look_at`)
        if not all(_is_final(c.verdict) for c in deciding):
            return None
        number = rule.at.index(blocks) + 1
        return Stop(
            blocks, f"at look {number} of {len(rule.at)} every primary comparison had a verdict"
        )
    wide = max(map(_usable_width, deciding))
    if wide > rule.width:
        return None
    return Stop(
        blocks,
        f"every primary interval was within ±{percent(rule.width)} of its estimate (the widest: "
        f"±{size(wide)})",
    )


def half_width(comparison: Comparison) -> float | None:
    """Return half the interval's width relative to the estimate, sqrt(high / low) - 1: what the
    interval reaches beyond the estimate on the log scale, as a share (0.02: from 2 % below it to 2
    % above).

    None of a difference, which is no share of anything, and where there is no interval.
    """
    low, high = comparison.low, comparison.high
    if comparison.kind is not EffectKind.RATIO or low is None or high is None:
        return None
    return math.sqrt(high / low) - 1 if low > 0 else math.inf


def widest(comparisons: Iterable[Comparison]) -> float | None:
    """Return the largest half-width of the intervals that decide; None where there are none."""
    return max(map(_usable_width, _deciding(comparisons)), default=None)


def _deciding(comparisons: Iterable[Comparison]) -> Iterator[Comparison]:
    for c in comparisons:
        if c.role is Role.PRIMARY and c.verdict is not Verdict.DIFFERENT_DURABILITY:
            yield c


def _is_final(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.row.is_final


def _usable_width(comparison: Comparison) -> float:
    """Infinite where no verdict hangs on the interval yet, however narrow it is."""
    width = half_width(comparison)
    return math.inf if width is None or len(comparison.blocks) < FEWEST_BLOCKS else width


def ending(run: LoadedRun, comparisons: Sequence[Comparison] | None = None) -> str | None:
    """Return the rule by which the run ended, or would; None for a run with a fixed number of
    blocks.

    `comparisons`: those of its judgement, where there is one.
    """
    rule = run.plan.rule
    if rule is None:
        return None
    stopped = run.run.stopped
    if stopped:
        text = (
            f"The run ended after {stopped.blocks} of up to {rule.most_blocks} blocks: "
            f"{stopped.why}."
        )
    elif run.run.status != "done":
        text = f"The run {rule.words}."
    elif isinstance(rule, UntilWidth):
        found = "" if comparisons is None else f": {_reached(rule, comparisons)}"
        text = f"The run reached its limit of {rule.most_blocks} blocks{found}."
    else:
        text = f"The run reached the last of its looks, after {rule.most_blocks} blocks."
    if isinstance(rule, Looks):
        if rule.drops:
            text += "".join(f" {_fell(blocks, comparisons or ())}" for blocks in rule.at)
        else:
            text += f" Each of the {len(rule.at)} looks tests at alpha/{len(rule.at)}."
        if added := run.plan.extensions:
            text += (
                f" Blocks {added[0].first_block} to {added[-1].last_block} were "
                "added since: verdicts rest on those up to the last declared look."
            )
    return text


def _fell(blocks: int, comparisons: Sequence[Comparison]) -> str:
    """Return which verdicts fell at a look, as a sentence; "" for none."""
    here: dict[str, list[str]] = {}
    for c in comparisons:
        if c.look == blocks:
            here.setdefault(c.tuning, []).append(c.workload)
    tunings = "; ".join(
        f"{tuning} in {', '.join(dict.fromkeys(places))}" for tuning, places in here.items()
    )
    return f"Decided after {blocks} blocks: {tunings}." if here else ""


def _reached(rule: UntilWidth, comparisons: Sequence[Comparison]) -> str:
    wide = widest(comparisons)
    if wide is None or wide == math.inf:
        return (
            f"not every primary comparison has an interval (±{percent(rule.width)} was requested)"
        )
    return f"the widest primary interval is ±{size(wide)} (±{percent(rule.width)} was requested)"


def look_reached(run: LoadedRun) -> int | None:
    """Return the last declared look that a run reached; None before the first, and without looks.

    A look is reached when each trial up to it was tried. An invalid one was: its block is left
    out, as everywhere. One without a record was not, even if the record was there once: what a
    look rests on must be known.
    """
    rule = run.plan.rule
    if not isinstance(rule, Looks):
        return None
    lack = lacks_trials(run)
    whole = last_block(run) if lack is None else lack - 1
    return max((look for look in rule.at if look <= whole), default=None)


def before_first_look(run: LoadedRun) -> bool:
    """Return whether the plan declares looks, none of which was reached: no verdict is due."""
    return isinstance(run.plan.rule, Looks) and look_reached(run) is None


def lacks_trials(run: LoadedRun) -> int | None:
    """Return the first block of which a planned trial was not tried (0: one that names no block);
    None where all were."""
    tried = {trial.record.number for trial in run.trials}
    return min(
        (trial.block for trial in run.plan.trials if trial.number not in tried),
        default=None,
    )


def last_block(run: LoadedRun) -> int:
    """Return the last block that has a trial; 0 without any."""
    return max((trial.record.block for trial in run.trials), default=0)


def without(run: LoadedRun, looks: Sequence[LookTaken]) -> LoadedRun:
    """Return the run as if its looks had taken their cells out."""
    planned = still_to_run(run.plan.trials, looks)
    left = {trial.number for trial in planned}
    return replace(
        run,
        run=run.run.but(looks=tuple(looks)),
        plan=run.plan.but(trials=planned),
        trials=tuple(trial for trial in run.trials if trial.record.number in left),
    )


def until(run: LoadedRun, blocks: int) -> LoadedRun:
    """Return the run as if it had been planned with `blocks` blocks."""
    planned = tuple(trial for trial in run.plan.trials if trial.block <= blocks)
    return replace(
        run,
        plan=run.plan.but(trials=planned),
        trials=tuple(trial for trial in run.trials if trial.record.block <= blocks),
    )
