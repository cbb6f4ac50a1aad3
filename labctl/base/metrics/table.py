"""Gather the rows of all metrics, and find the row of a name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from labctl.base.metrics.host import (
    CPU,
    EXITS,
    GUEST_SCHEDULER,
    HOST,
    HOST_SCHEDULER,
    PER_OPERATION,
    REASONS,
)
from labctl.base.metrics.row import ANY, Column, Metric, Page, Table
from labctl.base.metrics.workload import NEIGHBOUR, STREAM, WORKLOAD
from labctl.base.plugins import Group, rows

TABLES: Mapping[Table, tuple[Metric, ...]] = {
    Table.WORKLOAD: (*WORKLOAD, *STREAM),
    Table.HOST: HOST,
    Table.PER_OPERATION: PER_OPERATION,
    Table.CPU: CPU,
    Table.EXITS: EXITS,
    Table.REASONS: REASONS,
    Table.HOST_SCHEDULER: HOST_SCHEDULER,
    Table.GUEST_SCHEDULER: GUEST_SCHEDULER,
    Table.NEIGHBOUR: NEIGHBOUR,
}

METRICS = tuple(metric for table in TABLES.values() for metric in table)

_BY_NAME = {metric.name: metric for metric in METRICS}
_BY_BEGINNING = sorted(
    (metric for metric in METRICS if metric.name.endswith(ANY)),
    key=lambda metric: -len(metric.begins),
)


@cache
def _of_plugins() -> Mapping[str, Metric]:
    return rows(Group.METRICS, Metric, _BY_NAME)


def metric_of(name: str) -> Metric | None:
    """Return the row of a metric's name without labels, labctl's or a plug-in's; None for a foreign
    one, which imported trials may have."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    own = next((row for row in _BY_BEGINNING if name.startswith(row.begins)), None)
    return own or _of_plugins().get(name)


def beside_primary() -> tuple[tuple[str, ...], ...]:
    """Return the metrics that every table has beside its primary one, column by column; open-loop
    ones only if the program has them."""
    return tuple(
        tuple(metric.name for metric in METRICS if metric.column is column) for column in Column
    )


def beginnings(*pages: Page) -> tuple[str, ...]:
    """Return the prefixes of the metrics on such pages."""
    return tuple(metric.begins for metric in METRICS if metric.page in pages)
