"""Write comparisons and lists of names as people read them: in sentences and in tables."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis.model import Comparison, EffectKind
from labctl.base.notation import Shown, changes, difference, differences, size
from labctl.base.units import Unit


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
    """Estimate and interval of a comparison: "×2.73, interval ×2.21…3.38"."""
    estimate, interval = shown(of)
    return f"{estimate}, interval {interval}" if interval else estimate


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
