"""Read cyclictest's JSON: a histogram of wake-ups per thread, and the periods that stalls hid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from labctl.base.errors import BrokenError
from labctl.base.json import parse_json
from labctl.store.samples import Reading, Unavailable, sample
from labctl.workloads import open_loop
from labctl.workloads.histogram import Bin, histogram, latency_readings
from labctl.workloads.open_loop import MICROSECOND_S, MeasuredThread

_INTERVAL = re.compile(r"(?: --interval[ =]| -i ?)(\d{1,9})(?: |$)")
_NO_INTERVAL = "cyclictest's command line has no interval."


def readings(text: str, where: str, source: str) -> Iterator[Reading]:
    """Yield every metric of a report. Raises BrokenError naming `where`."""
    threads, interval_us = read(text, where)
    latencies = histogram(
        (
            # cyclictest truncates to whole microseconds: a latency of 7 is 7 to 8.
            Bin((latency_us + 0.5) * MICROSECOND_S, MICROSECOND_S, count)
            for thread in threads
            for latency_us, count in thread.by_latency_us.items()
        ),
        source=source,
        beyond=sum(thread.beyond for thread in threads),
    )
    yield sample("wakeups", latencies.count, source=source)
    maximum_us = max(thread.max_us for thread in threads)
    yield from latency_readings(latencies, maximum_us * MICROSECOND_S)
    yield _stall_time(threads, interval_us, source)


def periods(text: str, where: str, source: str) -> Iterator[Reading]:
    """Return the latencies of all its periods, including those that it skipped."""
    threads, interval_us = read(text, where)
    if interval_us is None:
        return open_loop.unavailable(_NO_INTERVAL)
    return open_loop.readings(threads, interval_us, source)


def read(text: str, where: str) -> tuple[list[MeasuredThread], int | None]:
    """Return the threads of a report, and the interval in its command line."""
    try:
        report = parse_json(text)
        if report["return_code"] != 0:
            raise BrokenError(f"{where}: cyclictest ended with status {report['return_code']}")
        if report["resolution_in_ns"] != 0:
            raise BrokenError(f"{where}: expected microseconds, found nanoseconds")
        threads = [_thread(entry) for entry in report["thread"].values()]
        interval_us = _interval_us(str(report["cmdline:"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenError(
            f"{where}: expected cyclictest's JSON (file_version 1) with a histogram per thread, "
            f"found something else ({error!r})"
        ) from error
    if not threads or any(sum(t.by_latency_us.values()) + t.beyond == 0 for t in threads):
        raise BrokenError(f"{where}: a thread of cyclictest never woke up")
    return threads, interval_us


def _thread(entry: Mapping[str, Any]) -> MeasuredThread:
    by_latency = {int(latency): int(count) for latency, count in entry["histogram"].items()}
    beyond = int(entry["cycles"]) - sum(by_latency.values())
    if beyond < 0 or min(by_latency.values(), default=1) < 1 or min(by_latency, default=0) < 0:
        raise ValueError(f"{entry['cycles']} cycles, but {sum(by_latency.values())} in its bins")
    max_us = int(entry["max"])
    if max_us < max(by_latency, default=0):
        raise ValueError(f"a maximum of {max_us} us, but a bin of {max(by_latency)} us")
    return MeasuredThread(by_latency, beyond, max_us)


def _interval_us(command_line: str) -> int | None:
    found = _INTERVAL.search(command_line)
    return (int(found[1]) or None) if found else None


def _stall_time(threads: list[MeasuredThread], interval_us: int | None, source: str) -> Reading:
    """Return the sum over all wake-ups of max(0, latency - interval), all threads together (METHOD
    rule 9): cyclictest skips the periods that it missed, so it counts a stall of 50 ms as one
    wake-up."""
    if interval_us is None:
        return Unavailable(metric="stall_time", reason=_NO_INTERVAL)
    total_us = 0
    for thread in threads:
        lengths_us = thread.lengths_us
        if lengths_us is None:
            return Unavailable(metric="stall_time", reason=open_loop.OVERFLOW)
        total_us += sum(max(0, us - interval_us) * count for us, count in lengths_us.items())
    return sample("stall_time", total_us * MICROSECOND_S, source=source)
