"""Compute a metric's values from the numbers that were found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, isclose

import numpy as np
from numpy.typing import NDArray

from labctl.base.errors import BrokenError
from labctl.base.quantities import quantity
from labctl.base.units import SAMPLES_BEYOND, Better, Unit, samples_needed
from labctl.store.samples import sample_key
from labctl.workloads.histogram import PERCENTILES, Histogram
from labctl.workloads.readers.declaration import MetricFile
from labctl.workloads.readers.found import Found, unit_of
from labctl.workloads.readers.output import NoValueError


@dataclass(frozen=True, slots=True)
class Value:
    """Hold one number of a metric in labctl's unit. `source`: the raw file."""

    value: float
    unit: Unit
    better: Better
    source: str
    labels: Mapping[str, str] = field(default_factory=dict)


Values = dict[str, Value | str]
"""Values by metric with its labels (`sample_key`), or the reason why there is none."""


def values_of(name: str, metric: MetricFile, found: Found, source: str) -> Values:
    """Return the values that `as` and `which` make of numbers. Raises BrokenError for impossible
    ones: several where one was expected, or outside `must_be` and `between`."""
    if metric.as_ == "percentiles":
        values = dict(_percentiles(name, metric, found, source))
    else:
        number = _one(metric, found)
        factor = found.scale.factor if metric.as_ not in ("share", "count") else 1.0
        value = Value(number * factor, unit_of(metric, found.scale), metric.direction, source)
        values = {name: value}
        if metric.bin_width is not None and value.value:
            width = _step(metric, found) * found.scale.factor / abs(value.value)
            values |= _bin_width(name, width, source)
    check(metric, values)
    return values


def values_of_bins(name: str, metric: MetricFile, counted: Histogram) -> Values:
    """Return the values that `as` makes of a histogram in the declared unit."""
    scale = metric.scale
    assert scale is not None
    unit = Unit.COUNT if metric.as_ == "count" else scale.unit
    factor = 1.0 if metric.as_ == "count" else scale.factor
    last = counted.bins[-1]
    longest = last.middle_s + (last.width_s - 1) / 2

    def value(number: float) -> Value:
        return Value(number * factor, unit, metric.direction, counted.source)

    if metric.as_ == "percentiles":
        values: Values = {}
        for suffix, q in PERCENTILES.items():
            key, needed = f"{name}_{suffix}", samples_needed(q)
            found = counted.quantile(q)
            if counted.count < needed or found is None:
                values[key] = _too_few(counted.count, suffix, needed)
                continue
            values[key] = value(found.middle_s)
            values |= _bin_width(key, found.width_s / found.middle_s, counted.source)
        values[f"{name}_max"] = value(longest)
    elif metric.as_ == "mean":
        total = sum(one.middle_s * one.count for one in counted.bins)
        values = {name: value(total / counted.count)}
    else:
        values = {name: value(counted.count if metric.as_ == "count" else longest)}
    check(metric, values)
    return values


def check(metric: MetricFile, values: Values) -> None:
    """Raise BrokenError for a value that a complete run cannot have."""
    factor = metric.scale.factor if metric.scale is not None else 1.0
    for key, value in values.items():
        if isinstance(value, str) or value.labels:
            continue
        if metric.as_ in ("share", "count"):
            factor = 1.0
        must, between = metric.must_be, metric.between
        if must is not None and not isclose(value.value, must * factor, rel_tol=1e-9, abs_tol=0):
            raise BrokenError(f"{key}: expected {must:g}, got {value.value / factor:g}")
        if between is not None:
            least, most = (limit * factor for limit in between)
            if not least * (1 - 1e-12) <= value.value <= most * (1 + 1e-12):
                raise BrokenError(
                    f"{key}: expected a value from {between[0]:g} to {between[1]:g}, got "
                    f"{value.value / factor:g}"
                )


def picked(which: str, numbers: NDArray[np.float64], shown: tuple[str, ...]) -> float:
    """Return the number that `which` selects."""
    if which == "only" and len(numbers) != 1:
        more = ", …" if len(numbers) > len(shown) else ""
        raise BrokenError(
            f"expected one match, got {len(numbers)} ({', '.join(shown)}{more})",
            hint="Make it match one line, or set 'which': first, last, sum, mean, min or max.",
        )
    if which in ("first", "only"):
        return float(numbers[0])
    if which == "last":
        return float(numbers[-1])
    made: Mapping[str, Callable[[], np.float64]] = {
        "sum": numbers.sum,
        "mean": numbers.mean,
        "min": numbers.min,
        "max": numbers.max,
    }
    return _finite(float(made[which]()))


def _one(metric: MetricFile, found: Found) -> float:
    numbers = found.values
    match metric.as_:
        case "share":
            return float(np.mean(numbers > _in_unit(metric.over, found)))
        case "count":
            return float(len(numbers))
        case "value":
            return picked(metric.which, numbers, found.shown)
        case kind:
            return picked(kind, numbers, found.shown)


def _percentiles(
    name: str, metric: MetricFile, found: Found, source: str
) -> Iterator[tuple[str, Value | str]]:
    """Yield percentiles by nearest rank (METHOD 16), their printed steps, and the maximum."""
    numbers = np.sort(found.values)
    step = _step(metric, found)
    factor, unit = found.scale.factor, found.scale.unit
    for suffix, q in PERCENTILES.items():
        key, needed = f"{name}_{suffix}", samples_needed(q)
        if len(numbers) < needed:
            yield key, _too_few(len(numbers), suffix, needed)
            continue
        number = float(numbers[max(1, ceil(q * len(numbers) - 1e-9)) - 1])
        yield key, Value(number * factor, unit, metric.direction, source)
        if step > 0:
            yield from _bin_width(key, step / max(abs(number), step / 2), source).items()
    yield (
        f"{name}_max",
        Value(float(numbers[-1]) * factor, unit, metric.direction, source),
    )


def _too_few(count: int, suffix: str, needed: int) -> str:
    return (
        f"the run has {count} samples, but {suffix} needs {needed}, so that "
        f"{SAMPLES_BEYOND} lie beyond it."
    )


def _bin_width(of: str, width: float, source: str) -> Values:
    labels = {"of": of}
    key = sample_key("bin_width", labels)
    return {key: Value(width, Unit.FRACTION, Better.NEITHER, source, labels)}


def _step(metric: MetricFile, found: Found) -> float:
    return found.step if metric.bin_width is None else _in_unit(metric.bin_width, found)


def _in_unit(limit: str | float | None, found: Found) -> float:
    """Return a limit in the unit of the numbers."""
    if not isinstance(limit, str):
        return float(limit or 0.0)
    number, scale = quantity(limit)
    if scale is None:
        return number
    if scale.unit is not found.scale.unit:
        raise BrokenError(f"'{limit}' has a different kind of unit from the numbers")
    return number * scale.factor / found.scale.factor


def _finite(number: float) -> float:
    if not np.isfinite(number):
        raise NoValueError("the numbers' sum is out of range.")
    return number
