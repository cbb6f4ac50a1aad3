"""Measure what the trial's CPUs were like meanwhile: what ran on their hardware threads' siblings,
how fast they were, and how long idle ones could take to wake up (METHOD rules 3 and 9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import BrokenError
from labctl.base.latency_qos import NO_LIMIT_US
from labctl.collect.perf_stat_text import counts, read_counters, totals
from labctl.collect.snapshots import RAW, Snapshots, read_snapshots
from labctl.store.samples import Reading, Unavailable, sample
from labctl.store.trial import TrialFolder

LIMIT = "cpu_latency_limit_us"
"""Key of a snapshot: the host's latency QoS in microseconds, or {"unavailable": reason}."""

FREQUENCY = "frequency.txt"
FREQUENCY_PROBLEM = "frequency-problem.txt"

_APERF, _MPERF, TSC, TIME = "msr/aperf/", "msr/mperf/", "msr/tsc/", "cpu-clock"
EVENTS = (_APERF, _MPERF, TSC, TIME)
"""Free-running registers, which need no counter of the PMU's (arch/x86/events/msr.c)."""


def command(cpus: CpuSet, output: Sequence[str]) -> tuple[str, ...]:
    """Return the command of perf stat on these CPUs, which runs until SIGINT; FREQUENCY is its
    standard error. It reads registers when it starts and when it ends, and sleeps meanwhile."""
    counting = ("perf", "stat", *output, "--event", ",".join(EVENTS))
    return (*counting, "--cpu", format_cpus(cpus))


def parse(raw: TrialFolder) -> Iterator[Reading]:
    """Return sibling_cpu, cpu_frequency and cpu_latency_limit.

    Raises BrokenError when host.json isn't whole, or what perf printed isn't perf's.
    """
    snapshots = read_snapshots(raw)
    yield _sibling_cpu(snapshots)
    yield _frequency(raw)
    yield _latency_limit(snapshots)


def _sibling_cpu(snapshots: Snapshots) -> Reading:
    """CPU seconds per second on the siblings that aren't the trial's own CPUs."""
    metric = "sibling_cpu"
    if snapshots.siblings is None:
        return Unavailable(metric=metric, reason="the labctl that measured this did not look.")
    if not snapshots.siblings:
        reason = "no CPU of the trial shares its core with another (no SMT)."
        return Unavailable(metric=metric, reason=reason)
    others = snapshots.siblings - snapshots.trial_cpus
    if not others:
        reason = "the trial's CPUs share their cores with each other alone."
        return Unavailable(metric=metric, reason=reason)
    return sample(metric, max(0.0, snapshots.busy(others)), source=RAW)


def _frequency(raw: TrialFolder) -> Reading:
    """Mean frequency of the CPUs while they weren't idle.

    APERF counts cycles and MPERF those of a clock as fast as the TSC, both only in C0
    (arch/x86/kernel/cpu/aperfmperf.c; turbostat(8), Bzy_MHz); perf's cpu-clock, in ms, gives the
    TSC's rate.
    """
    metric = "cpu_frequency"
    if not raw.has(FREQUENCY):
        why = raw.read_text(FREQUENCY_PROBLEM) if raw.has(FREQUENCY_PROBLEM) else None
        return Unavailable(metric=metric, reason=why or "the labctl that measured did not look.")
    where = str(raw.path / FREQUENCY)
    found = counts(totals(read_counters(raw.read_text(FREQUENCY), where)), EVENTS)
    if isinstance(found, str):
        return Unavailable(metric=metric, reason=found)
    aperf, mperf, tsc, time_ms = found
    if mperf == 0 or time_ms == 0:
        return Unavailable(metric=metric, reason="MPERF did not count: were the CPUs idle?")
    return sample(metric, aperf / mperf * tsc / (time_ms / 1000), source=FREQUENCY)


def _latency_limit(snapshots: Snapshots) -> Reading:
    """Return the least wake-up latency that a process requested; None without a request."""
    metric = "cpu_latency_limit"
    found = snapshots.before.get(LIMIT)
    if isinstance(found, dict) and "unavailable" in found:
        return Unavailable(metric=metric, reason=f"{found['unavailable']}.")
    if found is None:
        return Unavailable(metric=metric, reason="the labctl that measured this did not look.")
    if not isinstance(found, int):
        raise BrokenError(f"{snapshots.where}: expected microseconds in '{LIMIT}', found {found!r}")
    if found >= NO_LIMIT_US:
        reason = "nobody limited how long an idle CPU may take to wake up."
        return Unavailable(metric=metric, reason=reason)
    return sample(metric, found / 1e6, source=RAW)
