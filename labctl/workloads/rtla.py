"""Build and parse rtla's histograms (rtla timerlat hist, rtla osnoise hist)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.workloads.histogram import Bin, Histogram, histogram
from labctl.workloads.workload import IntegerParameter, Setting

BINARY = "/usr/bin/rtla"
STDOUT = "stdout.txt"
PLACES_ITSELF = True
"""Newer versions leave the CPUs that they watch for others, where there are others
(auto_house_keeping() in tools/tracing/rtla)."""
MICROSECOND_S = 1e-6

HISTOGRAM_US = IntegerParameter(
    name="histogram_us",
    default=60_000,
    minimum=256,
    maximum=1_000_000,
    description="the longest time with a bucket of its own",
)
"""Longer than the stalls of real-time throttling (50 ms), and no longer: at its end rtla goes
through a row for each microsecond, inside of the measured window."""

_HEADER = re.compile(
    r"# RTLA (?P<tool>\w+) histogram\s*\n"
    r"# Time unit is microseconds \(us\)\s*\n"
    r"# Duration: +(?P<days>\d+) (?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)\s*\n"
    r"Index(?P<columns>[^\n]*)\n"
)
_MISSED = re.compile(
    r"^.*\d.* events missed, .*$|^unknown number of events missed, .*$", re.MULTILINE
)
"""Line with the number of events that its buffers had no room for, since 6.15."""
_NONE = "-"
"""Placeholder for the least, the average and the longest of nothing."""


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


def command(tool: str, setting: Setting, seconds: int, option: str) -> Command:
    """Return the command `rtla TOOL hist` for so long; rtla takes no less than a second."""
    return Command(
        argv=(
            BINARY,
            tool,
            "hist",
            # All CPUs of the machine otherwise: natively those are more than the guest has.
            f"--cpus={setting.cpu_list}",
            option,
            f"--duration={seconds}",
            f"--entries={setting.parameters['histogram_us']}",
        )
    )


def read(text: str, tool: str, where: str) -> Report:
    """Raise BrokenError when it is no whole histogram of that tool in buckets of a microsecond."""
    header = _HEADER.search(text)
    if header is None or header["tool"] != tool:
        raise BrokenError(f"{where}: expected the histogram of 'rtla {tool} hist', found none")
    if missed := _MISSED.search(text):
        raise BrokenError(f"{where}: 'rtla {tool} hist' says: {missed[0].strip()}")
    names = header["columns"].split()
    rows: dict[int, list[int]] = {}
    summary: dict[str, list[int]] = {}
    try:
        for line in text[header.end() :].splitlines(keepends=True):
            if not line.endswith("\n"):
                raise ValueError("its last line is cut")
            first, *values = line.split()
            # Where no CPU had anything, newer versions of rtla write a 0 in place of nothing.
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
            f"{where}: expected the whole histogram of 'rtla {tool} hist', found another ({error})"
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
        # Of wider buckets (--bucket-size) only the begin is told.
        raise ValueError(f"{name} has {told_us} us in its last row and {column.maximum_us} at most")
    return column


def together(
    columns: Iterable[CpuHistogram], source: str, labels: Mapping[str, str] | None = None
) -> Histogram:
    """Return the histogram of several CPUs. rtla cuts to whole microseconds: 7 is 7 to 8."""
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
