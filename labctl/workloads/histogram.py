"""Compute latency percentiles from the histograms that tools print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil

from labctl.base.units import CLOSED, SAMPLES_BEYOND, samples_needed
from labctl.store.samples import Reading, Sample, Unavailable, sample, sample_key

PERCENTILES: Mapping[str, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True, slots=True)
class Bin:
    """Hold `count` latencies around `middle_s`, somewhere within `width_s`. Seconds."""

    middle_s: float
    width_s: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Count latencies of one kind of operation. `beyond`: those too long for the last bin."""

    bins: tuple[Bin, ...]
    source: str
    beyond: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(b.count for b in self.bins) + self.beyond

    def quantile(self, q: float) -> Bin | None:
        """Return the bin that holds the q-quantile (nearest rank); None if it lies beyond the
        last."""
        rank = max(1, ceil(q * self.count - 1e-9))
        seen = 0
        for b in self.bins:
            seen += b.count
            if seen >= rank:
                return b
        return None


def histogram(
    bins: Iterable[Bin], *, source: str, beyond: int = 0, labels: Mapping[str, str] | None = None
) -> Histogram:
    """Return a histogram with its bins in order and empty ones left out."""
    kept = sorted((b for b in bins if b.count), key=lambda b: b.middle_s)
    return Histogram(bins=tuple(kept), source=source, beyond=beyond, labels=labels or {})


def latency_readings(latencies: Histogram, maximum_s: float) -> Iterator[Reading]:
    """Return percentiles, as `percentiles` does, and the maximum."""
    yield from percentiles(latencies)
    yield _seconds("latency_max", maximum_s, latencies)


def percentiles(
    latencies: Histogram, *, prefix: str = CLOSED, wakeups: int | None = None
) -> Iterator[Reading]:
    """Return percentiles (middle of their bin), and their bins' relative widths.

    A percentile with fewer than 20 samples beyond it, or beyond the histogram, is unavailable.
    `wakeups`: how many of the latencies were measured, if those of other periods follow.
    `bin_width{of=...}` is the width of the bin over its middle: values closer than that tie, and
    analysis keeps a standard deviation from falling below what ties can fake.
    """
    measured = latencies.count if wakeups is None else wakeups
    for name, q in PERCENTILES.items():
        metric = f"{prefix}{name}"
        needed = samples_needed(q)
        found = latencies.quantile(q)
        if measured < needed:
            reason = (
                f"the trial has {measured} samples, but {name} needs {needed}, so that "
                f"{SAMPLES_BEYOND} lie beyond it."
                if wakeups is None
                else f"{name} needs {needed} wake-ups in a trial: periods that a stall hid do "
                "not count."
            )
            yield Unavailable(metric=sample_key(metric, latencies.labels), reason=reason)
        elif found is None:
            reason = f"{latencies.beyond} samples lie beyond the end of the tool's histogram."
            yield Unavailable(metric=sample_key(metric, latencies.labels), reason=reason)
        else:
            yield _seconds(metric, found.middle_s, latencies)
            width = found.width_s / found.middle_s
            yield bin_width(metric, width, latencies.source, latencies.labels)


def bin_width(
    of: str, width: float, source: str, labels: Mapping[str, str] | None = None
) -> Sample:
    """Return how coarsely a histogram shows the metric `of`, as a share of its value (METHOD
    16)."""
    return sample("bin_width", width, source=source, labels={**(labels or {}), "of": of})


def _seconds(metric: str, value: float, latencies: Histogram) -> Sample:
    return sample(metric, value, source=latencies.source, labels=latencies.labels)
