"""Describe samples, or why they are missing, and hold a trial's readings compactly."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from labctl.base.metrics.table import metric_of
from labctl.base.units import Better, Unit
from labctl.store.records.tolerant import LARGEST, Number, Record, Text, as_far_as_whole

# Describe samples: one number of one trial each, or the reason why it is missing.


VCPU, HELPERS = "vcpu", ("emulator", "iothread", "vhost")
"""Roles of the threads whose CPU time is a guest's cost to its host (METHOD rule 2): values of the
label `thread`."""


def sample_key(metric: str, labels: Mapping[str, str]) -> str:
    """Return a metric with its labels, as reports name it: `host_cpu{thread=vcpu}`."""
    if not labels:
        return metric
    inside = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return f"{metric}{{{inside}}}"


def base_name(key: str) -> str:
    """Return the metric without its labels: "ipc" of "ipc{source=pmu}"."""
    return key.partition("{")[0]


def labels_of(key: str) -> dict[str, str]:
    """Return the labels in a key that `sample_key` made: {"thread": "vcpu"} of
    "host_cpu{thread=vcpu}".
    """
    inside = key.partition("{")[2].removesuffix("}")
    pairs = (label.partition("=") for label in inside.split(",") if label)
    return {name: value for name, _, value in pairs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Hold one number. `metric` per the design's table, e.g. ("exits", {"reason": "HLT"}).

    `source`: the raw file that it was parsed from, relative to the trial's folder.
    """

    metric: str
    value: float
    unit: Unit
    better: Better
    labels: Mapping[str, str] = field(default_factory=dict)
    source: str

    @property
    def key(self) -> str:
        return sample_key(self.metric, self.labels)

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "value": self.value,
            "unit": str(self.unit),
            "better": str(self.better),
            "labels": dict(self.labels),
            "source": self.source,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sample:
        return cls(
            metric=data["metric"],
            value=float(data["value"]),
            unit=Unit(data["unit"]),
            better=Better(data["better"]),
            labels=dict(data["labels"]),
            source=data["source"],
        )


def sample(
    metric: str, value: float, *, source: str, labels: Mapping[str, str] | None = None
) -> Sample:
    """Return a sample of a metric that has a row, which defines its unit and its direction. Raises
    LookupError for one without."""
    row = metric_of(metric)
    if row is None:
        raise LookupError(f"'{metric}' has no row in labctl/base/metrics")
    return Sample(
        metric=metric,
        value=value,
        unit=row.unit,
        better=row.better_of(labels or {}),
        labels=labels or {},
        source=source,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """Hold why a trial lacks a metric. Never 0 instead."""

    metric: str
    reason: str

    def to_json(self) -> dict[str, str]:
        return {"metric": self.metric, "reason": self.reason}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Unavailable:
        return cls(metric=data["metric"], reason=data["reason"])


Reading = Sample | Unavailable
"""Result of a parser."""


class SampleRecord(Record):
    metric: Text
    value: Number
    unit: Text
    better: Text
    labels: dict[str, Text]
    source: Text


class AbsenceRecord(Record):
    metric: Text
    reason: Text


class SamplesRecord(Record):
    """Hold samples.json. A trial's reader parses it without this model (`Kinds.of_json`), because a
    run has a million samples; the model only serves to name the invalid place."""

    samples: tuple[SampleRecord, ...]
    unavailable: tuple[AbsenceRecord, ...]


# Hold a trial's readings without an object for each: trials share the descriptions.
#
# A run of 10,000 trials has a million samples, of a few hundred kinds.


class Kind:
    """Hold the common properties of samples, without their values. `Kinds` makes each once, so that
    two are the same kind if they are the same object."""

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
    """Hold readings as `kinds`, one or an absence for each, and their `values` (NaN for an
    absence).

    A sequence of samples, which are made on access.
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
        """Return the kind; raises ValueError for an unknown unit or direction."""
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
        """Return the same kinds in the same order, as one tuple shared by all such trials."""
        return self._alike.setdefault(kinds, kinds)

    def of_json(self, data: Any) -> Readings:
        """Return the content of a samples.json.

        Raises KeyError, TypeError, AttributeError or ValueError if `TrialFolder.write_readings`
        cannot have written it. All texts of a sample are compared once per kind: a sample is of a
        known kind only if they are equal.
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
        """Return any readings as `Readings` of these kinds, unchanged if they are already."""
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
