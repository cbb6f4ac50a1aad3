"""Show factors in a terminal: those of a plan, and what they did."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from labctl.base.wording import counted
from labctl.report.parts import bare_table, text
from labctl.store.records.plan_record import PlanRecord


def factor_table(plan: PlanRecord) -> list[RenderableType]:
    """Return a plan's factors with their levels, how many cells they make and which of them take
    a boot; [] without factors."""
    factorial = plan.factorial
    if factorial is None:
        return []
    table = bare_table("Factors")
    table.add_column("factor", min_width=9, max_width=20, overflow="fold")
    table.add_column("levels", overflow="fold")
    table.add_column("one value of each contrast")
    for name, factor in factorial.factors.items():
        unit = "per boot: it takes one of its own" if factor.own_boot else "per block"
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
