"""Show two runs side by side: the facts that differ, then the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.text import Text

from labctl.analysis.answer.words import change_text, effect_shown
from labctl.analysis.compare.two_runs import Difference, PerPrice, Prices, RunComparison
from labctl.analysis.model import EffectKind
from labctl.base.notation import Shown, quantity, share
from labctl.base.units import Unit
from labctl.base.wording import metric_title
from labctl.report.parts import bare_table, marked, small, text

SCHEMA = 1

_MOST_WORDS = 60
"""Limit on a fact's words in a table: a CPU has hundreds of flags."""


def comparison_table(
    found: RunComparison, prices: Prices | None = None, priced: Sequence[PerPrice] = ()
) -> RenderableType:
    """Return lines of 80 columns: facts, exclusions, numbers, and performance per price if prices
    were given."""
    parts: list[RenderableType] = [text(f"A: {found.a}\nB: {found.b}\n")]
    parts += marked("Not comparable", (f"{reason}." for reason in found.refusals))
    parts.append(_facts(found))
    parts += marked("Left out", found.left_out)
    parts += marked("Warning", found.cautions)
    for title, rows in (
        ("The tunings' effects on their baselines", found.effects),
        ("Values", found.levels),
    ):
        if rows:
            several = len(found.effects) + len(found.levels) > 1
            parts += [Text(), _numbers(title, rows), small(_confidence(rows[0], several=several))]
    if prices is not None and priced:
        parts += [Text(), _per_price(priced), small(_priced(prices))]
    if not found.levels:
        parts.append(text("\nNothing can be compared.", style="bold"))
    return Group(*parts)


def _facts(found: RunComparison) -> RenderableType:
    if not found.facts:
        return text("No recorded fact of host or guest differs.")
    table = bare_table("Facts that differ")
    for column, width in (("fact", 22), ("A", 28), ("B", 28)):
        table.add_column(column, max_width=width, overflow="fold")
    for fact in found.facts:
        ours, theirs = differing_words(fact.a, fact.b)
        table.add_row(text(fact.name), text(ours), text(theirs))
    return table


def differing_words(a: str | None, b: str | None) -> tuple[str, str]:
    """Return both values for a table; long lists of words are reduced to those that one side
    lacks."""
    if a is None or b is None or max(len(a), len(b)) <= _MOST_WORDS:
        return a or "not recorded", b or "not recorded"
    ours, theirs = a.split(), b.split()
    lacking = [word for word in ours if word not in set(theirs)]
    added = [word for word in theirs if word not in set(ours)]
    return _some(lacking), _some(added)


def _some(words: Sequence[str]) -> str:
    if not words:
        return "(nothing more)"
    few = " ".join(words[:8])
    return f"… {few}" + (f" and {len(words) - 8} more" if len(words) > 8 else "")


def _numbers(title: str, rows: Iterable[Difference]) -> RenderableType:
    table = bare_table(title)
    for column, width in (("what", 30), ("A", 11), ("B", 11), ("B against A", 14), ("", 10)):
        table.add_column(column, max_width=width, overflow="fold")
    for row in rows:
        table.add_row(
            text(f"{row.tuning}, {row.workload}, {row.condition}: {metric_title(row.metric)}"),
            text(_value(row, row.in_a)),
            text(_value(row, row.in_b)),
            text("\n".join(filter(None, _shown(row)))),
            text(_finding(row)),
        )
    return table


def _finding(row: Difference) -> str:
    needed = row.blocks_needed
    return row.finding if needed is None else f"{row.finding} (needs {needed:,} blocks)"


def _per_price(rows: Iterable[PerPrice]) -> RenderableType:
    table = bare_table("Performance per price, B against A")
    for column, width in (("what", 44), ("", 34)):
        table.add_column(column, max_width=width, overflow="fold")
    for row in rows:
        words = f"none: {row.why}"
        if row.estimate is not None:
            ratio = effect_shown(row.estimate, row.low, row.high, EffectKind.RATIO, Unit.FRACTION)
            words = "\n".join(filter(None, ratio))
        table.add_row(
            text(f"{row.tuning}, {row.workload}, {row.condition}: {metric_title(row.metric)}"),
            text(words),
        )
    return table


def _priced(prices: Prices) -> str:
    return (
        f"An hour costs {prices.a:g} on A and {prices.b:g} on B. Higher is better: the gain "
        "of B over A, times A's price divided by B's. Intervals cover the values, not the "
        "prices."
    )


def _value(row: Difference, value: float) -> str:
    if not row.of_effect:
        return quantity(value, row.unit)
    return change_text(value, row.kind, row.unit)


def _shown(row: Difference) -> Shown:
    return effect_shown(row.estimate, row.low, row.high, row.kind, row.unit)


def _confidence(first: Difference, *, several: bool) -> str:
    told = f"Intervals of {share(first.confidence)} (Welch)"
    if several:
        told += ", simultaneous for all rows at 95 %"
    return (
        f'{told}. "differs": the interval excludes no difference; "the same": the whole '
        'interval lies within the study\'s threshold; "not shown": neither.'
    )


def comparison_json(
    found: RunComparison, prices: Prices | None = None, priced: Sequence[PerPrice] = ()
) -> dict[str, object]:
    """Return JSON with the keys of docs/compare.md."""
    told: dict[str, object] = {}
    if prices is not None:
        told = {"prices": asdict(prices), "per_price": [asdict(row) for row in priced]}
    return told | {
        "schema": SCHEMA,
        "a": found.a,
        "b": found.b,
        "refusals": list(found.refusals),
        "facts": [asdict(fact) for fact in found.facts],
        "left_out": list(found.left_out),
        "cautions": list(found.cautions),
        "effects": [_json(row) for row in found.effects],
        "levels": [_json(row) for row in found.levels],
    }


def _json(row: Difference) -> dict[str, object]:
    return {
        "tuning": row.tuning,
        "workload": row.workload,
        "condition": row.condition,
        "metric": row.metric,
        "unit": str(row.unit),
        "better": str(row.better),
        "kind": str(row.kind),
        "a": row.in_a,
        "b": row.in_b,
        "estimate": row.estimate,
        "low": row.low,
        "high": row.high,
        "confidence": row.confidence,
        "margin": row.margin,
        "blocks_a": row.blocks_a,
        "blocks_b": row.blocks_b,
        "finding": row.finding,
        "blocks_needed": row.blocks_needed,
    }
