"""`perf kvm stat report` and `perf kvm stat live`: VM exits by reason.

The tables are print_result's of tools/perf/builtin-kvm.c. perf takes an exit from its kvm_exit to
the next kvm_entry of that vCPU, so that HLT's time is idleness and halt polling.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from labctl.base.errors import BrokenError

_HEADER = "Analyze events for "
_COLUMNS = ("Samples", "Samples%", "Time%", "Min Time", "Max Time", "Avg time")
_NUMBER = r"(\d+(?:\.\d+)?)"
_TIME = rf"{_NUMBER}\s*(ns|us|ms|s)"
# A reason may have a space in it: "PF excp".
_ROW = re.compile(
    rf"(\S.*?)\s+(\d+)\s+{_NUMBER}%\s+{_NUMBER}%\s+{_TIME}\s+{_TIME}\s+{_TIME}"
    rf"(?:\s+\(\s*\+-\s*{_NUMBER}%\s*\))?"
)
_TOTAL = re.compile(rf"Total Samples:\s*(\d+), Total events handled time:\s*{_TIME}\.?")
_LOST = re.compile(r"Lost events:\s*(\d+)")
_CLOCK = re.compile(r"\d\d:\d\d:\d\d\.\d+")
# What perf says beside its tables: of codes that it has no name for (their row says UNKNOWN), of
# events that were lost, of its own files.
_BESIDE = re.compile(
    r"unknown kvm exit code:.*|Warning:|Processed \d+ events.*|Check IO/CPU overload!|\[ perf .*"
)

_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_HALF_DIGIT = 0.005
"""perf rounds every figure to two decimals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Exits of one kind. Shares are of 1; `time_ns` is all of them, `average_ns` each."""

    name: str
    samples: int
    samples_share: float
    time_share: float
    min_ns: float
    max_ns: float
    average_ns: float

    @property
    def time_ns(self) -> float:
        return self.average_ns * self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One table. `of`: whose exits these are, in perf's words. `time_ns`: perf's total."""

    of: str
    reasons: tuple[Reason, ...]
    samples: int
    time_ns: float
    lost: int = 0
    """Events that perf's buffers had no room for."""


def read_reports(text: str, where: str) -> list[Report]:
    """The tables that perf printed: one of `report`, one per frame of `live`.

    Raises BrokenError naming `where` and the line for what isn't such a table, or not all of it: a
    table must have its total, and its rows must add up to it.
    """
    reports: list[Report] = []
    lines = _Lines(text, where)
    for number, line in lines:
        if line.startswith(_HEADER):
            reports.append(_table(lines, line.removeprefix(_HEADER).rstrip(":")))
        elif (lost := _LOST.fullmatch(line)) and reports:
            reports[-1] = replace(reports[-1], lost=int(lost[1]))
        elif not _CLOCK.fullmatch(line):
            raise lines.error(number, f"'{_HEADER}...'", line)
    if not reports:
        raise BrokenError(f"{where}: expected perf kvm stat's table, found none")
    return reports


class _Lines:
    """Lines with their numbers, without what says nothing about exits."""

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self._lines = iter(
            [
                (number, line.strip())
                for number, line in enumerate(text.splitlines(), 1)
                if line.strip() and not _BESIDE.fullmatch(line.strip())
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
    has_columns = False
    for number, line in lines:
        if not has_columns:
            if not " ".join(line.split()).endswith(" ".join(_COLUMNS)):
                raise lines.error(number, f"the columns {', '.join(_COLUMNS)}", line)
            has_columns = True
        elif total := _TOTAL.fullmatch(line):
            report = Report(
                of=of,
                reasons=tuple(reasons),
                samples=int(total[1]),
                time_ns=_ns(total[2], total[3]),
            )
            if problem := _disagreement(report):
                raise lines.error(number, f"a total of its rows ({problem})", line)
            return report
        elif row := _ROW.fullmatch(line):
            reasons.append(_reason(row))
        else:
            raise lines.error(number, "a row or a total", line)
    raise BrokenError(f"{lines.where}: expected a line 'Total Samples:', found the end of the file")


def _reason(row: re.Match[str]) -> Reason:
    return Reason(
        name=row[1],
        samples=int(row[2]),
        samples_share=float(row[3]) / 100,
        time_share=float(row[4]) / 100,
        min_ns=_ns(row[5], row[6]),
        max_ns=_ns(row[7], row[8]),
        average_ns=_ns(row[9], row[10]),
    )


def _ns(number: str, unit: str) -> float:
    return float(number) * _NS[unit]


def _disagreement(report: Report) -> str | None:
    """What doesn't fit together, beyond perf's rounding."""
    samples = sum(reason.samples for reason in report.reasons)
    if samples != report.samples:
        return f"its rows have {samples} samples"
    for reason in report.reasons:
        share = reason.samples / report.samples if report.samples else 0.0
        if not math.isclose(100 * share, 100 * reason.samples_share, abs_tol=2 * _HALF_DIGIT):
            return f"{reason.name} has {100 * share:.2f} % of the samples"
    time_ns = sum(reason.time_ns for reason in report.reasons)
    # An average's rounding, in the unit that perf printed it in: at most a microsecond.
    rounding_ns = _HALF_DIGIT * _NS["us"] * (report.samples + 2)
    if abs(time_ns - report.time_ns) > max(rounding_ns, 0.001 * report.time_ns):
        return f"its rows take {time_ns / 1000:.2f}us"
    return None
