"""Read sockperf's log of round trips (ping-pong --full-rtt --full-log)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from labctl.base.errors import BrokenError
from labctl.store.samples import Reading, sample
from labctl.workloads.histogram import Bin, histogram, latency_readings

NANOSECOND_S = 1e-9
"""Resolution: sockperf prints microseconds with three decimals."""

CLOCK_SLIP = 0.05
"""Largest relative difference between the TSC and the kernel's clock: latencies would be off by as
much."""

LATE_S = 0.5
"""Time by which a run may end late: it waits for the last answer."""

_COLUMNS = "packet, txTime(sec), rxTime(sec), rtt(usec)"
_VALID = re.compile(
    r"\[Valid Duration\] RunTime=([\d.]+) sec; SentMessages=(\d+); ReceivedMessages=(\d+)$", re.M
)
_RUN = re.compile(r"\[Total Run\] RunTime=([\d.]+) sec;.*$", re.M)
_ASKED = re.compile(r"^test was performed .* --time=(\d+) ", re.M)
_WRONG = re.compile(
    r"# dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)"
)
_ROW = re.compile(r"^(\d+), [\d.]+, [\d.]+, (\d+)\.(\d{3})$")


def readings(text: str, where: str, source: str) -> Iterator[Reading]:
    """Yield every metric of a log. Raises BrokenError naming `where`."""
    seconds, count = _valid(text, where)
    by_time_ns = Counter(_round_trips(text, where))
    if by_time_ns.total() != count:
        raise BrokenError(
            f"{where}: sockperf counted {count} round trips and lists {by_time_ns.total()}"
        )
    yield sample("round_trips", count, source=source)
    yield sample("round_trips_per_s", count / seconds, source=source)
    bins = (Bin(ns * NANOSECOND_S, NANOSECOND_S, n) for ns, n in by_time_ns.items())
    latencies = histogram(bins, source=source)
    yield from latency_readings(latencies, max(by_time_ns) * NANOSECOND_S)


def _valid(text: str, where: str) -> tuple[float, int]:
    """Return seconds and round trips that sockperf counts: without its first 400 ms and last 50
    ms."""
    valid, wrong = _VALID.search(text), _WRONG.search(text)
    run, asked = _RUN.search(text), _ASKED.search(text)
    if valid is None or wrong is None or run is None or asked is None:
        raise BrokenError(
            f"{where}: expected sockperf's log with its '[Valid Duration]' and its count of "
            "dropped messages, found something else"
        )
    # The kernel's timer ends the run, and the TSC measures its length and each round trip's.
    if not -CLOCK_SLIP < float(run[1]) / int(asked[1]) - 1 < CLOCK_SLIP + LATE_S / int(asked[1]):
        raise BrokenError(
            f"{where}: a run of {asked[1]} s took {run[1]} s by the TSC, which sockperf goes by"
        )
    if any(int(count) for count in wrong.groups()):
        raise BrokenError(
            f"{where}: on its own link, sockperf saw {wrong[1]} messages dropped, "
            f"{wrong[2]} duplicated and {wrong[3]} out of order"
        )
    seconds, count = float(valid[1]), int(valid[3])
    if seconds <= 0 or count == 0:
        raise BrokenError(f"{where}: sockperf got no answers")
    return seconds, count


def _round_trips(text: str, where: str) -> Iterator[int]:
    """Nanoseconds of each round trip, in order."""
    _, found, table = text.partition(f"{_COLUMNS}\n")
    if not found:
        raise BrokenError(f"{where}: expected the columns '{_COLUMNS}', found none")
    for number, line in enumerate(table.splitlines()):
        if line.startswith("---"):
            return
        row = _ROW.match(line)
        if row is None or int(row[1]) != number:
            raise BrokenError(f"{where}: expected round trip {number}, found {line[:80]!r}")
        yield int(row[2] + row[3])
    raise BrokenError(f"{where}: sockperf's list of round trips is truncated")
