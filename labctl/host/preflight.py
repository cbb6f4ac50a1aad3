"""Check a sweep's requirements before it starts. Only reads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from labctl.base.errors import HostError
from labctl.host import cgroups
from labctl.host.facts import QEMU

_MIB = 1024 * 1024
TOOLS = (QEMU, "qemu-img", "unshare", "setpriv", "taskset", "chroot")
LINK_TOOLS = ("ip", "nsenter")
HEADROOM_BYTES = 256 * _MIB
"""Memory for QEMU, labctl and the host, beside the guest's."""


def preflight(
    *,
    state_folder: Path,
    disk_bytes: int,
    memory_bytes: int,
    vcpus: int,
    tools: Sequence[str] = TOOLS,
    needs_root: Sequence[str] = (),
    has_link: bool = False,
    has_network: bool = False,
    root: Path = Path("/"),
) -> list[HostError]:
    """Return every problem that would end the sweep later, each with its remedy; [] if none.

    `disk_bytes` must be free below `state_folder`, `memory_bytes` (all guests and native runs that
    exist at one time) must be available as /proc/meminfo counts it. `needs_root`: the steps that
    only root can do, a clause each. `has_link`: its guests send packets to a peer. `has_network`:
    native runs have a network of their own.
    """
    link_tools = LINK_TOOLS if has_link or has_network else ()
    problems = [
        _root_problem(needs_root),
        *(_tool_problem(tool) for tool in (*tools, *link_tools)),
        _cpu_problem(vcpus, len(os.sched_getaffinity(0))),
        _disk_problem(state_folder, disk_bytes),
        _memory_problem(root, memory_bytes),
        _shared_memory_problem(root),
        cgroups.realtime_problem(cgroups.detect(root), root),
        _tap_problem(root) if has_link else None,
    ]
    return [problem for problem in problems if problem is not None]


def check(problems: Sequence[HostError]) -> None:
    """Raise one HostError that names all problems; do nothing if there are none."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        hints = dict.fromkeys(problem.hint for problem in problems if problem.hint)
        raise HostError(
            "; ".join(problem.message for problem in problems), hint=" ".join(hints) or None
        )


def memory_available(root: Path = Path("/")) -> int | None:
    """Return the bytes that new work can have without swapping (MemAvailable, proc(5)); None if
    unknown.
    """
    for line in (root / "proc/meminfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _root_problem(needs_root: Sequence[str]) -> HostError | None:
    if not needs_root or os.geteuid() == 0:
        return None
    return HostError(
        f"this needs root: {'; '.join(needs_root)}",
        hint="Run it as root ('sudo'). 'labctl doctor' shows your permissions. Without root, "
        "'--plan-only' shows the plan, and finished runs can be reported, compared and "
        "verified.",
    )


def _tool_problem(tool: str) -> HostError | None:
    if shutil.which(tool):
        return None
    return HostError(f"'{tool}' is not installed", hint="Run 'labctl setup', which installs it.")


def _cpu_problem(vcpus: int, cpus: int) -> HostError | None:
    if vcpus <= cpus:
        return None
    return HostError(
        f"the guest has {vcpus} vCPUs, but labctl may use only {cpus} CPUs of this host",
        hint=f"Give the guest at most {cpus} vCPUs.",
    )


def _disk_problem(folder: Path, needed: int) -> HostError | None:
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free >= needed:
        return None
    return HostError(
        f"{folder} has {free // _MIB} MiB free, but the sweep needs {needed // _MIB} MiB",
        hint="Free some space there, or name a folder on another disk with --state-dir.",
    )


def _memory_problem(root: Path, needed: int) -> HostError | None:
    available = memory_available(root)
    if available is None or available >= needed + HEADROOM_BYTES:
        return None
    return HostError(
        f"the host has {available // _MIB} MiB of memory available, but the sweep needs "
        f"{needed // _MIB} MiB and {HEADROOM_BYTES // _MIB} MiB of headroom",
        hint="Stop programs that use it, or give the guest less memory.",
    )


def _shared_memory_problem(root: Path) -> HostError | None:
    folder = root / "dev/shm"
    if folder.is_dir() and os.access(folder, os.W_OK):
        return None
    return HostError(
        f"{folder} is missing or not writable: workloads share memory through it",
        hint="Mount it: mount -t tmpfs tmpfs /dev/shm",
    )


def _tap_problem(root: Path) -> HostError | None:
    if (root / "dev/net/tun").exists():
        return None
    return HostError(
        "the host has no /dev/net/tun, and the study's guests send packets through a tap device",
        hint="Load its module: modprobe tun (in a container: run it with --device /dev/net/tun).",
    )
