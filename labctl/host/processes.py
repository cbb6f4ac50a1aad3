"""Identify the host's processes beyond doubt: a pid alone may belong to a newer one."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str:
    """Return the kernel's random id of this boot (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None when it is dead or a
    zombie.

    proc_pid_stat(5): field 3 is the state, field 22 the start time. The command's name in
    parentheses may itself hold spaces and parentheses.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def is_alive(pid: int, started: int) -> bool:
    """Return whether the process that had this pid and start time still runs."""
    return start_time(pid) == started
