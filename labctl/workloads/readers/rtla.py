"""Read rtla's histograms (rtla timerlat hist, rtla osnoise hist)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from labctl.base.errors import BrokenError
from labctl.store.samples import Reading, Unavailable, sample
from labctl.workloads import open_loop
from labctl.workloads.histogram import Bin, Histogram, histogram, latency_readings

MICROSECOND_S = 1e-6

THRESHOLD_US = 5
"""Shortest interruption that counts as noise: the tracer's own default, set explicitly to be the
same everywhere.
"""


_HEADER = re.compile(
    r"# RTLA (?P<tool>\w+) histogram\s*\n"
    r"# Time unit is microseconds \(us\)\s*\n"
    r"# Duration: +(?P<days>\d+) (?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)\s*\n"
    r"Index(?P<columns>[^\n]*)\n"
)
_MISSED = re.compile(
    r"^.*\d.* events missed, .*$|^unknown number of events missed, .*$", re.MULTILINE
)
"""Line with the number of events lost because its buffers were full, since 6.15."""
_NONE = "-"
"""Placeholder for the minimum, average and maximum of nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuHistogram:
    """Hold one CPU's histogram: `by_length_us[n]` of n to n + 1 microseconds, `beyond` those longer
    than its last bucket."""

    name: str
    by_length_us: Mapping[int, int]
    beyond: int
    maximum_us: int

    @property
    def count(self) -> int:
        return sum(self.by_length_us.values()) + self.beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Hold rtla's report. `columns`: of CPUs that counted anything."""

    seconds: int
    columns: tuple[CpuHistogram, ...]


def timerlat(text: str, where: str, source: str) -> Iterator[Reading]:
    """Yield every metric of timerlat's report. Raises BrokenError naming `where`."""
    report = read(text, "timerlat", where)
    for kind, labels in (("Thr-", {}), ("IRQ-", {"part": "irq"})):
        columns = [column for column in report.columns if column.name.startswith(kind)]
        latencies = together(columns, source, labels)
        if not latencies.count:
            raise BrokenError(f"{where}: expected columns '{kind}' with wake-ups, found none")
        if not labels:
            yield sample("wakeups", latencies.count, source=source)
        maximum_us = max(column.maximum_us for column in columns)
        yield from latency_readings(latencies, maximum_us * MICROSECOND_S)


def periods(text: str, where: str, source: str, interval_us: object) -> Iterator[Reading]:
    """Return the latencies of all periods of timerlat's threads, including those that a late thread
    missed."""
    if not isinstance(interval_us, int) or interval_us < 1:
        return open_loop.unavailable("the trial's record has no interval.")
    threads = [
        open_loop.MeasuredThread(column.by_length_us, column.beyond, column.maximum_us)
        for column in read(text, "timerlat", where).columns
        if column.name.startswith("Thr-")
    ]
    return open_loop.readings(threads, interval_us, source)


def osnoise(text: str, where: str, source: str) -> Iterator[Reading]:
    """Yield every metric of osnoise's report. Raises BrokenError naming `where`."""
    report = read(text, "osnoise", where)
    if report.seconds < 1:
        raise BrokenError(f"{where}: expected at least a second of osnoise, got less")
    yield _noise(report, source)
    yield sample("stalls", sum(column.count for column in report.columns), source=source)
    if not report.columns:
        reason = f"nothing kept a CPU's thread from running for {THRESHOLD_US} us."
        yield Unavailable(metric="latency_max", reason=reason)
        return
    longest_us = max(column.maximum_us for column in report.columns)
    yield sample("latency_max", longest_us * MICROSECOND_S, source=source)


def _noise(report: Report, source: str) -> Reading:
    """Return the noise in CPU seconds per second, all CPUs together."""
    total_us = 0.0
    for column in report.columns:
        if column.beyond > 1:
            reason = (
                f"more than one stall of {column.name} was too long for rtla's histogram, "
                "so their lengths are unknown: raise 'histogram_us'."
            )
            return Unavailable(metric="noise", reason=reason)
        total_us += sum((length + 0.5) * count for length, count in column.by_length_us.items())
        # The only one beyond the histogram is the longest of all.
        total_us += column.maximum_us * column.beyond
    return sample("noise", total_us * MICROSECOND_S / report.seconds, source=source)


def read(text: str, tool: str, where: str) -> Report:
    """Return the report; raises BrokenError if it is not a complete histogram of that tool in
    buckets of a microsecond."""
    header = _HEADER.search(text)
    if header is None or header["tool"] != tool:
        raise BrokenError(f"{where}: expected the histogram of 'rtla {tool} hist', found none")
    if missed := _MISSED.search(text):
        raise BrokenError(f"{where}: 'rtla {tool} hist' printed: {missed[0].strip()}")
    names = header["columns"].split()
    rows: dict[int, list[int]] = {}
    summary: dict[str, list[int]] = {}
    try:
        for line in text[header.end() :].splitlines(keepends=True):
            if not line.endswith("\n"):
                raise ValueError("its last line is cut")
            first, *values = line.split()
            # If no CPU counted anything, newer versions of rtla write a 0 instead of the
            # placeholder.
            numbers = [0 if value == _NONE else int(value) for value in values] if names else []
            if len(numbers) != len(names):
                raise ValueError(f"{len(numbers)} values for {len(names)} columns")
            if first.endswith(":"):
                summary[first] = numbers
                if first == "max:":
                    break
            else:
                rows[int(first)] = numbers
        columns = tuple(
            _column(name, {length: row[i] for length, row in rows.items()}, i, summary)
            for i, name in enumerate(names)
        )
        if "max:" not in summary:
            raise ValueError("it ends before its summary")
    except (ValueError, KeyError) as error:
        raise BrokenError(
            f"{where}: expected the complete histogram of 'rtla {tool} hist' ({error})"
        ) from error
    days, hours, minutes, seconds = (
        int(header[part]) for part in ("days", "hours", "minutes", "seconds")
    )
    return Report(
        seconds=((days * 24 + hours) * 60 + minutes) * 60 + seconds,
        columns=columns,
    )


def _column(
    name: str, by_length: Mapping[int, int], at: int, summary: Mapping[str, list[int]]
) -> CpuHistogram:
    column = CpuHistogram(
        name=name,
        by_length_us={length: count for length, count in by_length.items() if count},
        beyond=summary["over:"][at],
        maximum_us=summary["max:"][at],
    )
    if column.count != summary["count:"][at] or min(column.by_length_us.values(), default=1) < 0:
        raise ValueError(
            f"{name} counts {summary['count:'][at]} and its histogram holds {column.count}"
        )
    told_us = max(column.by_length_us, default=0)
    if column.maximum_us < told_us or (column.maximum_us > told_us and not column.beyond):
        # Wider buckets (--bucket-size) would only show their start.
        raise ValueError(f"{name} has {told_us} us in its last row and {column.maximum_us} at most")
    return column


def together(
    columns: Iterable[CpuHistogram], source: str, labels: Mapping[str, str] | None = None
) -> Histogram:
    """Return the histogram of several CPUs. rtla truncates to whole microseconds: 7 is 7 to 8."""
    columns = list(columns)
    return histogram(
        (
            Bin((length_us + 0.5) * MICROSECOND_S, MICROSECOND_S, count)
            for column in columns
            for length_us, count in column.by_length_us.items()
        ),
        source=source,
        beyond=sum(column.beyond for column in columns),
        labels=labels,
    )
