"""Parse `perf kvm stat report` and `perf kvm stat live`: VM exits by reason.

The tables are those of print_result in tools/perf/builtin-kvm.c, or of its browser on a terminal
(since perf 6.4). An exit lasts from its kvm_exit to the next kvm_entry of that vCPU, so that HLT's
time is idle time and halt polling.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from labctl.base.errors import BrokenError
from labctl.collect.exits.bpf_exits import Counted
from labctl.collect.known import MissingReadingError
from labctl.store.trial import TrialFolder
from labctl.trace.model import TO_QEMU, Trace
from labctl.trace.perf.perfdata import read_trace
from labctl.trace.vm_exits import WANTED, seen_by_perf, vm_exits

VM_EXITS = "VM-EXIT"
"""`what` of a table of exits; other tables count MMIO accesses, port accesses, hypercalls."""

_HEADER = "Analyze events for "
_WHOLE = r"(\d{1,18})"
_NUMBER = r"(\d{1,18}(?:\.\d{1,18})?)"
_TIME = rf"{_NUMBER}\s*(ns|us|ms|s)"
# A reason may contain a space: "PF excp". If the total time is 0, perf prints "-nan%".
_COUNTS = rf"(\S.*?)\s+{_WHOLE}\s+{_NUMBER}%\s+(?:{_NUMBER}|-?nan)%"
_DEVIATION = r"(?:\s+\(\s*\+-\s*(?:\d+\.\d+|-?nan)%\s*\))?"
_ROWS = {
    "Samples% Time% Min Time Max Time Avg time": re.compile(
        rf"{_COUNTS}\s+{_TIME}\s+{_TIME}\s+{_TIME}{_DEVIATION}"
    ),
    # Before Linux 3.12.
    "Samples% Time% Avg time": re.compile(rf"{_COUNTS}()()()()\s+{_TIME}{_DEVIATION}"),
}
"""Rows by the columns after those of the name and of the samples."""
_BROWSER = "Event name"
_BROWSER_COLUMN = re.compile(
    r"Samples|Sample%|Time%|(?:Max |Min |Mean )?Time ?\(ns\)|(?P<unknown>\S+)"
)
_BROWSER_CELL = re.compile(r"\d{1,18}|\d{1,3}\.\d\d%")
_BROWSER_NEEDS = {"Samples", "Sample%", "Time(ns)"}
_RULE = re.compile(r"-[- ]+")
_TOTAL = re.compile(rf"Total Samples:\s*{_WHOLE}, Total events handled time:\s*{_TIME}\.?")
_LOST = re.compile(rf"Lost events:\s*{_WHOLE}")
_CLOCK = re.compile(r"\d\d:\d\d:\d\d\.\d+")
# perf's messages beside its tables: codes that it has no name for (their row says UNKNOWN), lost
# events, its own files.
_BESIDE = re.compile(
    r"unknown kvm exit code:.*|Warning:|Processed \d+ events.*|Check IO/CPU overload!|\[ perf .*"
)
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""`live` clears the screen before each table."""

_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_HALF_DIGIT = 0.005
"""perf rounds every figure to two decimals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Count exits of one kind. Shares are of 1; `time_ns` is their total time, `average_ns` the
    time of each. None: this perf does not report it."""

    name: str
    samples: int
    samples_share: float
    time_share: float | None
    min_ns: float | None
    max_ns: float | None
    average_ns: float
    time_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Hold one table. In perf's words, `of` owns the exits, and `what` is counted. `time_ns`:
    perf's total."""

    of: str
    what: str
    reasons: tuple[Reason, ...]
    samples: int
    time_ns: float
    lost: int = 0
    """Events lost because perf's buffers were full."""


def read_reports(text: str, where: str) -> list[Report]:
    """Return the tables in perf's output: one of `report`, one per frame of `live`.

    Raises BrokenError naming `where` and the line if it is not a complete table: a table must have
    its total, and its rows must add up to it. A browser's table has no total: each row's share must
    be that of its samples.
    """
    reports: list[Report] = []
    lines = _Lines(text, where)
    for number, line in lines:
        if line.startswith(_HEADER):
            reports.append(_table(lines, line.removeprefix(_HEADER).rstrip(":")))
        elif line.startswith(_BROWSER):
            reports.append(_browser_table(lines, number, line))
        elif (lost := _LOST.fullmatch(line)) and reports:
            reports[-1] = replace(reports[-1], lost=int(lost[1]))
        elif not _CLOCK.fullmatch(line):
            raise lines.error(number, f"'{_HEADER}...'", line)
    if not reports:
        raise BrokenError(f"{where}: expected perf kvm stat's table, found none")
    return reports


def disagreement(report: Report, counted: Sequence[tuple[int, int]]) -> str | None:
    """Return the difference between a table and these exits, each kind's number and time in ns;
    None if they agree. Kinds have no names here, because perf and the kernel may name them
    differently."""
    table = sorted(((reason.samples, reason.time_ns) for reason in report.reasons), reverse=True)
    pairs = zip_longest(table, sorted(counted, reverse=True), fillvalue=(0, 0))
    for (samples, time_ns), (count, ns) in pairs:
        if samples != count:
            return f"exits of one kind are {samples} by its table and {count} by the file"
        if abs(time_ns - ns) > _rounding_ns(samples):
            return f"{samples} exits took {time_ns:.0f} ns by its table and {ns} ns by the file"
    return None


class _Lines:
    """Lines with their numbers, without those that are not about exits."""

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        stripped = (_CONTROL.sub("", line).strip() for line in text.splitlines())
        self._lines = iter(
            [
                (number, line)
                for number, line in enumerate(stripped, 1)
                if line and not _BESIDE.fullmatch(line)
            ]
        )

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return self._lines

    def error(self, number: int, expected: str, found: str) -> BrokenError:
        return BrokenError(
            f"{self.where}, line {number}: expected {expected} of perf kvm stat, found "
            f"{found[:120]!r}"
        )


def _table(lines: _Lines, of: str) -> Report:
    reasons: list[Reason] = []
    what, pattern = "", None
    for number, line in lines:
        if pattern is None:
            what, _, columns = " ".join(line.split()).partition(" Samples ")
            pattern = _ROWS.get(columns)
            if pattern is None:
                raise lines.error(number, f"the columns Samples {next(iter(_ROWS))}", line)
        elif total := _TOTAL.fullmatch(line):
            report = Report(
                of=of,
                what=what,
                reasons=tuple(reasons),
                samples=int(total[1]),
                time_ns=_ns(total[2], total[3]),
            )
            if problem := _disagreement(report):
                raise lines.error(number, f"a total of its rows ({problem})", line)
            return report
        elif row := pattern.fullmatch(line):
            reasons.append(_reason(row))
        else:
            raise lines.error(number, "a row or a total", line)
    raise BrokenError(f"{lines.where}: expected a line 'Total Samples:', found the end of the file")


def _reason(row: re.Match[str]) -> Reason:
    samples, average_ns = int(row[2]), _ns(row[9], row[10])
    return Reason(
        name=row[1],
        samples=samples,
        samples_share=float(row[3]) / 100,
        time_share=float(row[4]) / 100 if row[4] else None,
        min_ns=_ns(row[5], row[6]) if row[5] else None,
        max_ns=_ns(row[7], row[8]) if row[7] else None,
        average_ns=average_ns,
        time_ns=average_ns * samples,
    )


def _ns(number: str, unit: str) -> float:
    return float(number) * _NS[unit]


def _disagreement(report: Report) -> str | None:
    """Return the inconsistencies beyond perf's rounding."""
    samples = sum(reason.samples for reason in report.reasons)
    if samples != report.samples:
        return f"its rows have {samples} samples"
    for reason in report.reasons:
        share = reason.samples / report.samples if report.samples else 0.0
        if not math.isclose(100 * share, 100 * reason.samples_share, abs_tol=2 * _HALF_DIGIT):
            return f"{reason.name} has {100 * share:.2f} % of the samples"
    time_ns = sum(reason.time_ns for reason in report.reasons)
    if abs(time_ns - report.time_ns) > max(_rounding_ns(report.samples), 0.001 * report.time_ns):
        return f"its rows take {time_ns / 1000:.2f}us"
    return None


def _rounding_ns(samples: int) -> float:
    """Return the rounding error of so many times an average, in the unit that perf printed it in:
    at most a microsecond."""
    return _HALF_DIGIT * _NS["us"] * (samples + 2)


def _browser_table(lines: _Lines, header_at: int, header: str) -> Report:
    found = list(_BROWSER_COLUMN.finditer(header.removeprefix(_BROWSER)))
    columns = [column[0].replace(" (", "(") for column in found]
    if any(column["unknown"] for column in found) or not set(columns) >= _BROWSER_NEEDS:
        raise lines.error(header_at, "the columns Samples, Sample% and Time (ns)", header)
    reasons: list[Reason] = []
    numbers: list[int] = []
    for number, line in lines:
        if _RULE.fullmatch(line) and not reasons:
            continue
        try:
            reasons.append(_browser_reason(columns, line))
        except ValueError:
            raise lines.error(number, f"a row of {', '.join(columns)}", line) from None
        numbers.append(number)
    if not reasons:
        raise BrokenError(f"{lines.where}: expected a row below '{_BROWSER}', found the end")
    samples = sum(reason.samples for reason in reasons)
    for number, reason in zip(numbers, reasons, strict=True):
        # perf truncates shares to whole percents.
        if reason.samples * 100 // samples != round(100 * reason.samples_share):
            raise lines.error(number, "the share of its samples", f"{reason.samples_share:.0%}")
    return Report(
        of="",
        what=_BROWSER,
        reasons=tuple(reasons),
        samples=samples,
        time_ns=sum(reason.time_ns for reason in reasons),
    )


def _browser_reason(columns: list[str], line: str) -> Reason:
    """Raise ValueError."""
    name, *cells = line.rsplit(maxsplit=len(columns))
    if any(_BROWSER_CELL.fullmatch(cell) is None for cell in cells):
        raise ValueError(line)
    told = {
        column: float(cell.removesuffix("%")) if column.endswith("%") else int(cell)
        for column, cell in zip(columns, cells, strict=True)
    }
    samples, time_ns = int(told["Samples"]), told["Time(ns)"]
    if samples == 0 or told["Sample%"] > 100:
        raise ValueError(line)
    time_share = told.get("Time%")
    return Reason(
        name=name,
        samples=samples,
        samples_share=told["Sample%"] / 100,
        time_share=None if time_share is None else time_share / 100,
        min_ns=told.get("Min Time(ns)"),
        max_ns=told.get("Max Time(ns)"),
        average_ns=time_ns / samples,
        time_ns=time_ns,
    )


# Count VM exits in the window from what perf recorded around a trial.
#
# perf is enabled before the window and disabled after it, which may take long on a busy host.
# labctl's reading of the whole file is checked against perf's own table before a part of it is cut
# out.


RAW = "trace/perf.data.guest"
REPORT = "trace/exits.perf-kvm-stat.txt"
"""Output of `perf kvm stat report` for RAW."""


def read_counts(raw: TrialFolder, opened_ns: int, closed_ns: int) -> Counted:
    """Return the counts of a window between two times of CLOCK_MONOTONIC.

    Raises MissingReadingError if RAW does not cover it, or perf's table disagrees; BrokenError
    naming REPORT if that is not perf's table.
    """
    report = _vm_exits(raw.read_text(REPORT), str(raw.path / REPORT))
    trace = _trace(raw)
    if lost := trace.lost + report.lost:
        raise MissingReadingError(f"perf lost {lost} events: its buffers were full.")
    whole = seen_by_perf(trace)
    if problem := disagreement(report, [(took.ended, took.ns) for took in whole.values()]):
        raise MissingReadingError(
            f"labctl reads perf's recording differently from perf: {problem}."
        )
    by_thread = {
        tid: exits.within(opened_ns, closed_ns).by_code() for tid, exits in vm_exits(trace).items()
    }
    took = {(tid, *key): took for tid, kinds in by_thread.items() for key, took in kinds.items()}
    return Counted(
        seconds=(closed_ns - opened_ns) / 1e9,
        exits={key: one.exits for key, one in took.items()},
        ns={key: one.ns for key, one in took.items() if one.ended},
        userspace=_returns(trace, opened_ns, closed_ns),
    )


def _trace(raw: TrialFolder) -> Trace:
    path = str(raw.path / RAW)
    try:
        trace = read_trace(raw.path / RAW, {**WANTED, TO_QEMU: ("reason", "errno")})
    except BrokenError as error:
        raise MissingReadingError(f"{error.message.replace(path, RAW)}.") from error
    if trace.problems:
        raise MissingReadingError(trace.problems[0].replace(path, RAW))
    return trace


def _vm_exits(text: str, where: str) -> Report:
    """Return a report's only table; perf has others for MMIO and ports, whose times are parts of
    the exits' times."""
    reports = read_reports(text, where)
    if [report.what for report in reports] != [VM_EXITS]:
        found = ", ".join(report.what for report in reports)
        raise BrokenError(f"{where}: expected one table of {VM_EXITS}, found {found}")
    return reports[0]


def _returns(trace: Trace, opened_ns: int, closed_ns: int) -> dict[tuple[int, int, int], int]:
    returns = trace.events[TO_QEMU]
    own = slice(*np.searchsorted(returns.time_ns, (opened_ns, closed_ns)).tolist())
    columns = (returns.tid, returns.fields["reason"], returns.fields["errno"])
    return dict(Counter(zip(*(column[own].tolist() for column in columns), strict=True)))
