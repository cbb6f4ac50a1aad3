"""Show factors in a terminal: those of a plan, and their effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from labctl.analysis.factors import (
    contrast_shown,
    factor_title,
    finding_words,
    group_title,
    levels_title,
    notes,
)
from labctl.analysis.model import Contrast, FactorAnalysis, Finding
from labctl.base.wording import counted
from labctl.report.parts import bare_table, small, text
from labctl.store.records.plan_record import PlanRecord

_MOST_ROWS = 24
"""Most contrasts for which the short report has a row each; of more, it shows only real ones."""


def factor_table(plan: PlanRecord) -> list[RenderableType]:
    """Return a plan's factors with their levels, the number of cells, and the factors that need a
    boot; [] without factors."""
    factorial = plan.factorial
    if factorial is None:
        return []
    table = bare_table("Factors")
    table.add_column("factor", min_width=9, max_width=20, overflow="fold")
    table.add_column("levels", overflow="fold")
    table.add_column("one value of each contrast")
    for name, factor in factorial.factors.items():
        unit = "per boot (each level has its own boot)" if factor.own_boot else "per block"
        table.add_row(text(name), text(", ".join(factor.levels)), text(unit))
    lines = [f"{counted(len(factorial.cells), 'cell')} in each block, over all arms"]
    if factorial.excluded:
        lines.append(f"excluded: {_listed(list(map(_levels, factorial.excluded)))}")
    if factorial.interactions:
        pairs = [" and ".join(pair) for pair in factorial.interactions]
        lines.append(f"interactions declared: {_listed(pairs)}")
    return [table, text("\n".join(lines)), Text()]


def _levels(levels: dict[str, str]) -> str:
    return " with ".join(f"{name}={level}" for name, level in levels.items())


def _listed(items: Sequence[str]) -> str:
    return "; ".join(items)


def factors_short(analysis: FactorAnalysis | None) -> Iterator[RenderableType]:
    """Yield a table of effects for each workload; of many effects only the real ones."""
    if analysis is None or not analysis.contrasts:
        return
    crowded = len(analysis.contrasts) > _MOST_ROWS
    real = (Finding.REAL, Finding.SMALL)
    rows = [one for one in analysis.contrasts if not crowded or one.finding in real]
    yield from _effects(rows)
    if left := len(analysis.contrasts) - len(rows):
        yield text(f"{counted(left, 'other contrast')} of factors: --full")


def factors_full(analysis: FactorAnalysis | None) -> Iterator[RenderableType]:
    """Yield tables of all effects of factors, and how to read them."""
    if analysis is None or not analysis.contrasts:
        return
    yield from _effects(analysis.contrasts)
    yield Text()
    for line in notes(analysis):
        yield small(line)


def factors_explored(contrasts: Sequence[Contrast]) -> Iterator[RenderableType]:
    """Yield tables of effects on a metric that isn't primary."""
    if contrasts:
        yield from _effects(contrasts)
        yield small("Exploratory: separate 95 % CIs, no findings.")


def _effects(contrasts: Sequence[Contrast]) -> Iterator[RenderableType]:
    for title, found in groupby(sorted(contrasts, key=group_title), key=group_title):
        table = bare_table(f"Factors, {title}")
        table.add_column("arm", min_width=8, max_width=16, overflow="fold")
        table.add_column("factor", min_width=6, max_width=16, overflow="fold")
        table.add_column("level", min_width=6, overflow="fold")
        table.add_column("change", min_width=9, no_wrap=True)
        table.add_column("finding", min_width=9, max_width=14, overflow="fold")
        arm = None
        for one in found:
            estimate, interval = contrast_shown(one)
            shown = f"{estimate} ({interval})" if interval else estimate
            cells = (factor_title(one), levels_title(one), shown, finding_words(one))
            table.add_row(text("" if one.arm == arm else one.arm), *map(text, cells))
            arm = one.arm
        yield Text()
        yield table
