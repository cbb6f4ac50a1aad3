"""Read the kernel's data on processes and threads: proc(5)."""

from __future__ import annotations

import os
import time
from typing import Any

COUNTERS = {
    "stat": ("/proc/stat", ("cpu", "ctxt ", "procs_")),
    "vmstat": ("/proc/vmstat", ("pgfault ", "pgmajfault ", "thp_fault_", "oom_kill ")),
}


def read_text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return None


def counters() -> dict[str, Any]:
    taken: dict[str, Any] = {"monotonic_ns": time.monotonic_ns()}
    for name, (path, wanted) in COUNTERS.items():
        lines = (read_text(path) or "").splitlines(keepends=True)
        taken[name] = "".join(line for line in lines if line.startswith(wanted))
    return taken


def placed(pid: int, tid: int) -> dict[str, Any] | None:
    """Return a thread's policy, priority and affinity from the kernel; None when it is gone. A
    process that has ended still shows them until it is waited for."""
    folder = "/proc/%d/task/%d/" % (pid, tid)
    stat, status = read_text(folder + "stat"), read_text(folder + "status")
    if stat is None or status is None:
        return None
    lines = status.splitlines(keepends=True)
    cpus = [line for line in lines if line.startswith("Cpus_allowed_list:")]
    return {"pid": pid, "tid": tid, "stat": stat, "status": "".join(cpus)}


def threads_of_session(leader: int) -> list[dict[str, Any]]:
    """Return the threads of a command that still exist: its own, and its descendants'."""
    found = [placed(leader, leader)]
    for name in os.listdir("/proc"):
        stat = read_text("/proc/%s/stat" % name) if name.isdigit() else None
        # The session is the sixth field of proc_pid_stat(5), the fourth after the name.
        if stat is None or stat.rpartition(")")[2].split()[3:4] != [str(leader)]:
            continue
        try:
            tids = sorted(map(int, os.listdir("/proc/%s/task" % name)))
        except OSError:
            continue
        found += [placed(int(name), tid) for tid in tids if tid != leader]
    return [thread for thread in found if thread is not None]


def parents() -> dict[int, int]:
    """Return the parent of every process."""
    found = {}
    for name in os.listdir("/proc"):
        stat = read_text("/proc/%s/stat" % name) if name.isdigit() else None
        if stat is not None:
            found[int(name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def tree_of(root: int, parent_of: dict[int, int]) -> set[int]:
    """Return a process and its descendants."""
    members = {root}
    while True:
        more = {pid for pid, parent in parent_of.items() if parent in members} - members
        if not more:
            return members
        members |= more


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or a zombie (proc_pid_stat(5))."""
    stat = read_text("/proc/%d/stat" % pid)
    return stat is None or stat.rpartition(")")[2].split()[0] in ("Z", "X")


def ticks_of(roots: set[int]) -> int:
    """Return clock ticks of CPU time of these processes, their descendants, and all reaped children
    (proc_pid_stat(5), fields 14 to 17)."""
    if not roots:
        return 0
    parent_of = parents()
    members = set().union(*(tree_of(root, parent_of) for root in roots))
    total = 0
    for pid in members:
        stat = read_text("/proc/%d/stat" % pid)
        if stat is not None:
            total += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return total
