"""Count VM exits in the window from what perf recorded around a trial.

perf is switched on before the window and off after it, which may take long on a busy host. Its own
table, of the whole file, is what labctl's reading of that file is checked against before a part of
it is cut out.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from labctl.base.errors import BrokenError
from labctl.collect.exits.bpf_exits import Counted
from labctl.collect.exits.perf_kvm_stat import VM_EXITS, Report, disagreement, read_reports
from labctl.collect.known import MissingReadingError
from labctl.store.trial import TrialFolder
from labctl.trace.model import Trace
from labctl.trace.perf.perfdata import read_trace
from labctl.trace.tracepoints import TO_QEMU
from labctl.trace.vm_exits import WANTED, seen_by_perf, vm_exits

RAW = "trace/perf.data.guest"
REPORT = "trace/exits.perf-kvm-stat.txt"
"""Output of `perf kvm stat report` for RAW."""


def read_counts(raw: TrialFolder, opened_ns: int, closed_ns: int) -> Counted:
    """Return the counts of a window between two moments of CLOCK_MONOTONIC.

    Raises MissingReadingError where RAW doesn't hold all of it, or perf makes something else of it;
    BrokenError naming REPORT where that isn't perf's table.
    """
    report = _vm_exits(raw.read_text(REPORT), str(raw.path / REPORT))
    trace = _trace(raw)
    if lost := trace.lost + report.lost:
        raise MissingReadingError(f"perf lost {lost} events: its buffers were full.")
    whole = seen_by_perf(trace)
    if problem := disagreement(report, [(took.ended, took.ns) for took in whole.values()]):
        raise MissingReadingError(
            f"of what perf recorded labctl reads something else than perf does: {problem}."
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
    """Return a report's only table; perf has others of MMIO and of ports, whose times are parts of
    the exits'."""
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
