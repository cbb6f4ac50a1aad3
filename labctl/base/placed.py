"""Read where a thread may run, and under which policy: what the kernel says of it, in /proc."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labctl.base.cpus import CpuSet, parse_cpus

# include/uapi/linux/sched.h
_POLICIES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline", 7: "ext"}

# Positions after the command's closing parenthesis; proc_pid_stat(5) counts from 1, and the first
# of these is its field 3.
_NICE, _RT_PRIORITY, _POLICY = 19 - 3, 40 - 3, 41 - 3


@dataclass(frozen=True, slots=True)
class Placed:
    """Hold a thread's placement. `policy` by chrt(1)'s names, `priority` the real-time one."""

    cpus: CpuSet
    policy: str
    priority: int
    nice: int


def name_of(stat: str) -> str:
    """Return a thread's name, from its `stat`: it may hold spaces and parentheses of its own."""
    return stat.rpartition(")")[0].partition("(")[2]


def parse_placed(stat: str, status: str) -> Placed | None:
    """Parse the texts of a thread's `stat` and `status`; None where they are cut off because the
    thread ended meanwhile. Raises ValueError for what no kernel writes."""
    # The command may hold parentheses: the last one closes it.
    fields = stat.rpartition(")")[2].split()
    cpus = [line for line in status.splitlines() if line.startswith("Cpus_allowed_list:")]
    if len(fields) <= _POLICY or not cpus:
        return None
    number = int(fields[_POLICY])
    return Placed(
        cpus=parse_cpus(cpus[0].partition(":")[2]),
        policy=_POLICIES.get(number, f"policy {number}"),
        priority=int(fields[_RT_PRIORITY]),
        nice=int(fields[_NICE]),
    )


def read_placed(folder: Path) -> tuple[str, Placed] | None:
    """Name and place of the thread whose folder in /proc that is; None when it has ended."""
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        status = (folder / "status").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    found = parse_placed(stat, status)
    return None if found is None else (name_of(stat), found)


def said(policy: str, priority: int) -> str:
    """Return a policy as people name it: "SCHED_FIFO at priority 1"."""
    return f"SCHED_{policy.upper()}" + (f" at priority {priority}" if priority else "")
