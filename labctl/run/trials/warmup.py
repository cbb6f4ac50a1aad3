"""Warm a machine up with windows of its workload (METHOD rule 6).

A warm-up is over when neither the windows' rates nor, under KVM, the faults on newly touched memory
show a trend. A restore leaves two kinds of those faults. QEMU's main thread writes the saved pages,
so that the host has them, but KVM's own page tables are empty: a vCPU's first touch of each is a
fault that KVM fixes (`pf_fixed`). Pages of zeros are not written at all: their first touch is also
a minor fault of the vCPU thread. Under TCG, which has no page tables of its own, it is only the
minor fault.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from labctl.base.errors import BrokenError
from labctl.base.tuning import Kind
from labctl.collect.exits import kvm_stats
from labctl.collect.threads import page_faults
from labctl.run.guests.bench import Bench
from labctl.run.trials.parse import believable
from labctl.run.trials.request import SLACK_S, TrialRequest
from labctl.workloads.setting import Setting
from labctl.workloads.workload import Workload

WINDOW_S = 0.1
"""Length of a warm-up window."""

WINDOWS = 3
"""Minimum number of windows for the rule."""

SLOPE_LIMIT = 0.01
"""Limit on the relative change of the rate per window."""

SCATTER_LIMIT = 2.0
"""Limit in standard errors of the slope: a trend within the scatter would not appear again in
another window. Beside a neighbour single windows differ by tens of percent, and 1 % would be
reached by luck alone."""

MINOR, KVM = "minor", "kvm"


class _Window(TypedDict):
    """Describe a window of a warm-up. `rates`: in operations per second; `faults`: by kind."""

    duration_s: float
    rates: Sequence[float]
    cpu_s: float
    faults: dict[str, int]


class Warmed(TypedDict):
    """Describe a warm-up as `warmup.json` has it."""

    settled: bool
    rates_settled: bool
    seconds: float
    windows: list[_Window]


def warm_up(bench: Bench, workload: Workload, setting: Setting, request: TrialRequest) -> Warmed:
    """Run windows of the same workload until neither their rates nor, under KVM, the faults on
    newly touched memory show a trend (METHOD rule 6).

    A workload that only computes does the same number of operations in each window, as many as the
    run's first one determines, and is rated by their CPU time. Other load on the host changes the
    operations per second from window to window, but not how warm the machine is.
    """
    windows: list[_Window] = []
    rates: list[float] = []
    touches: list[int] = []
    started = time.monotonic()
    cap_s = request.limits.warmup_cap_s
    cell = request.planned.cell
    size = (str(bench.kind), cell["workload"], workload.name)
    fault_counts = faults_so_far(bench)

    def is_warm() -> bool:
        return is_settled(rates) and (not bench.waits_for_faults or is_flat(touches))

    while not is_warm() and (len(rates) < WINDOWS or time.monotonic() - started < cap_s):
        sizing = request.window_rates.get(size)
        busy = _busy_s(bench)
        command = workload.warmup_command(setting, WINDOW_S, sizing)
        result = bench.channel.run(
            command, seconds=WINDOW_S + SLACK_S, cpus=bench.cpus, sched=bench.sched
        )
        if why := workload.why_failed(result):
            raise BrokenError(f"the warm-up of {workload.name} failed: {why}")
        cpu_s = _busy_s(bench) - busy if bench.kind is Kind.GUEST else _rusage_s(result.counts)
        with believable(f"the warm-up of {workload.name}"):
            found = workload.window_rates(result.stdout.decode(errors="replace"), result.files)
        before, fault_counts = fault_counts, faults_so_far(bench)
        touched = change(before, fault_counts)
        touches.append(sum(touched.values()))
        windows.append(
            {
                "duration_s": result.duration_s,
                "rates": found,
                "cpu_s": cpu_s,
                "faults": touched,
            }
        )
        if not workload.calibratable:
            # A load of fixed pace has no rate that could show a trend.
            rates += found or [1.0] * WINDOWS
        elif sizing is not None:
            rates.append(1 / cpu_s)
        else:
            request.window_rates[size] = found[-1]
    return {
        "settled": is_warm(),
        "rates_settled": is_settled(rates),
        "seconds": time.monotonic() - started,
        "windows": windows,
    }


def _busy_s(bench: Bench) -> float:
    """Return the CPU seconds that the guest's vCPU threads have had (sched-stats.rst, schedstat
    field 1)."""
    total = 0.0
    for tid in bench.vcpu_tids:
        try:
            total += int(Path(f"/proc/{tid}/schedstat").read_text().split()[0]) / 1e9
        except OSError as error:
            raise BrokenError(f"the guest's vCPU thread {tid} is gone") from error
    return total


def _rusage_s(told: Mapping[str, Any]) -> float:
    return float(told["rusage"]["utime_s"] + told["rusage"]["stime_s"])


def slope(rates: Sequence[float]) -> float:
    """Return the relative change per window: the least-squares slope of ln(rate) over the window
    number.
    """
    number, logs = _centred(rates)
    return float(number @ logs / (number @ number))


def standard_error(rates: Sequence[float]) -> float:
    """Return the standard error of `slope`, from the scatter around the fitted line (n - 2
    degrees).
    """
    number, logs = _centred(rates)
    residual = logs - slope(rates) * number
    return math.sqrt(residual @ residual / (len(rates) - 2) / (number @ number))


def _centred(rates: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Numbers of the windows and logarithms of their rates, each less its mean."""
    number, logs = np.arange(len(rates), dtype=np.float64), np.log(rates)
    return number - number.mean(), logs - logs.mean()


def is_settled(rates: Sequence[float]) -> bool:
    """Return whether the last windows, three or more of them, no longer show a trend. Windows up to
    one with no operations at all (a stalled connection) say nothing about later ones."""
    stalled = [number for number, rate in enumerate(rates) if rate <= 0]
    rates = rates[stalled[-1] + 1 :] if stalled else rates
    if len(rates) < WINDOWS:
        return False
    ends = (rates[-count:] for count in range(WINDOWS, len(rates) + 1))
    return any(
        abs(slope(end)) < max(SLOPE_LIMIT, SCATTER_LIMIT * standard_error(end)) for end in ends
    )


def is_flat(counts: Sequence[int]) -> bool:
    """Return whether counts of faults, window by window, no longer show a trend: by the same rule
    as rates, but with the inherent scatter of a count (a variance as large as the count).

    0 is a usual count and has no logarithm, so 1 is added to all.
    """
    if len(counts) < WINDOWS:
        return False
    larger = [1.0 + count for count in counts]
    ends = (larger[-count:] for count in range(WINDOWS, len(larger) + 1))
    return any(
        abs(slope(end))
        < max(SLOPE_LIMIT, SCATTER_LIMIT * max(standard_error(end), _counting_error(end)))
        for end in ends
    )


def _counting_error(larger: Sequence[float]) -> float:
    """Return the standard error of `slope` for random counts: the variance of ln(count) is 1 /
    count."""
    number, _ = _centred(larger)
    return math.sqrt(number * number @ (1 / np.asarray(larger))) / float(number @ number)


def faults_so_far(bench: Bench) -> dict[str, int]:
    """Return faults by kind over all vCPUs: MINOR of a guest, and KVM if KVM reports them; {}
    natively."""
    if not bench.vcpu_tids:
        return {}
    found = {MINOR: sum(map(_minor, bench.vcpu_tids))}
    fixed = kvm_stats.page_faults(bench.counters())
    return found if fixed is None else {**found, KVM: fixed}


def change(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the change of the kinds that both have: QEMU may stop reporting KVM's."""
    return {kind: after[kind] - before[kind] for kind in before if kind in after}


def _minor(tid: int) -> int:
    # Below task, because /proc/TID itself counts for the whole process.
    path = Path(f"/proc/{tid}/task/{tid}/stat")
    try:
        text = path.read_text()
    except OSError as error:
        raise BrokenError(f"the guest's vCPU thread {tid} is gone") from error
    return page_faults.faults(text, str(path))[MINOR]
