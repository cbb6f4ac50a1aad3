"""Read a limit as people write it, 'frame_p95 < 16 ms', and check it against a workload's
metrics."""

from __future__ import annotations

import re

from labctl.base.errors import UsageError, nearest
from labctl.base.quantities import SCALES, quantity
from labctl.base.units import Better, Unit
from labctl.store.density_record import Bound, Limit
from labctl.workloads.metric_file import metric_names
from labctl.workloads.readers.names import MetricName
from labctl.workloads.workload import Workload

_LIMIT = re.compile(
    r"\s*(?P<metric>\w+)\s*(?P<bound><=|>=|<|>)\s*(?P<quantity>[^<>=\s][^<>=]*?)\s*"
)
_LIKE_THIS = "Write a metric, <, <=, > or >=, a number and its unit: 'frame_p95 < 16 ms'."


def limit_of(text: str, program: Workload) -> Limit:
    """Return the limit that a text declares on one of the workload's metrics.

    Raises UsageError for an unknown metric, for a unit that is not the metric's, and for a limit on
    the side where values are better.
    """
    parts = _LIMIT.fullmatch(text)
    if parts is None:
        raise UsageError(f"--limit: expected a limit, got '{text[:80]}'", hint=_LIKE_THIS)
    known = metric_names(program.file.metrics)
    name, bound = parts["metric"], Bound(parts["bound"])
    if name not in known:
        raise UsageError(
            f"--limit: workload '{program.name}' has no metric '{name}'", hint=nearest(name, known)
        )
    value, unit = _value(parts["quantity"], name, known[name])
    _check_side(name, bound, known[name].better)
    return Limit(metric=name, bound=bound, value=value, unit=unit)


def _value(text: str, name: str, metric: MetricName) -> tuple[float, Unit]:
    try:
        number, scale = quantity(text)
    except ValueError as error:
        raise UsageError(f"--limit: {error}", hint=_LIKE_THIS) from error
    own = f"of '{name}', which has {_units(metric.unit)}"
    if scale is None:
        # A bare number of seconds is a slip by a factor of a thousand more often than not.
        if metric.unit not in (Unit.COUNT, Unit.FRACTION):
            raise UsageError(
                f"--limit: {text} has no unit: a value {own}, needs one", hint=_LIKE_THIS
            )
        return number, metric.unit
    if metric.unit is not None and scale.unit is not metric.unit:
        raise UsageError(f"--limit: {text} is not a value {own}")
    return number * scale.factor, scale.unit


def _units(unit: Unit | None) -> str:
    if unit is None:
        return "the unit that the program prints"
    words = [word for word, scale in SCALES.items() if scale.unit is unit]
    return f"one of the units {', '.join(words)}" if words else f"the unit {unit}"


def _check_side(name: str, bound: Bound, better: Better) -> None:
    wanted = {Better.LOWER: True, Better.HIGHER: False}.get(better)
    if wanted is not None and bound.is_upper is not wanted:
        ends, use = ("at most", "<") if wanted else ("at least", ">")
        raise UsageError(
            f"--limit: '{name}' is better {better}, so a limit must be '{ends}' a value",
            hint=f"Write '{name} {use} …'.",
        )
