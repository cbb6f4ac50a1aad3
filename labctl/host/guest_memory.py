"""Check whether the host has memory for more of labctl's guests."""

from __future__ import annotations

import re
from pathlib import Path

from labctl.base.errors import HostError
from labctl.host.machines import running_machines
from labctl.host.preflight import HEADROOM_BYTES, memory_available

MIB = 1024 * 1024
QEMU_BYTES = 64 * MIB
"""Memory of QEMU itself, beside its guest's."""

_SIZE = re.compile(r"^(VmRSS|HugetlbPages):\s+(\d+) kB$", re.MULTILINE)


def why_too_many(guests: int, memory_bytes: int, total_bytes: int) -> str | None:
    """Return why a host with that much memory cannot have so many guests, whatever else runs there;
    None if it can."""
    needed = needed_bytes(guests, memory_bytes)
    if needed + HEADROOM_BYTES <= total_bytes:
        return None
    return (
        f"{guests} guests of {memory_bytes // MIB} MiB need {needed // MIB} MiB and "
        f"{HEADROOM_BYTES // MIB} MiB besides, and the host has {total_bytes // MIB} MiB"
    )


def needed_bytes(guests: int, memory_bytes: int) -> int:
    """Return the memory of so many guests and their QEMUs."""
    return guests * (memory_bytes + QEMU_BYTES)


def most_guests(memory_bytes: int, root: Path = Path("/")) -> tuple[int, str] | None:
    """Return how many guests of that size fit into the memory now, and both sizes in words; None if
    the host does not report its memory."""
    available = memory_available(root)
    if available is None:
        return None
    each = needed_bytes(1, memory_bytes)
    most = max(0, (available - HEADROOM_BYTES) // each)
    return most, (
        f"each guest takes {each // MIB} MiB with its QEMU, and the host has {available // MIB} "
        f"MiB of memory available, of which {HEADROOM_BYTES // MIB} MiB stay free"
    )


def memory_problem(more: int, memory_bytes: int, root: Path = Path("/")) -> HostError | None:
    """Return why so many more guests of that size do not fit; None if they fit, or the host does
    not report its memory.

    Each guest may come to use all its memory, so the memory that labctl's running guests have not
    touched yet is subtracted from what is available.
    """
    available = memory_available(root)
    if available is None:
        return None
    ours = [machine for machine in running_machines(root) if machine.is_ours]
    promised = sum(_untouched(root, one.pid, memory_bytes) for one in ours)
    needed = needed_bytes(more, memory_bytes)
    if available - promised >= needed + HEADROOM_BYTES:
        return None
    beside = f", of which {promised // MIB} MiB are promised to {len(ours)} guests that run"
    return HostError(
        f"{more} more guests of {memory_bytes // MIB} MiB need {needed // MIB} MiB and "
        f"{HEADROOM_BYTES // MIB} MiB besides, and the host has {available // MIB} MiB of memory "
        f"available{beside if promised else ''}",
        hint="Ask for fewer guests as neighbours, or give guests less memory: 'guest.memory_mib' "
        "in the study, or --memory.",
    )


def _untouched(root: Path, pid: int, memory_bytes: int) -> int:
    """Return the memory that a guest has not touched yet (proc_pid_status(5)); 0 for a guest that
    has ended or whose huge pages are already reserved."""
    try:
        text = (root / f"proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    sizes = {name: int(kib) * 1024 for name, kib in _SIZE.findall(text)}
    if not sizes or sizes.get("HugetlbPages"):
        return 0
    return max(0, memory_bytes - sizes.get("VmRSS", 0))
