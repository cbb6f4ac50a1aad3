"""Numbers and lists as people read them in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis.model import Comparison, EffectKind


def change(value: float, kind: EffectKind, unit: str) -> str:
    """A ratio as a signed percentage, a difference with its unit: '+12 %', '-0.03 CPU-s/s'."""
    if kind is EffectKind.DIFFERENCE:
        return f"{value:+.3g} {unit}" if unit != "1" else f"{value:+.3g}"
    percent = 100 * (value - 1)
    if abs(percent) >= 10_000:
        return f"x{value:.3g}"
    return f"{percent:+.0f} %" if abs(percent) >= 10 else f"{percent:+.1f} %"


def span(low: float, high: float, kind: EffectKind, unit: str) -> str:
    return f"{change(low, kind, unit)} to {change(high, kind, unit)}"


def effect(of: Comparison) -> str:
    """Estimate and interval of a comparison: '+173 %, interval +121 % to +238 %'."""
    text = change(of.estimate, of.kind, of.unit)
    if of.low is None or of.high is None:
        return text
    return f"{text}, interval {span(of.low, of.high, of.kind, of.unit)}"


def size(value: float, kind: EffectKind, unit: str) -> str:
    """A margin or a smallest effect, without sign: '5 %', '0.1 CPU-s/s'."""
    if kind is EffectKind.RATIO:
        return f"{100 * value:.2g} %" if value < 0.1 else f"{100 * value:.0f} %"
    return f"{value:.3g} {unit}" if unit != "1" else f"{value:.3g}"


def listed(items: Sequence[str], limit: int = 3) -> str:
    """'a, b and c'; beyond `limit`: 'a, b, c and 4 more'."""
    if len(items) > limit:
        return f"{', '.join(items[:limit])} and {len(items) - limit} more"
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def counted(number: int, noun: str) -> str:
    """'1 trial', '2 trials'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def few(items: Sequence[str], limit: int = 3) -> list[str]:
    """The first `limit` items, and how many more there are as the last one."""
    if len(items) <= limit + 1:
        return list(items)
    return [*items[:limit], f"{len(items) - limit} more"]


def sentence(text: str) -> str:
    """With a capital at its beginning and a full stop at its end."""
    text = text.strip()
    return capital(text if text.endswith((".", "!", "?")) else f"{text}.")


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
