"""Write the tables of docs/metrics.md from the table of metrics (`make docs`); its prose stays."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from labctl.analysis.quantification import LEAST
from labctl.base.metrics.model import Metric, Table, Zero
from labctl.base.metrics.table import METRICS, TABLES
from labctl.base.units import ZERO_IS_USUAL, Better
from labctl.store.samples import labels_of

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

_HEAD = "| key | unit | better | compared by | from |\n|---|---|---|---|---|\n"
_TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end of table -->\n)", re.DOTALL)
_ARROWS = {Better.HIGHER: "↑", Better.LOWER: "↓", Better.NEITHER: "–"}


def page(text: str) -> str:
    """Return the page with its tables as the rows are now. Raises ValueError where a mark names no
    table, and where a table has no mark or two."""
    marked = [Table(mark[2]) for mark in _TABLE.finditer(text)]
    if sorted(marked) != sorted(Table):
        raise ValueError(f"expected a mark for each of {list(Table)}, found {marked}")
    return _TABLE.sub(lambda mark: f"{mark[1]}{_table(Table(mark[2]))}{mark[3]}", text)


def _table(table: Table) -> str:
    """Keys that differ in nothing else share a line."""
    lines = [line for metric in METRICS for line in _lines(metric, table)]
    return _HEAD + "".join(
        _row([key for _, key in same], rest) for rest, same in groupby(lines, itemgetter(0))
    )


def _row(keys: list[str], rest: tuple[str, ...]) -> str:
    named = ", ".join(f"`{key}`" for key in sorted(keys, key=lambda key: (len(key), key)))
    cells = (cell.replace("|", r"\|") for cell in (named, *rest))
    return f"| {' | '.join(cells)} |\n"


def _lines(metric: Metric, table: Table) -> Iterator[tuple[tuple[str, ...], str]]:
    own = metric.forms if metric in TABLES[table] else {}
    for keys, text in {**own, **metric.elsewhere.get(table, {})}.items():
        for key in keys.split():
            labels = {name: value.split("|")[0] for name, value in labels_of(key).items()}
            better = _ARROWS[metric.better_of(labels)]
            yield (str(metric.unit), better, _scale(metric), text), key


def _scale(metric: Metric) -> str:
    if not metric.compared:
        return "nothing"
    if metric.unit in ZERO_IS_USUAL or metric.zero is Zero.USUAL:
        return "difference"
    scale = "ratio"
    if metric.counts is not None:
        scale += f" from {math.ceil(LEAST[metric.counts])} {metric.counts} on"
    return f"{scale}; difference against native" if metric.zero is Zero.NATIVE else scale


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
