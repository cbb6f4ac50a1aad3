"""Read fio's JSON (json+ of one job, with its bins) and its log of windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labctl.base.errors import BrokenError
from labctl.base.json import parse_json
from labctl.store.samples import Reading, sample
from labctl.workloads.histogram import Bin, histogram, latency_readings
from labctl.workloads.windows import RateWindow, batch_errors

_SAME_WINDOW_MS = 20

# fio's latency bins: 64 per power of two from 128 ns on, 1 ns below; JSON+ names a bin by its
# middle (FIO_IO_U_PLAT_BITS in stat.h, plat_idx_to_val in stat.c).
PLAT_BITS = 6


@dataclass(frozen=True, slots=True)
class Report:
    """Hold fio's results: its JSON, `where` it lies for errors, and its log of windows, None if it
    has none."""

    text: str
    where: str
    source: str
    log: str | None
    log_source: str


def random(report: Report) -> Iterator[Reading]:
    """Yield every metric of reads and writes. Raises BrokenError naming the report."""
    where, source = report.where, report.source
    job = read_job(report.text, where)
    done = {d: number(job, where, d, "total_ios") for d in ("read", "write")}
    directions = [direction for direction, count in done.items() if count > 0]
    if not directions:
        raise BrokenError(f"{where}: fio did no I/O")
    yield sample("operations", sum(done.values()), source=source)
    for name, key in (("iops", "iops"), ("bandwidth", "bw_bytes")):
        values = {d: number(job, where, d, key) for d in directions}
        yield sample(name, sum(values.values()), source=source)
        if len(directions) > 1:
            for direction, value in values.items():
                yield sample(name, value, source=source, labels={"op": direction})
    for direction in directions:
        labels = {"op": direction} if len(directions) > 1 else {}
        yield from latency(job, where, direction, "clat_ns", labels, source)
    if number(job, where, "sync", "total_ios") > 0:
        yield from latency(job, where, "sync", "lat_ns", {"op": "fsync"}, source)
    yield from errors(report)


def flushes(report: Report) -> Iterator[Reading]:
    """Yield every metric of writes that are flushed. Raises BrokenError naming the report."""
    where, source = report.where, report.source
    job = read_job(report.text, where)
    writes = number(job, where, "write", "total_ios")
    # 'sync.total_ios' counts every fsync and no fdatasync.
    if writes <= 0 or number(job, where, "sync", "lat_ns", "N") <= 0:
        raise BrokenError(f"{where}: expected writes and flushes from fio, found none")
    yield sample("iops", number(job, where, "write", "iops"), source=source)
    yield sample("operations", writes, source=source)
    yield from latency(job, where, "sync", "lat_ns", {}, source)
    yield from latency(job, where, "write", "clat_ns", {"op": "write"}, source)
    yield from errors(report)


def errors(report: Report) -> Iterator[Reading]:
    """Yield the estimated errors of a run's `iops`, if fio logged enough windows."""
    if report.log is None:
        return
    windows, begun_ms = [], 0
    for end_ms, rate in logged(report.log, report.log_source).items():
        seconds = (end_ms - begun_ms) / 1000
        windows.append(RateWindow(seconds, rate * seconds))
        begun_ms = end_ms
    yield from batch_errors(windows, "iops", report.log_source)


def logged(text: str, where: str) -> dict[int, float]:
    """Return the requests per second of each window by its end in ms.

    fio(1), "LOG FILE FORMATS": time (ms), value, direction, …, a line for each direction and
    window.
    """
    rates: dict[int, float] = {}
    ends: dict[int, int] = {}  # by windows, in steps of 20 ms: a guest may have written millions
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 3 or not all(f.isdecimal() and len(f) < 16 for f in fields[:3]):
            raise BrokenError(f"{where}: expected 'time, value, direction' of fio, found {line!r}")
        time_ms, rate = int(fields[0]), float(fields[1])
        # The directions of one window end within a millisecond or two of each other.
        place = time_ms // _SAME_WINDOW_MS
        near = (ends.get(place + step, time_ms + _SAME_WINDOW_MS) for step in (-1, 0, 1))
        window = next((t for t in near if abs(t - time_ms) < _SAME_WINDOW_MS), time_ms)
        ends[window // _SAME_WINDOW_MS] = window
        rates[window] = rates.get(window, 0.0) + rate
    return rates


def whole_rate(text: str, where: str) -> float:
    """Return the rate of a whole run: a guest that ran for less than a window at a time logs none.
    Raises BrokenError for a run without I/O."""
    job = read_job(text, where)
    rate = sum(number(job, where, direction, "iops") for direction in ("read", "write"))
    if rate <= 0:
        raise BrokenError(f"{where}: fio did no I/O")
    return rate


def read_job(text: str, where: str) -> Mapping[str, object]:
    """Return the only job of a report; raises BrokenError if it failed, or if there is another."""
    # fio writes its notes and warnings into the same file, before the JSON.
    start = max(0, text.find("{"))
    try:
        report = parse_json(text[start:])
        (job,) = report["jobs"]
        error = job["error"]
    except (ValueError, KeyError, TypeError) as problem:
        raise BrokenError(
            f"{where}: expected the JSON of one fio job, found something else ({problem})"
        ) from problem
    if error != 0:
        said = text[:start].strip() or "no message"
        raise BrokenError(f"{where}: fio's job ended with error {error} ({said})")
    if not isinstance(job, dict):
        raise BrokenError(f"{where}: expected a fio job, found {job!r}")
    return job


def number(job: Mapping[str, object], where: str, *keys: str) -> float:
    value = _node(job, where, *keys)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenError(f"{where}: expected a number at '{'.'.join(keys)}', found {value!r}")
    return float(value)


def _node(job: Mapping[str, object], where: str, *keys: str) -> Any:
    node: Any = job
    for key in keys:
        if not isinstance(node, dict) or key not in node:
            raise BrokenError(f"{where}: expected '{'.'.join(keys)}' in fio's job, found none")
        node = node[key]
    return node


def latency(
    job: Mapping[str, object],
    where: str,
    section: str,
    kind: str,
    labels: Mapping[str, str],
    source: str,
) -> Iterator[Reading]:
    bins = _node(job, where, section, kind, "bins")
    try:
        found = [latency_bin(int(middle), int(count)) for middle, count in bins.items()]
    except (AttributeError, TypeError, ValueError) as error:
        raise BrokenError(f"{where}: expected latency bins at '{section}.{kind}.bins'") from error
    latencies = histogram(found, source=source, labels=labels)
    total = int(number(job, where, section, kind, "N"))
    if latencies.count != total:
        raise BrokenError(
            f"{where}: '{section}.{kind}' has {total} samples, but its bins have {latencies.count}"
        )
    maximum_s = number(job, where, section, kind, "max") / 1e9
    yield from latency_readings(latencies, maximum_s)


def latency_bin(middle_ns: int, count: int) -> Bin:
    exact_below = 1 << (PLAT_BITS + 1)
    width_ns = 1 if middle_ns < exact_below else 1 << (middle_ns.bit_length() - PLAT_BITS - 1)
    return Bin(max(middle_ns, 0.5) / 1e9, width_ns / 1e9, count)
