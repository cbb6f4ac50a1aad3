"""Measure the state of the trial's CPUs: load on the siblings of their hardware threads, their
frequency, and the wake-up latency of idle CPUs (METHOD rules 3 and 9)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import BrokenError, LabctlError
from labctl.base.kernel import NO_LIMIT_US, limit_or_reason
from labctl.base.tuning import Level
from labctl.collect.collector import Attaching, Collector, Snapshot, Target
from labctl.collect.counters.perf import (
    Countable,
    counting,
    counts,
    output_options,
    read_counters,
    totals,
    tried,
)
from labctl.collect.snapshots import RAW, Snapshots, read_snapshots
from labctl.store.samples import Reading, Unavailable, sample
from labctl.store.trial import TrialFolder

LIMIT = "cpu_latency_limit_us"
"""Key of a snapshot: the host's latency QoS in microseconds, or {"unavailable": reason}."""

FREQUENCY = "frequency.txt"
FREQUENCY_PROBLEM = "frequency-problem.txt"

_APERF, _MPERF, _TSC, _TIME = "msr/aperf/", "msr/mperf/", "msr/tsc/", "cpu-clock"
EVENTS = (_APERF, _MPERF, _TSC, _TIME)
"""Free-running registers, which occupy no counter of the PMU (arch/x86/events/msr.c)."""

_MSR = Path("/sys/bus/event_source/devices/msr/events")
_SPIN = "import time\nend = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass"


def command(cpus: CpuSet, output: Sequence[str]) -> tuple[str, ...]:
    """Return the command of perf stat on these CPUs, which runs until SIGINT; FREQUENCY is its
    standard error. It reads registers at its start and end, and sleeps in between."""
    counting = ("perf", "stat", *output, "--event", ",".join(EVENTS))
    return (*counting, "--cpu", format_cpus(cpus))


def parse(raw: TrialFolder) -> Iterator[Reading]:
    """Return sibling_cpu, cpu_frequency and cpu_latency_limit.

    Raises BrokenError if host.json is incomplete, or FREQUENCY is not perf's output.
    """
    snapshots = read_snapshots(raw)
    yield _sibling_cpu(snapshots)
    yield _frequency(raw)
    yield _latency_limit(snapshots)


def frequency_countable(msr: Path = _MSR) -> Countable:
    """Return whether perf can read the registers for the CPUs' true frequency, on all of them."""
    if not (msr / "aperf").exists():
        return Countable(
            problem="the kernel offers no APERF and MPERF (perf's 'msr' events), as in most "
            "virtual machines."
        )
    try:
        output = output_options()
        found = tried(EVENTS, output, "--all-cpus")
    except LabctlError as error:
        return Countable(problem=f"perf can't be used: {error.message}.")
    if isinstance(found, str):
        return Countable(problem=found)
    if isinstance(why := counts(found, EVENTS), str):
        return Countable(problem=why)
    return Countable(events=EVENTS, output=output)


def measured_tsc_hz(cpu: int, msr: Path = _MSR) -> float | None:
    """Return the rate of a busy CPU's time-stamp counter in Hz, for hosts that do not declare it
    constant: it may follow the CPU's clock and stop while the CPU sleeps. None if perf cannot read
    the counter."""
    if not (msr / "tsc").exists():
        return None
    events = (_TSC, _TIME)
    try:
        found = tried(events, output_options(), "--cpu", str(cpu), program=_busy(cpu))
    except LabctlError:
        return None
    read = found if isinstance(found, str) else counts(found, events)
    if isinstance(read, str):
        return None
    ticks, time_ms = read
    return ticks / (time_ms / 1000) if ticks > 0 and time_ms > 0 else None


def _busy(cpu: int) -> tuple[str, ...]:
    return ("taskset", "--cpu-list", str(cpu), sys.executable, "-I", "-c", _SPIN)


def _sibling_cpu(snapshots: Snapshots) -> Reading:
    """Return the CPU seconds per second on the siblings that aren't the trial's own CPUs."""
    metric = "sibling_cpu"
    if snapshots.siblings is None:
        return Unavailable(metric=metric, reason="an older labctl did not record this.")
    if not snapshots.siblings:
        reason = "no CPU of the trial shares its core with another (no SMT)."
        return Unavailable(metric=metric, reason=reason)
    others = snapshots.siblings - snapshots.trial_cpus
    if not others:
        reason = "the trial's CPUs share their cores only with each other."
        return Unavailable(metric=metric, reason=reason)
    return sample(metric, max(0.0, snapshots.busy(others)), source=RAW)


def _frequency(raw: TrialFolder) -> Reading:
    """Return the mean frequency of the CPUs while they were not idle.

    APERF counts cycles, and MPERF those of a clock as fast as the TSC, both only in C0
    (arch/x86/kernel/cpu/aperfmperf.c; turbostat(8), Bzy_MHz); perf's cpu-clock, in ms, gives the
    TSC's rate.
    """
    metric = "cpu_frequency"
    if not raw.has(FREQUENCY):
        why = raw.read_text(FREQUENCY_PROBLEM) if raw.has(FREQUENCY_PROBLEM) else None
        return Unavailable(metric=metric, reason=why or "an older labctl did not record this.")
    where = str(raw.path / FREQUENCY)
    found = counts(totals(read_counters(raw.read_text(FREQUENCY), where)), EVENTS)
    if isinstance(found, str):
        return Unavailable(metric=metric, reason=found)
    aperf, mperf, tsc, time_ms = found
    if mperf == 0 or time_ms == 0:
        return Unavailable(metric=metric, reason="MPERF did not count: were the CPUs idle?")
    return sample(metric, aperf / mperf * tsc / (time_ms / 1000), source=FREQUENCY)


def _latency_limit(snapshots: Snapshots) -> Reading:
    """Return the lowest wake-up latency that a process requested; None without a request."""
    metric = "cpu_latency_limit"
    found = snapshots.before.get(LIMIT)
    if isinstance(found, dict) and "unavailable" in found:
        return Unavailable(metric=metric, reason=f"{found['unavailable']}.")
    if found is None:
        return Unavailable(metric=metric, reason="an older labctl did not record this.")
    if not isinstance(found, int):
        raise BrokenError(f"{snapshots.where}: expected microseconds in '{LIMIT}', found {found!r}")
    if found >= NO_LIMIT_US:
        reason = "no process limited the wake-up latency of idle CPUs."
        return Unavailable(metric=metric, reason=reason)
    return sample(metric, found / 1e6, source=RAW)


@cache
def _countable() -> Countable:
    """Probe once per process whether it can be counted: the answer is the host's."""
    return frequency_countable()


@contextmanager
def _attached(target: Target) -> Iterator[Snapshot]:
    """Count the frequency of the trial's CPUs, or store why it cannot be counted."""
    can = _countable()
    asked = command(target.trial_cpus, can.output)
    with counting(target.folder, can, asked, raw=FREQUENCY, problem=FREQUENCY_PROBLEM):
        yield lambda _: {LIMIT: limit_or_reason()}


CPU_FREQUENCY = Collector(
    name="frequency",
    order=30,
    level=Level.COUNTERS,
    gives="the CPUs' true frequency",
    why_unavailable=lambda _: _countable().problem,
    attaching=Attaching.COUNTERS,
    attached=_attached,
    raw=(FREQUENCY, FREQUENCY_PROBLEM),
    recorders=("perf",),
    parse=lambda trial: parse(trial.folder),
)
