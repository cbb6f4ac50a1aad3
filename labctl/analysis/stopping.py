"""When a run may end, and what its verdicts rest on (METHOD 22).

- Stopping by width asks how long the intervals are and never where they lie. With normal noise the
  mean of the blocks is independent of their deviations, so the estimate has no bias from it. The
  interval has a little: a run ends rather when its deviation came out small (Chow and Robbins,
  Annals of Mathematical Statistics 36, 1965). No error is spent on asking.
- Declared looks ask for verdicts. A run that may end as soon as it has what it wants is tested as
  often as it looks, so each look tests at alpha / looks (Bonferroni): whichever ends it, the
  chance of a false verdict in the run stays below alpha.
- Blocks that someone added after the result was known are under neither rule. The verdicts rest on
  the blocks before them.

Pure. Who measures asks `stop_after` through a function that the command hands in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from labctl.analysis.model import Comparison, EffectKind, Judgement, Role, Verdict
from labctl.base.errors import UsageError
from labctl.base.stopping import (
    FEWEST_BLOCKS,
    Looks,
    Stopping,
    percent,
    stopping_of,
)
from labctl.store.run_folder import LoadedRun

_CONCLUSIVE = frozenset(
    {Verdict.IMPROVES, Verdict.REGRESSES, Verdict.SMALL, Verdict.EQUIVALENT, Verdict.OTHER_PROMISE}
)
"""What more blocks are not needed for. A suspended verdict may come with them: the control's
interval gets narrower too."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A run ends after so many whole blocks; `why` ends a sentence that begins with that."""

    blocks: int
    why: str


def stop_after(judgement: Judgement, rule: Stopping, blocks: int) -> Stop | None:
    """Whether a run ends after `blocks` whole blocks, of which `judgement` is; None: it goes on.

    A run that has nothing to judge goes on to its last block: the cause may be mended.
    """
    if not rule.may_end_after(blocks):
        return None
    deciding = list(_deciding(judgement))
    if not deciding:
        return None
    if isinstance(rule, Looks):
        if any(c.verdict not in _CONCLUSIVE for c in deciding):
            return None
        number = rule.at.index(blocks) + 1
        return Stop(
            blocks, f"at look {number} of {len(rule.at)} every primary comparison had a verdict"
        )
    widths = [_usable_width(c) for c in deciding]
    widest = max(widths)
    if widest > rule.width:
        return None
    return Stop(
        blocks,
        f"every primary interval was within ±{percent(rule.width)} of its estimate (the widest: "
        f"±{_shown(widest)})",
    )


def half_width(comparison: Comparison) -> float | None:
    """Half the interval's width relative to the estimate, sqrt(high / low) - 1: what the interval
    reaches beyond the estimate on the log scale, as a share (0.02: from 2 % below it to 2 % above).

    None of a difference, which is no share of anything, and where there is no interval.
    """
    low, high = comparison.low, comparison.high
    if comparison.kind is not EffectKind.RATIO or low is None or high is None:
        return None
    return math.sqrt(high / low) - 1 if low > 0 else math.inf


def widest(judgement: Judgement) -> float | None:
    """The largest half-width of the intervals that decide; None where there are none."""
    return max(map(_usable_width, _deciding(judgement)), default=None)


def _deciding(judgement: Judgement) -> Iterator[Comparison]:
    for c in judgement.comparisons:
        if c.role is Role.PRIMARY and c.verdict is not Verdict.OTHER_PROMISE:
            yield c


def _usable_width(comparison: Comparison) -> float:
    """Infinite where no verdict hangs on the interval yet, however narrow it is."""
    width = half_width(comparison)
    return math.inf if width is None or len(comparison.blocks) < FEWEST_BLOCKS else width


def _shown(width: float) -> str:
    return f"{100 * width:.2g} %"


def rule_of(plan: Mapping[str, Any]) -> Stopping | None:
    """The rule of a plan as it was loaded. What can't be read is none: that the plan isn't whole,
    or not what was planned, is said where it is loaded."""
    try:
        return stopping_of(plan)
    except (UsageError, KeyError, TypeError, ValueError):
        return None


def until(run: LoadedRun, blocks: int) -> LoadedRun:
    """The run as if it had been planned with `blocks` blocks."""
    trials = [t for t in run.plan.get("trials") or [] if (t.get("block") or 0) <= blocks]
    return replace(
        run,
        plan={**run.plan, "trials": trials},
        trials=tuple(trial for trial in run.trials if trial.record.block <= blocks),
    )
