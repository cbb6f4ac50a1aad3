"""Write comparisons and lists of names as people read them: in sentences and in tables."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis.model import Comparison, EffectKind
from labctl.base.units import Unit
from labctl.base.wording import change, change_interval, difference, difference_interval, size


def change_text(value: float, kind: EffectKind, unit: Unit) -> str:
    """Return a ratio as a change, a difference with its unit: "+12 %", "×2.73", "−1.20 ms"."""
    return change(value) if kind is EffectKind.RATIO else difference(value, unit)


def ends_text(low: float | None, high: float | None, kind: EffectKind, unit: Unit) -> str:
    """Return an interval's ends: "−31…−14 %"; "" where there is none."""
    if kind is EffectKind.RATIO:
        return change_interval(low, high)
    return difference_interval(low, high, unit)


def effect_text(of: Comparison) -> str:
    return change_text(of.estimate, of.kind, of.unit)


def interval_text(of: Comparison) -> str:
    return ends_text(of.low, of.high, of.kind, of.unit)


def effect(of: Comparison) -> str:
    """Estimate and interval of a comparison: "×2.73, interval ×2.21…3.38"."""
    interval = interval_text(of)
    return f"{effect_text(of)}, interval {interval}" if interval else effect_text(of)


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
