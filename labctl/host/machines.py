"""List the virtual machines on this host, whoever started them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from labctl.base.cpus import CpuSet, parse_cpus
from labctl.base.own_guests import OWN_NAME

_PROGRAMS = ("qemu-system", "qemu-kvm", "firecracker", "cloud-hypervis", "crosvm", "VBoxHeadless")
"""Prefixes of the programs that run them (the kernel keeps 15 characters)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMachine:
    """Describe a virtual machine that runs. `name`: the guest's, else its program's. `allowed`: the
    CPUs that it may run on.
    """

    pid: int
    name: str
    allowed: CpuSet

    @property
    def is_ours(self) -> bool:
        return OWN_NAME.fullmatch(self.name) is not None


def running_machines(root: Path = Path("/")) -> list[RunningMachine]:
    """Return every virtual machine of the host whose /proc lies below `root`, by pid."""
    found = []
    for folder in sorted((root / "proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            program = (folder / "comm").read_text(errors="replace").strip()
            if not program.startswith(_PROGRAMS) and program != "kvm":
                continue
            arguments = (folder / "cmdline").read_text(errors="replace")
            status = (folder / "status").read_text(errors="replace")
        except OSError:
            continue  # it has ended
        # It has ended and nobody has reaped it; or somebody asks QEMU what it is or what it can do.
        if not arguments or "\0-machine\0none" in arguments or "\0--version" in arguments:
            continue
        named = re.search(r"\0-name\0(?:guest=)?([^,\0]+)", arguments)
        name = named[1] if named else program
        found.append(RunningMachine(pid=int(folder.name), name=name, allowed=allowed_cpus(status)))
    return found


def allowed_cpus(status: str) -> CpuSet:
    """Return the CPUs that a /proc/PID/status (proc_pid_status(5)) allows; none where it doesn't
    tell."""
    found = re.search(r"^Cpus_allowed_list:\s*(\d[\d,-]*)$", status, re.MULTILINE)
    return parse_cpus(found[1]) if found else frozenset()
