"""Hold a trial's readings without an object for each: trials share what describes them.

A run of 10,000 trials has a million samples, of a few hundred kinds.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from labctl.base.units import Better, Unit
from labctl.store.records.tolerant import LARGEST, as_far_as_whole
from labctl.store.samples import Reading, Sample, SampleRecord, Unavailable


class Kind:
    """Hold what samples have in common but their values. `Kinds` makes each once, so that two are
    the same kind when they are the same object."""

    __slots__ = ("better", "key", "labels", "metric", "source", "unit")

    def __init__(
        self, metric: str, unit: Unit, better: Better, labels: Mapping[str, str], source: str
    ) -> None:
        self.metric = metric
        self.unit = unit
        self.better = better
        self.labels = labels
        self.source = source
        self.key = self.sample(math.nan).key

    def sample(self, value: float) -> Sample:
        return Sample(
            metric=self.metric,
            value=value,
            unit=self.unit,
            better=self.better,
            labels=self.labels,
            source=self.source,
        )


class Readings(Sequence[Reading]):
    """Hold readings as `kinds`, one or an absence for each, and their `values` (NaN of an absence).

    A sequence of samples like any other, which are made when they are asked for.
    """

    __slots__ = ("kinds", "values")

    def __init__(self, kinds: tuple[Kind | Unavailable, ...], values: array[float]) -> None:
        if len(kinds) != len(values):
            raise ValueError(f"{len(kinds)} kinds of {len(values)} values")
        self.kinds = kinds
        self.values = values

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[Reading]:
        return map(_reading, self.kinds, self.values)

    @overload
    def __getitem__(self, index: int) -> Reading: ...
    @overload
    def __getitem__(self, index: slice) -> Readings: ...
    def __getitem__(self, index: int | slice) -> Reading | Readings:
        if isinstance(index, slice):
            return Readings(self.kinds[index], self.values[index])
        return _reading(self.kinds[index], self.values[index])

    def numbers(self) -> array[float]:
        """Return the values of the samples, in their order."""
        both = zip(self.kinds, self.values, strict=True)
        return array("d", [value for kind, value in both if type(kind) is Kind])


def _reading(kind: Kind | Unavailable, value: float) -> Reading:
    return kind if isinstance(kind, Unavailable) else kind.sample(value)


class Kinds:
    """Hold the kinds of readings of a run, each once."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[object, ...], Kind] = {}
        self._absences: dict[tuple[str, str], Unavailable] = {}
        self._alike: dict[tuple[Kind | Unavailable, ...], tuple[Kind | Unavailable, ...]] = {}

    def kind(
        self, metric: str, unit: str, better: str, labels: Mapping[str, str], source: str
    ) -> Kind:
        """Raise ValueError for a unit or a direction that isn't ours."""
        name = (metric, unit, better, source, *labels.items())
        kind = self._kinds.get(name)
        if kind is None:
            kind = Kind(metric, Unit(unit), Better(better), dict(labels), source)
            self._kinds[name] = kind
        return kind

    def absence(self, metric: str, reason: str) -> Unavailable:
        name = (metric, reason)
        if name not in self._absences:
            self._absences[name] = Unavailable(metric=metric, reason=reason)
        return self._absences[name]

    def alike(self, kinds: tuple[Kind | Unavailable, ...]) -> tuple[Kind | Unavailable, ...]:
        """Return the same kinds in the same order, as the one tuple that all trials alike share."""
        return self._alike.setdefault(kinds, kinds)

    def of_json(self, data: Any) -> Readings:
        """Return the content of a samples.json.

        Raises KeyError, TypeError, AttributeError or ValueError where it isn't what
        `TrialFolder.write_readings` writes. All of a sample's texts are looked at once per kind:
        to be of a known kind, they must equal them.
        """
        known = self._kinds
        kinds: list[Kind | Unavailable] = []
        values = array("d")
        for item in data["samples"]:
            labels, value = item["labels"], item["value"]
            name = (item["metric"], item["unit"], item["better"], item["source"], *labels.items())
            kind = known.get(name)
            if kind is None:
                if as_far_as_whole(SampleRecord, item)[1]:
                    raise ValueError("no sample")
                metric, unit, better, source = name[:4]
                kind = self.kind(metric, unit, better, labels, source)
            if type(value) is not float and (type(value) is not int or abs(value) > LARGEST):
                raise ValueError("no number")
            kinds.append(kind)
            values.append(value)
        for item in data["unavailable"]:
            if not (isinstance(item["metric"], str) and isinstance(item["reason"], str)):
                raise ValueError("no absence")
            kinds.append(self.absence(item["metric"], item["reason"]))
            values.append(math.nan)
        return Readings(self.alike(tuple(kinds)), values)

    def pack(self, readings: Iterable[Reading]) -> Readings:
        """Return any readings as `Readings` of these kinds; ones that are already stay as they
        are."""
        if isinstance(readings, Readings):
            return readings
        kinds: list[Kind | Unavailable] = []
        values = array("d")
        for one in readings:
            if isinstance(one, Sample):
                kinds.append(self.kind(one.metric, one.unit, one.better, one.labels, one.source))
                values.append(one.value)
            else:
                kinds.append(self.absence(one.metric, one.reason))
                values.append(math.nan)
        return Readings(self.alike(tuple(kinds)), values)
