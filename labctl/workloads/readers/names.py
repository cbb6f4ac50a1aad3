"""Find the metrics that a declaration makes, and refuse names with another meaning in labctl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labctl.base.errors import nearest
from labctl.base.metrics.table import metric_of
from labctl.base.metrics.workload import WORKLOAD
from labctl.base.templates import names_in
from labctl.base.units import Better, Unit, usual_direction
from labctl.workloads.histogram import PERCENTILES
from labctl.workloads.readers import named
from labctl.workloads.readers.declaration import MetricFile

OWN = frozenset(
    {
        *("elapsed", "user_s", "system_s", "cpu_use", "ctx_switches", "max_rss", "work_per_s"),
        *("operations", "duration", "batch_error", "bin_width"),
    }
)
"""Names of metrics that labctl itself measures for every workload."""

MOST_METRICS = 100


@dataclass(frozen=True, slots=True)
class MetricName:
    """Hold a metric's properties before a run. `unit`: None if the program prints it."""

    unit: Unit | None
    better: Better


def names_of(name: str, metric: MetricFile) -> dict[str, MetricName]:
    """Return the metrics that one declaration makes; those with labels are left out."""
    if metric.reader is not None:
        made_by_reader = named.metrics_of(metric.reader, metric.arguments)
        rows = {made: metric_of(made) for made in made_by_reader}
        return {made: MetricName(row.unit, row.better) for made, row in rows.items() if row}
    unit = metric.scale.unit if metric.scale is not None else None
    unit = {"share": Unit.FRACTION, "count": Unit.COUNT}.get(metric.as_, unit)
    made = MetricName(unit, metric.direction)
    if metric.as_ == "percentiles":
        return {f"{name}_{suffix}": made for suffix in (*PERCENTILES, "max")}
    return {name: made}


def used_names(metric: MetricFile) -> set[str]:
    """Return the metrics that a formula uses."""
    if metric.formula is None or metric.given():
        return set()
    return names_in(metric.formula, bare=True)


def check_metrics(metrics: Mapping[str, MetricFile]) -> Mapping[str, MetricFile]:
    """Return the declarations, each with its direction (`usual_direction`). Raises ValueError for
    names that are labctl's own or that two declarations make, for formulas over missing metrics,
    and for a metric without a direction."""
    metrics = {name: _directed(name, metric) for name, metric in metrics.items()}
    if len(metrics) > MOST_METRICS:
        raise ValueError(f"{len(metrics)} metrics (limit: {MOST_METRICS})")
    makers: dict[str, str] = {}
    for name, metric in metrics.items():
        for made, known in names_of(name, metric).items():
            if made in makers:
                raise ValueError(f"'{name}' and '{makers[made]}' both make the metric '{made}'")
            makers[made] = name
            if metric.reader is None:
                _check_name(made, known)
    for name, metric in metrics.items():
        for used in sorted(used_names(metric)):
            if used not in makers:
                raise ValueError(
                    f"the formula of '{name}' uses '{used}', which is not a metric. "
                    f"{nearest(used, makers)}"
                )
    _check_circles({name: {makers[used] for used in used_names(m)} for name, m in metrics.items()})
    return metrics


def _directed(name: str, metric: MetricFile) -> MetricFile:
    if metric.reader is not None or metric.better is not None:
        return metric
    better = usual_direction(name, None if metric.as_ == "count" else metric.unit)
    if better is None:
        raise ValueError(
            f"'better' of '{name}' is missing and cannot be derived from its unit or name: "
            "add 'better: higher', 'lower' or 'neither'"
        )
    return metric.model_copy(update={"better": str(better)})


def _check_name(name: str, known: MetricName) -> None:
    """Raise ValueError for a name of labctl's, unless the meaning is the same: another program's
    `bandwidth` in bytes per second."""
    row = metric_of(name)
    if name in OWN or (row is not None and row not in WORKLOAD):
        raise ValueError(f"'{name}' is labctl's own metric: give it another name")
    if row is not None and (row.unit is not known.unit or row.better is not known.better):
        unit = "a printed unit" if known.unit is None else f"unit '{known.unit}'"
        raise ValueError(
            f"'{name}' is labctl's own metric, of unit '{row.unit}', better {row.better}; here it "
            f"has {unit}, better {known.better}: give it another name"
        )


def _check_circles(over: Mapping[str, set[str]]) -> None:
    done: set[str] = set()
    while len(done) < len(over):
        ready = {name for name, used in over.items() if name not in done and used <= done}
        if not ready:
            left = ", ".join(f"'{name}'" for name in over if name not in done)
            raise ValueError(f"the formulas of {left} use each other")
        done |= ready
