"""Report host CPU time, run delay and context switches, thread by thread."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base.cpus import CpuSet, parse_cpus
from labctl.base.errors import BrokenError
from labctl.base.tuning import Level
from labctl.collect import runner_counts
from labctl.collect.collector import Collector, Here
from labctl.collect.snapshots import RAW, Snapshots, read_snapshots
from labctl.collect.threads.thread_snapshots import OWN, attached
from labctl.store.samples import HELPERS, VCPU, Reading, Sample, Unavailable, sample, sample_key
from labctl.store.trial import TrialFolder

NEIGHBOUR = "neighbour"
ROLES = (VCPU, *HELPERS, NEIGHBOUR, "peer", OWN)

_SWITCHES = {
    "voluntary": re.compile(r"^voluntary_ctxt_switches:\s+(\d+)$", re.M),
    "involuntary": re.compile(r"^nonvoluntary_ctxt_switches:\s+(\d+)$", re.M),
}
_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(.*)$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Hold the usage of one thread between two snapshots. `born`: it was missing from the first.

    `cpus`: those that its affinity allowed in either snapshot; None in snapshots of a labctl that
    did not record it."""

    pid: int
    role: str
    name: str
    run_ns: int
    delay_ns: int
    switches: Mapping[str, int]
    cpus: CpuSet | None
    born: bool


@dataclass(frozen=True, slots=True)
class Threads:
    """Hold every thread of the second snapshot, and those of the first that had ended by then (with
    the first one's counts)."""

    used: tuple[Used, ...]
    vanished: tuple[Used, ...]

    def of(self, role: str) -> list[Used]:
        return [thread for thread in self.used if thread.role == role]

    def vanished_of(self, role: str) -> list[Used]:
        return [thread for thread in self.vanished if thread.role == role]


def parse(raw: TrialFolder) -> Iterator[Reading]:
    """Return host_cpu{thread=...} of known threads, run_delay, ctx_switches{of=vcpu,...},
    host_steal and host_window. `foreign_cpu` accounts for all other threads.

    Raises BrokenError when host.json (natively also runner.json) isn't whole.
    """
    snapshots = read_snapshots(raw)
    threads = read_threads(snapshots)
    yield sample("host_window", snapshots.seconds, source=RAW)
    yield from _role_cpu(snapshots, threads)
    if snapshots.is_native:
        yield _workload_cpu(raw)
    yield from _vcpu_readings(snapshots, threads)
    yield _host_steal(snapshots)


def changes(raw: TrialFolder) -> list[str]:
    """Return sentences on threads that started or ended during the trial."""
    threads = read_threads(read_snapshots(raw))
    born = [f"{t.role} thread '{t.name}' started" for t in threads.used if t.born]
    gone = [f"{t.role} thread '{t.name}' ended" for t in threads.vanished]
    return [f"{sentence} during the trial." for sentence in (*born, *gone)]


def read_threads(snapshots: Snapshots) -> Threads:
    """Return the usage of each thread; raises BrokenError if its rows cannot be read."""
    before = {row["tid"]: row for row in _rows(snapshots.before, snapshots.where)}
    used: list[Used] = []
    seen = set()
    for row in _rows(snapshots.after, snapshots.where):
        now = _counted(row, snapshots.where)
        first = before.get(row["tid"])
        then = _counted(first, snapshots.where) if first is not None else None
        # Counters only grow: if one is lower than before, another thread has the id now.
        if then is not None and (then.run_ns > now.run_ns or then.role != now.role):
            then = None
        else:
            seen.add(row["tid"])
        used.append(now if then is None else _difference(now, then))
    ended = [_counted(row, snapshots.where) for tid, row in before.items() if tid not in seen]
    return Threads(tuple(used), tuple(ended))


def _role_cpu(snapshots: Snapshots, threads: Threads) -> Iterator[Reading]:
    for role in ROLES:
        if role == NEIGHBOUR and (beside := snapshots.beside) is not None:
            # From their cgroups, because neighbours may be programs whose threads come and go.
            yield _cpu(role, sum(used.cpu_s for used in beside) / snapshots.seconds, RAW)
            continue
        found, ended = threads.of(role), threads.vanished_of(role)
        if not found and not ended:
            continue
        seconds = sum(t.run_ns for t in found) / 1e9
        lost = ended_cpu_s(snapshots, threads, role)
        if lost is None:
            key = sample_key("host_cpu", {"thread": role})
            yield Unavailable(metric=key, reason=_gone(role, threads))
        else:
            yield _cpu(role, (seconds + lost) / snapshots.seconds, RAW)


def ended_cpu_s(snapshots: Snapshots, threads: Threads, role: str) -> float | None:
    """Return the CPU seconds that this role's ended threads used in the window; None if unknown.

    QEMU's I/O workers end after ten idle seconds, so this is common. A process's utime and stime
    include its ended threads' run time (thread_group_cputime in kernel/sched/cputime.c); the part
    that its live threads do not account for is theirs. Accurate to two clock ticks.
    """
    total = 0.0
    for pid in {t.pid for t in threads.vanished_of(role)}:
        if any(t.pid == pid and t.role != role for t in threads.vanished):
            return None
        ticks = [_process_ticks(taken, pid, snapshots) for taken in _both(snapshots)]
        if ticks[0] is None or ticks[1] is None:
            return None
        known = sum(t.run_ns for t in threads.used if t.pid == pid) / 1e9
        total += max(0.0, (ticks[1] - ticks[0]) / snapshots.clk_tck - known)
    return total


def _workload_cpu(raw: TrialFolder) -> Sample:
    """Natively the workload's threads end with the trial; its parent's rusage outlives them."""
    counted = runner_counts.read_counts(raw)
    return _cpu("workload", counted.cpu_s / counted.duration_s, counted.source)


def _vcpu_readings(snapshots: Snapshots, threads: Threads) -> Iterator[Reading]:
    problem = None
    if snapshots.is_native:
        problem = "natively there is no vCPU thread."
    elif threads.vanished_of("vcpu"):
        problem = _gone("vcpu", threads)
    elif not threads.of("vcpu"):
        problem = "no vCPU thread was found."
    if problem is not None:
        yield Unavailable(metric="run_delay", reason=problem)
        for kind in _SWITCHES:
            key = sample_key("ctx_switches", {"of": "vcpu", "kind": kind})
            yield Unavailable(metric=key, reason=problem)
        return
    vcpus = threads.of("vcpu")
    yield sample("run_delay", sum(t.delay_ns for t in vcpus) / 1e9 / snapshots.seconds, source=RAW)
    for kind in _SWITCHES:
        yield sample(
            "ctx_switches",
            sum(t.switches[kind] for t in vcpus) / snapshots.seconds,
            source=RAW,
            labels={"of": "vcpu", "kind": kind},
        )


def _host_steal(snapshots: Snapshots) -> Reading:
    """Share of all CPU time that a hypervisor below this host took (0 on bare metal)."""
    total = snapshots.tick_change("cpu", "total")
    if total < 0:
        raise BrokenError(f"{snapshots.where}: /proc/stat went back between the snapshots")
    if total == 0:
        reason = (
            f"the trial lasted {snapshots.seconds * 1000:.3g} ms, in which no tick of the host's "
            "clock was counted"
        )
        return Unavailable(metric="host_steal", reason=reason)
    return sample("host_steal", max(0, snapshots.tick_change("cpu", "steal")) / total, source=RAW)


def _both(snapshots: Snapshots) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return snapshots.before, snapshots.after


def _process_ticks(taken: Mapping[str, Any], pid: int, snapshots: Snapshots) -> int | None:
    """utime + stime of a process (proc_pid_stat(5), fields 14 and 15); None when it had ended."""
    processes = taken.get("processes")
    text = processes.get(str(pid)) if isinstance(processes, dict) else None
    if text is None:
        return None
    # The name in parentheses may hold spaces and parentheses itself.
    fields = str(text).rpartition(")")[2].split()
    if len(fields) < 13 or not (fields[11].isdecimal() and fields[12].isdecimal()):
        raise BrokenError(f"{snapshots.where}: expected /proc/{pid}/stat, found {text!r}")
    return int(fields[11]) + int(fields[12])


def _rows(taken: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    rows = taken.get("threads")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BrokenError(f"{where}: expected a list 'threads' in each snapshot")
    for row in rows:
        if not {"pid", "tid", "role", "comm", "schedstat", "status"} <= row.keys():
            raise BrokenError(
                f"{where}: expected pid, tid, role, comm, schedstat and status of each thread, "
                f"found {', '.join(sorted(row))}"
            )
        if row["role"] not in ROLES:
            raise BrokenError(f"{where}: a thread has the unknown role '{row['role']}'")
    return rows


def _counted(row: Mapping[str, Any], where: str) -> Used:
    """Return a thread's counters since it started, as if it had started in the window.

    schedstat: time on a CPU and time waiting for one, in ns
    (Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat").
    """
    fields = str(row["schedstat"]).split()
    switches = {kind: pattern.search(str(row["status"])) for kind, pattern in _SWITCHES.items()}
    if len(fields) != 3 or not all(f.isdecimal() for f in fields) or None in switches.values():
        raise BrokenError(
            f"{where}: expected three numbers in schedstat and the switches in status of thread "
            f"{row['tid']} ('{row['comm']}')"
        )
    return Used(
        pid=int(row["pid"]),
        role=str(row["role"]),
        name=str(row["comm"]),
        run_ns=int(fields[0]),
        delay_ns=int(fields[1]),
        switches={kind: int(m[1]) for kind, m in switches.items() if m is not None},
        cpus=_allowed(row, where),
        born=True,
    )


def _allowed(row: Mapping[str, Any], where: str) -> CpuSet | None:
    found = _ALLOWED.search(str(row["status"]))
    if found is None:
        return None
    try:
        return parse_cpus(found[1])
    except ValueError as error:
        raise BrokenError(f"{where}: thread {row['tid']} ('{row['comm']}'): {error}") from error


def _difference(now: Used, then: Used) -> Used:
    return Used(
        pid=now.pid,
        role=now.role,
        name=now.name,
        run_ns=now.run_ns - then.run_ns,
        delay_ns=now.delay_ns - then.delay_ns,
        switches={kind: count - then.switches[kind] for kind, count in now.switches.items()},
        cpus=None if now.cpus is None or then.cpus is None else now.cpus | then.cpus,
        born=False,
    )


def _gone(role: str, threads: Threads) -> str:
    names = ", ".join(f"'{thread.name}'" for thread in threads.vanished_of(role))
    return f"{role} thread {names} ended during the trial and its CPU time is unknown."


def _cpu(role: str, value: float, source: str) -> Sample:
    return sample("host_cpu", value, source=source, labels={"thread": role})


def _why_unavailable(_: Here) -> str | None:
    if Path("/proc/self/schedstat").exists():
        return None
    return "the kernel has no /proc/PID/schedstat (CONFIG_SCHED_INFO)."


THREADS = Collector(
    name="threads",
    order=10,
    level=Level.COUNTERS,
    gives="CPU time, run delay, switches of QEMU's",
    why_unavailable=_why_unavailable,
    attached=attached,
    raw=(RAW,),
    parse=lambda trial: parse(trial.folder),
)
