"""Read oslat's JSON: durations of the rounds of a loop that only reads the clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labctl.base.errors import BrokenError
from labctl.base.json import parse_json
from labctl.store.samples import Reading, sample

MICROSECOND_S = 1e-6

STALL_US = 5
"""Shortest round of the loop that counts as a stall: the noise threshold of the kernel's osnoise
tracer (Documentation/trace/osnoise-tracer.rst, tracing_threshold). An uninterrupted round takes
well below 1 us, also when emulated."""

BUCKETS = 1024
"""Maximum of oslat, one for each microsecond. Longer rounds only add to its average."""


@dataclass(frozen=True, slots=True)
class BusyThread:
    """Count rounds by length: `by_length_us[n]` took n - 1 to n microseconds. `beyond_us`: time of
    those in the last bucket beyond it."""

    by_length_us: Mapping[int, int]
    beyond_us: float
    max_us: int
    duration_s: float


def readings(text: str, where: str, source: str) -> Iterator[Reading]:
    """Yield every metric of a report. Raises BrokenError naming `where`."""
    threads = _threads(text, where)
    stalls = [
        (length_us, count)
        for thread in threads
        for length_us, count in thread.by_length_us.items()
        if length_us > STALL_US
    ]
    # Rounds in a bucket are shorter by up to 1 us than its name says.
    total_us = sum((length_us - 0.5) * count for length_us, count in stalls)
    total_us += sum(thread.beyond_us for thread in threads)
    duration_s = sum(thread.duration_s for thread in threads) / len(threads)
    yield sample("noise", total_us * MICROSECOND_S / duration_s, source=source)
    yield sample("stalls", sum(count for _, count in stalls), source=source)
    yield sample("latency_max", _longest_us(threads) * MICROSECOND_S, source=source)


def _longest_us(threads: list[BusyThread]) -> int:
    return max(thread.max_us for thread in threads)


def _threads(text: str, where: str) -> list[BusyThread]:
    try:
        report = parse_json(text)
        if report["return_code"] != 0:
            raise BrokenError(f"{where}: oslat ended with status {report['return_code']}")
        threads = [_thread(entry) for entry in report["thread"].values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenError(
            f"{where}: expected oslat's JSON (file_version 1) with a histogram per thread, found "
            f"something else ({error!r})"
        ) from error
    if not threads:
        raise BrokenError(f"{where}: oslat ran no thread")
    return threads


def _thread(entry: Mapping[str, Any]) -> BusyThread:
    by_length = {int(length): int(count) for length, count in entry["histogram"].items()}
    rounds = sum(by_length.values())
    duration_s = float(entry["duration"])
    if not rounds or min(by_length.values()) < 0 or min(by_length) < 1 or not duration_s > 0:
        raise ValueError(f"{rounds} rounds in {duration_s} s")
    # Its average includes what the last bucket does not (oslat.c, calculate()).
    told = sum(length * count for length, count in by_length.items())
    beyond_us = float(entry["avg"]) * rounds - told
    return BusyThread(
        by_length_us=by_length,
        beyond_us=max(0.0, beyond_us) if max(by_length) == BUCKETS else 0.0,
        max_us=int(entry["max"]),
        duration_s=duration_s,
    )
