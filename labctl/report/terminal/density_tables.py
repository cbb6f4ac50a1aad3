"""Show a density run's results in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from labctl.analysis.density import Density
from labctl.base.notation import difference, quantity
from labctl.report.density_words import (
    blocks_words,
    head_words,
    interval_words,
    number_words,
    placed_words,
    remarks,
    test_words,
)
from labctl.report.parts import bare_table, marked, small, text
from labctl.store.density_record import DensityRecord


def density_report(record: DensityRecord, name: str, found: Density) -> Group:
    """Return the whole report for a terminal."""
    parts: list[RenderableType] = [text(head_words(record, name)), text("")]
    numbers = bare_table("", "tuning", "guests", "CI of the median", "by block")
    for one in found.fitting:
        numbers.add_row(
            text(one.tuning),
            text(number_words(one)),
            text(interval_words(one)),
            text(blocks_words(one)),
        )
    parts += [numbers, text("")]
    parts += [small(test_words(test)) for test in found.tests]
    unit, metric = record.limit.unit, record.limit.metric
    curve = bare_table(
        f"Cost of each guest to the others ({metric}, medians over blocks)",
        *("tuning", "guests", "worst guest", "median guest", "each guest costs", "limit held"),
    )
    for tuning, points in found.curves.items():
        for point in points:
            curve.add_row(
                text(tuning),
                text(str(point.count)),
                text(quantity(point.worst, unit)),
                text(quantity(point.middle, unit)),
                text("" if point.cost is None else difference(point.cost, unit)),
                text(f"{point.held} of {point.blocks}"),
            )
    if any(found.curves.values()):
        parts += [text(""), curve]
    parts += [text(""), *(small(line) for line in placed_words(record))]
    parts += marked("note", remarks(record, found))
    return Group(*parts)
