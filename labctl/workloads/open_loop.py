"""Compute open-loop latencies of a program with a fixed pace: restore the periods that a stall hid.

A thread that should wake up once in an interval I, and does so late by L, skips floor(L / I)
periods. It reports one late wake-up, while a load that does not wait for the machine would have had
a request due in each of them. Those waited L - I, L - 2 I, ..., so a wake-up stands for 1 + floor(L
/ I) requests (docs/decisions/latency-is-open-loop.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from labctl.base.errors import BrokenError
from labctl.base.units import OPEN, OPEN_MEAN
from labctl.store.samples import Reading, Unavailable, sample
from labctl.workloads.histogram import PERCENTILES, Bin, bin_width, histogram, percentiles

MICROSECOND_S = 1e-6

METRICS = ("periods", "late_periods", OPEN_MEAN, *(f"{OPEN}{name}" for name in PERCENTILES))

_MOST_BINS = 1_000_000
"""Limit: a wake-up of 100 s at the shortest interval. More cannot come from a trial, and would take
all memory."""

OVERFLOW = (
    "more than one wake-up of a thread was beyond the end of the tool's histogram, so "
    "their lengths are unknown: raise 'histogram_us'."
)


@dataclass(frozen=True, slots=True)
class MeasuredThread:
    """Count one thread's wake-ups by latency in whole microseconds, rounded down: 7 is 7 to 8.
    `beyond`: those too late for the tool's histogram."""

    by_latency_us: Mapping[int, int]
    beyond: int
    max_us: int

    @property
    def lengths_us(self) -> Mapping[int, int] | None:
        """Return all wake-ups by latency; None if more than one is beyond the end of the
        histogram."""
        if self.beyond > 1:
            return None
        if not self.beyond:
            return self.by_latency_us
        # The only one beyond the histogram is the longest of all.
        of_max = self.by_latency_us.get(self.max_us, 0) + 1
        return {**self.by_latency_us, self.max_us: of_max}


def unavailable(reason: str) -> Iterator[Reading]:
    for metric in METRICS:
        yield Unavailable(metric=metric, reason=reason)


def readings(threads: Sequence[MeasuredThread], interval_us: int, source: str) -> Iterator[Reading]:
    """Return METRICS of threads that share an interval, or why they are unavailable.

    A percentile needs as many real wake-ups as any other (METHOD 16): the periods of one stall are
    one event. Raises BrokenError if lengths cannot be those of a trial.
    """
    known = [lengths for t in threads if (lengths := t.lengths_us) is not None]
    if len(known) < len(threads):
        yield from unavailable(OVERFLOW)
        return
    wakeups: Counter[int] = Counter()
    for lengths in known:
        wakeups.update(lengths)
    requests = every_period(wakeups, interval_us)
    periods, real = sum(requests.values()), wakeups.total()
    yield sample("periods", periods, source=source)
    yield sample("late_periods", (periods - real) / periods, source=source)
    total_us = sum(latency_us * count for latency_us, count in requests.items())
    mean_s = (total_us / periods + 0.5) * MICROSECOND_S
    yield sample(OPEN_MEAN, mean_s, source=source)
    # Effect of truncation on a mean: at most half a microsecond if all values share a bin, and far
    # less if they are spread over several.
    fullest = max(count * (1 + us // interval_us) for us, count in wakeups.items()) / periods
    yield bin_width(OPEN_MEAN, fullest * MICROSECOND_S / mean_s, source)
    bins = (
        Bin((latency_us + 0.5) * MICROSECOND_S, MICROSECOND_S, count)
        for latency_us, count in requests.items()
    )
    yield from percentiles(histogram(bins, source=source), prefix=OPEN, wakeups=real)


def every_period(wakeups: Mapping[int, int], interval_us: int) -> dict[int, int]:
    """Return requests by latency: each wake-up of latency L stands for those of L, L - I, L - 2 I,
    ... above or at 0, which are 1 + floor(L / I)."""
    latest: dict[int, int] = {}
    for latency_us in wakeups:
        phase = latency_us % interval_us
        latest[phase] = max(latency_us, latest.get(phase, 0))
    if sum(1 + latency_us // interval_us for latency_us in latest.values()) > _MOST_BINS:
        raise BrokenError(
            f"expected wake-ups of a trial, found one that came {max(latest.values())} us late "
            f"at an interval of {interval_us} us"
        )
    requests = {}
    for latency_us in latest.values():
        waiting = 0
        for left_us in range(latency_us, -1, -interval_us):
            waiting += wakeups.get(left_us, 0)
            requests[left_us] = waiting
    return requests
