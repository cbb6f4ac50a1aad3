"""Sample what the host's CPUs do when idle: two readings of /proc, a moment apart."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from labctl.base.cpus import CpuSet
from labctl.host.doctor.reader import Reader
from labctl.host.machines import RunningMachine, allowed_cpus, running_machines


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Hold clock ticks since the boot: /proc/stat, proc_stat(5)."""

    busy: int
    steal: int
    total: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    moment: float
    """CLOCK_MONOTONIC, in seconds."""
    cpus: Mapping[int, CpuTimes]
    processes: Mapping[tuple[int, int], int]
    """Pid and start time to the CPU time of all its threads so far, in clock ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyProcess:
    """Describe a busy process. `cpus`: CPU seconds per second that it used. `allowed`: the CPUs
    that it may run on."""

    pid: int
    name: str
    cpus: float
    allowed: CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Hold the host's activity. `busy`, `steal`: share of each CPU's time between the readings;
    `steal_since_boot`: of all CPUs' time since the boot. `processes`: the busiest first."""

    seconds: float
    busy: Mapping[int, float]
    steal: Mapping[int, float]
    steal_since_boot: float
    processes: tuple[BusyProcess, ...]
    machines: tuple[RunningMachine, ...]


def observe(reader: Reader, seconds: float) -> Activity:
    """Read, sleep, read again. Processes that sleep meanwhile do not count; labctl itself is
    one."""
    before = snapshot(reader)
    time.sleep(seconds)
    return between(reader, before, snapshot(reader))


def snapshot(reader: Reader) -> Snapshot:
    return Snapshot(time.monotonic(), _cpu_times(reader), _process_times(reader))


def between(reader: Reader, before: Snapshot, after: Snapshot) -> Activity:
    seconds = after.moment - before.moment
    busy, steal = {}, {}
    for cpu, now in after.cpus.items():
        then = before.cpus.get(cpu, now)
        total = now.total - then.total
        busy[cpu] = (now.busy - then.busy) / total if total else 0.0
        steal[cpu] = (now.steal - then.steal) / total if total else 0.0
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    taken = {
        key: (ticks - before.processes[key]) / ticks_per_s / seconds
        for key, ticks in after.processes.items()
        if ticks > before.processes.get(key, ticks)
    }
    all_time = sum(times.total for times in after.cpus.values())
    return Activity(
        seconds=seconds,
        busy=busy,
        steal=steal,
        steal_since_boot=sum(t.steal for t in after.cpus.values()) / all_time if all_time else 0.0,
        processes=tuple(
            BusyProcess(pid=pid, name=_name(reader, pid), cpus=cpus, allowed=_allowed(reader, pid))
            for (pid, _), cpus in sorted(taken.items(), key=lambda item: -item[1])
        ),
        machines=tuple(running_machines(reader.root)),
    )


def _cpu_times(reader: Reader) -> dict[int, CpuTimes]:
    found = {}
    for line in (reader.text("/proc/stat") or "").splitlines():
        match = re.match(r"cpu(\d+) +([\d ]+)", line)
        if match is None:
            continue
        # user nice system idle iowait irq softirq steal guest guest_nice; both last are in user.
        times = [int(field) for field in match[2].split()][:8]
        times += [0] * (8 - len(times))
        idle, steal = times[3] + times[4], times[7]
        total = sum(times)
        found[int(match[1])] = CpuTimes(total - idle - steal, steal, total)
    return found


def _process_times(reader: Reader) -> dict[tuple[int, int], int]:
    found = {}
    for name in reader.names("/proc", "[0-9]*"):
        text = reader.text(f"/proc/{name}/stat")
        # The name in parentheses may hold spaces and parentheses itself: proc_pid_stat(5).
        fields = text.rpartition(")")[2].split() if text else []
        if len(fields) > 19:
            found[int(name), int(fields[19])] = int(fields[11]) + int(fields[12])
    return found


def _name(reader: Reader, pid: int) -> str:
    return reader.text(f"/proc/{pid}/comm") or "a process that has ended"


def _allowed(reader: Reader, pid: int) -> CpuSet:
    return allowed_cpus(reader.text(f"/proc/{pid}/status") or "")
