"""Write comparisons and lists of names as people read them: in sentences and in tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from labctl.analysis.effects.effects import on_scale
from labctl.analysis.model import Comparison, EffectKind
from labctl.analysis.verdicts.table import Verdict
from labctl.base.notation import Shown, changes, difference, differences, size
from labctl.base.units import Better, Unit
from labctl.base.wording import counted, metric_title


def effect_shown(
    estimate: float, low: float | None, high: float | None, kind: EffectKind, unit: Unit
) -> Shown:
    """Return an effect and its interval in one form: "+12 %", "×2.73", "−1.20 ms"."""
    if kind is EffectKind.RATIO:
        return changes(estimate, low, high)
    return differences(estimate, low, high, unit)


def change_text(value: float, kind: EffectKind, unit: Unit) -> str:
    """Return an effect that has no interval."""
    return effect_shown(value, None, None, kind, unit).estimate


def shown(of: Comparison) -> Shown:
    """Return a comparison's estimate and interval in one form."""
    return effect_shown(of.estimate, of.low, of.high, of.kind, of.unit)


def effect_text(of: Comparison) -> str:
    return shown(of).estimate


def interval_text(of: Comparison) -> str:
    return shown(of).interval


def effect(of: Comparison) -> str:
    """Estimate and interval of a comparison, and whether its verdict is Holm's alone: "×2.73, 95 %
    CI ×2.21 to 3.38"."""
    estimate, interval = shown(of)
    holm = ", by Holm" if of.by_holm else ""
    return f"{estimate}, 95 % CI {interval}{holm}" if interval else estimate


def size_text(value: float, kind: EffectKind, unit: Unit) -> str:
    """Return a margin or a smallest effect, without sign: "5 %", "0.100 CPU"."""
    return size(value) if kind is EffectKind.RATIO else difference(value, unit).lstrip("+")


def listed(items: Sequence[str], limit: int = 3) -> str:
    """Return 'a, b and c'; beyond `limit`: 'a, b, c and 4 more'."""
    if len(items) > limit:
        return f"{', '.join(items[:limit])} and {len(items) - limit} more"
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def few(items: Sequence[str], limit: int = 3) -> list[str]:
    """Return the first `limit` items, and how many more there are as the last one."""
    if len(items) <= limit + 1:
        return list(items)
    return [*items[:limit], f"{len(items) - limit} more"]


def sentence(text: str) -> str:
    """Return the text with a capital at its beginning and a full stop at its end."""
    text = text.strip()
    return capital(text if text.endswith((".", "!", "?")) else f"{text}.")


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# Tell apart why a comparison is inconclusive, and what would settle it.


_WITHIN_REACH = 4
"""Times the run's blocks that a further run may reasonably have; beyond, noise is the problem."""
_MOST_BLOCKS = 100_000


class Reason(StrEnum):
    """Name what an inconclusive comparison lacks."""

    TOO_WIDE = "interval too wide"
    TOO_FEW_BLOCKS = "too few blocks"
    MAY_BE_SMALL = "significant, but may be under the threshold"
    NOT_SENSITIVE = "sensitivity not shown"
    NO_INTERVAL = "no interval"
    NO_THRESHOLD = "no threshold applies"


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """Say why a comparison is inconclusive. `found`: what the run shows, as a clause; `remedy`:
    what to do, as a sentence's beginning in the imperative."""

    reason: Reason
    found: str
    remedy: str


def why_inconclusive(c: Comparison) -> Inconclusive | None:
    """Return why a comparison is inconclusive; None of one with another verdict."""
    if c.verdict is not Verdict.INCONCLUSIVE:
        return None
    if c.fallback is not None:
        return Inconclusive(
            Reason.NO_THRESHOLD,
            f"{metric_title(c.metric)} {c.fallback}, so a threshold in percent cannot apply",
            "Plan longer trials, or a primary metric that is never 0.",
        )
    if c.better is Better.NEITHER:
        return Inconclusive(
            Reason.NO_THRESHOLD,
            f"{metric_title(c.metric)} has no better direction",
            "Plan another primary metric.",
        )
    if c.low is None or c.high is None or c.margin is None:
        return Inconclusive(
            Reason.NO_INTERVAL,
            f"{metric_title(c.metric)} differs by the same number in every block, which is too "
            "coarse",
            "Plan longer trials, or a metric with finer resolution.",
        )
    return _by_interval(c, c.low, c.high, c.margin)


def _by_interval(c: Comparison, low: float, high: float, margin: float) -> Inconclusive:
    """Tell apart by where the interval lies, on the scale of effects."""
    first, last = (_scaled(end, c.kind) for end in (low, high))
    threshold = on_scale(margin, c.kind)
    size, shown = size_text(margin, c.kind, c.unit), interval_text(c) or "the interval"
    visible = (last - first) / 2
    if c.smallest_visible is not None:
        visible = on_scale(c.smallest_visible, c.kind)
    narrower = _narrower(len(c.blocks), (first + last) / 2, visible, threshold)
    if first > 0 or last < 0:
        return Inconclusive(
            Reason.MAY_BE_SMALL,
            f"{shown} excludes no change, but includes changes below the threshold of {size}",
            f"{_plan(narrower)} to see on which side of {size} it lies, or a smaller threshold if "
            "such a change matters to you.",
        )
    if -threshold < first and last < threshold:
        return Inconclusive(
            Reason.NOT_SENSITIVE,
            f"{shown} lies within the threshold of {size}, but the known-loss arm did not show "
            "that the run would have detected a loss of that size",
            "Plan a run with more blocks or less noise, in which the known loss is detected.",
        )
    seen = ""
    if c.smallest_visible is not None:
        least = size_text(c.smallest_visible, c.kind, c.unit)
        seen = f"; minimum detectable effect: {least}"
    if c.blocks_needed is None:
        return Inconclusive(
            Reason.TOO_FEW_BLOCKS,
            f"{shown} includes both no change and more than {size}{seen}",
            f"{_plan(narrower or 2 * len(c.blocks))}.",
        )
    has = counted(len(c.blocks), "block")
    if c.blocks_needed <= _WITHIN_REACH * len(c.blocks):
        return Inconclusive(
            Reason.TOO_FEW_BLOCKS,
            f"{shown} after {has}{seen}; detecting {size} needs {c.blocks_needed} blocks",
            f"{_plan(c.blocks_needed)}.",
        )
    return Inconclusive(
        Reason.TOO_WIDE,
        f"{shown} after {has}{seen}; detecting {size} needs {c.blocks_needed:,} blocks",
        "Lower the noise first ('labctl doctor' names its sources), or plan longer trials.",
    )


def _plan(blocks: int | None) -> str:
    return f"Plan a run of {blocks:,} blocks" if blocks else "Plan a run with far less noise"


def _narrower(blocks: int, middle: float, visible: float, threshold: float) -> int | None:
    """Return how many blocks show on which side of the threshold an effect lies that is as large as
    this estimate, as often as the minimum detectable effect is found; None where no feasible number
    does. Errors fall with the square root of the blocks."""
    way = abs(threshold - abs(middle))
    if not way > 0 or not math.isfinite(visible / way):
        return None
    needed = math.ceil(blocks * (visible / way) ** 2)
    return max(needed, blocks + 1) if needed <= _MOST_BLOCKS else None


def _scaled(end: float, kind: EffectKind) -> float:
    if kind is EffectKind.DIFFERENCE:
        return end
    return math.log(end) if end > 0 else -math.inf
