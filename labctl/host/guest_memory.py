"""Tell whether the host has the memory for more of labctl's guests."""

from __future__ import annotations

import os
from pathlib import Path

from labctl.base.errors import HostError
from labctl.host.machines import running_machines
from labctl.host.preflight import HEADROOM_BYTES, memory_available

MIB = 1024 * 1024
QEMU_BYTES = 64 * MIB
"""Memory that QEMU itself takes beside its guest's."""


def why_too_many(guests: int, memory_bytes: int, total_bytes: int) -> str | None:
    """Return why a host with that much memory can't have so many guests, whatever else runs there;
    None where it can."""
    needed = needed_bytes(guests, memory_bytes)
    if needed + HEADROOM_BYTES <= total_bytes:
        return None
    return (
        f"{guests} guests of {memory_bytes // MIB} MiB need {needed // MIB} MiB and "
        f"{HEADROOM_BYTES // MIB} MiB besides, and the host has {total_bytes // MIB} MiB"
    )


def needed_bytes(guests: int, memory_bytes: int) -> int:
    """Return the memory that so many guests take with their QEMUs."""
    return guests * (memory_bytes + QEMU_BYTES)


def memory_problem(more: int, memory_bytes: int, root: Path = Path("/")) -> HostError | None:
    """Return why the host can't have so many more guests of that much memory; None where it can, or
    doesn't tell.

    Each may come to use all that it has, so what labctl's guests that run have yet to touch is
    taken from what is available.
    """
    available = memory_available(root)
    if available is None:
        return None
    ours = [machine for machine in running_machines(root) if machine.is_ours]
    promised = sum(max(0, memory_bytes - _resident(root, one.pid)) for one in ours)
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


def _resident(root: Path, pid: int) -> int:
    """Return the memory of a process that is there (proc_pid_statm(5)); 0 of one that has ended."""
    try:
        pages = int((root / f"proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
