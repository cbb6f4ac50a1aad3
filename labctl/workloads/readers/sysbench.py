"""Read the common output of sysbench's tests: events, times, and a histogram of latencies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from labctl.base.errors import BrokenError
from labctl.store.samples import Reading, sample
from labctl.workloads.histogram import Bin, histogram, latency_readings
from labctl.workloads.windows import RateWindow, batch_errors

WINDOW_S = 1

# sysbench 1.0 sorts latencies into 1024 bins from 1 us to 100 s of equal logarithmic width and
# prints their middles (src/sb_timer.c, src/sb_histogram.c), rounded to 1 us.
BIN_LOG_WIDTH = math.log(100_000 / 0.001) / 1023
PRINTED_STEP_S = 1e-6

_EVENTS = re.compile(r"^\s*total number of events:\s+(\d+)\s*$", re.M)
_RATE = re.compile(r"^\s*events per second:\s+([\d.]+)\s*$", re.M)
# sysbench 1.1 uses another label.
_SECONDS = re.compile(r"^\s*(?:total time|time elapsed):\s+([\d.]+)s\s*$", re.M)
_MAXIMUM_MS = re.compile(r"^Latency \(ms\):\n(?:.*\n)*?\s*max:\s+([\d.]+)[ \t]*\n", re.M)
_BIN = re.compile(r"^\s*([\d.]+) \|\**\s+(\d+)\s*$", re.M)
# Events or transactions per second, or the data that the memory test moved.
_WINDOW = re.compile(r"^\[ \d+s \] (?:thds: \d+ [et]ps: )?(\d+\.\d+)(?: MiB/sec|\s)", re.M)


def readings(text: str, where: str, source: str, rate: float) -> Iterator[Reading]:
    """Yield every metric of an output whose `rate` in events per second was read before.

    Raises BrokenError if it is not a complete output with --histogram=on.
    """
    events = int(number(_EVENTS, text, where, "a line 'total number of events:'"))
    yield sample("events_per_s", rate, source=source)
    yield sample("operations", float(events), source=source)
    latencies = histogram((_bin(m) for m in _BIN.finditer(text)), source=source)
    if latencies.count != events:
        raise BrokenError(
            f"{where}: sysbench counted {events} events and its histogram holds "
            f"{latencies.count}; expected the whole output of a run with --histogram=on"
        )
    maximum_ms = number(_MAXIMUM_MS, text, where, "a line 'max:' under 'Latency (ms):'")
    yield from latency_readings(latencies, maximum_ms / 1000)
    windows = [RateWindow(WINDOW_S, float(found[1])) for found in _WINDOW.finditer(text)]
    yield from batch_errors(windows, "events_per_s", source)


def event_rate(text: str, where: str) -> float:
    """Return events per second of a test whose events may be long: sysbench prints two decimals,
    and its total time runs to the end of the last event that began in time."""
    events = number(_EVENTS, text, where, "a line 'total number of events:'")
    seconds = number(_SECONDS, text, where, "a line 'total time:'")
    if seconds <= 0:
        raise BrokenError(f"{where}: sysbench's total time is {seconds} s")
    return events / seconds


def printed_rate(text: str, where: str) -> float:
    """Return events per second as sysbench prints them, of a test whose events are short."""
    return number(_RATE, text, where, "a line 'events per second:'")


def _bin(match: re.Match[str]) -> Bin:
    middle_s = float(match[1]) / 1000
    width_s = 2 * math.sinh(BIN_LOG_WIDTH / 2) * middle_s
    # A value printed as 0.000 lies below half a microsecond.
    return Bin(max(middle_s, PRINTED_STEP_S / 2), max(width_s, PRINTED_STEP_S), int(match[2]))


def number(pattern: re.Pattern[str], text: str, where: str, expected: str) -> float:
    """Return the number that `pattern` finds; raises BrokenError naming `where` and what was
    `expected`."""
    match = pattern.search(text)
    try:
        if match is not None:
            return float(match[1])
    except ValueError:
        pass
    raise BrokenError(f"{where}: expected {expected} from sysbench, found none")
