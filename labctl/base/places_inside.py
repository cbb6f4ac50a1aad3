"""Name the places on a measured machine, the same natively and in a guest: a command must not tell
its side by its arguments."""

from __future__ import annotations

from typing import Final

WORK: Final = "/tmp/labctl"  # a tmpfs of the machine's own, and the folder is ours
"""A trial's folder, which a server and its clients share."""

CWD: Final = f"{WORK}/run"
"""Working folder of a command; empty for each run."""

DISK: Final = "/tmp/labctl-disk"
"""Mount point of a file system on the data disk."""

BROUGHT: Final = "/usr/local/lib/labctl/workloads"
"""Files that workloads bring into an image."""

DATA_DISK_BYTES: Final = 256 << 20
"""Size of each data disk; natively it is a file."""

NOBODY: Final = 64_917
"""User and group of programs that need no privilege: in the range that Debian reserves for
packages, which get theirs on demand (Debian policy, 9.2.2)."""


def brought_folder(workload: str) -> str:
    """Return the folder of a workload's own files."""
    return f"{BROUGHT}/{workload}"
