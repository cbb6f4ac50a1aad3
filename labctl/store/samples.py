"""Describe samples: one number of one trial each, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labctl.base.metrics.table import metric_of
from labctl.base.units import Better, Unit
from labctl.store.records.tolerant import Number, Record, Text

VCPU, HELPERS = "vcpu", ("emulator", "iothread", "vhost")
"""Roles of the threads whose CPU time a guest costs its host (METHOD rule 2): values of the label
`thread`."""


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
    """Return a sample of a metric that has a row, which gives its unit and its direction. Raises
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
    """Hold why a trial lacks a metric. Never a 0."""

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
    """Hold samples.json; a trial's reader takes it apart by hand (`Kinds.of_json`), since a run has
    a million samples, and this way only to say what doesn't fit."""

    samples: tuple[SampleRecord, ...]
    unavailable: tuple[AbsenceRecord, ...]
