"""Tell whether the host has the memory for more of labctl's guests."""

from __future__ import annotations

import re
from pathlib import Path

from labctl.base.errors import HostError
from labctl.host.machines import running_machines
from labctl.host.preflight import HEADROOM_BYTES, memory_available

MIB = 1024 * 1024
QEMU_BYTES = 64 * MIB
"""Memory that QEMU itself takes beside its guest's."""

_SIZE = re.compile(r"^(VmRSS|HugetlbPages):\s+(\d+) kB$", re.MULTILINE)


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


def most_guests(memory_bytes: int, root: Path = Path("/")) -> tuple[int, str] | None:
    """Return how many guests of that much memory the host has memory for now, and both numbers in
    words; None where it doesn't tell."""
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
    """Return why the host can't have so many more guests of that much memory; None where it can, or
    doesn't tell.

    Each may come to use all that it has, so what labctl's guests that run have yet to touch is
    taken from what is available.
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
    """Return how much of its memory a guest has yet to take from what is available
    (proc_pid_status(5)): nothing of one that has ended, or whose huge pages were set aside."""
    try:
        text = (root / f"proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    sizes = {name: int(kib) * 1024 for name, kib in _SIZE.findall(text)}
    if not sizes or sizes.get("HugetlbPages"):
        return 0
    return max(0, memory_bytes - sizes.get("VmRSS", 0))
