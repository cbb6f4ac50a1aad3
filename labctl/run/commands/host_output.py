"""Record what this host's tools print and its kernel shows, as it is: parsers' fixtures come from
it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.errors import LabctlError
from labctl.collect.counters import perf_stat_probe
from labctl.host.facts import QEMU

_TOOL_S = 30.0

_ALONE = ("unshare", "--mount", "--propagation", "private")
"""perf mounts tracefs where it isn't (the kernel's tools/lib/api/fs/fs.c), and leaves it."""

_TOOLS: dict[str, tuple[str, ...]] = {
    "detect-virt": ("systemd-detect-virt", "--vm"),
    "lscpu": ("lscpu", "--json"),
    "perf-version": ("perf", "version"),
    "perf-list-kvm": ("perf", "list", "kvm:*"),
    "perf-stat-csv": ("perf", "stat", "-x,", "-e", "cycles:u,instructions:u,cycles:k", "true"),
    "perf-stat-json": ("perf", "stat", "--json-output", "-e", "cycles:u,instructions:u", "true"),
    "perf-stat-guest": (
        "perf",
        "stat",
        "--json-output",
        "-e",
        "cycles:G,cycles:uG,cycles:H",
        "true",
    ),
    "qemu-version": (QEMU, "--version"),
    "qemu-accel": (QEMU, "-accel", "help"),
    "virsh-version": ("virsh", "--version=long"),
}

_FILES = (
    *("proc/cpuinfo", "proc/meminfo", "proc/interrupts"),
    *("sys/devices/system/cpu/*", "sys/devices/system/cpu/vulnerabilities/*"),
    *("sys/devices/system/cpu/smt/*", "sys/devices/system/cpu/cpu[0-9]*/online"),
    *("sys/devices/system/cpu/cpu[0-9]*/topology/*", "sys/devices/system/cpu/cpu[0-9]*/cache/*/*"),
    *("sys/devices/system/node/*", "sys/devices/system/node/node[0-9]*/*"),
    *("sys/devices/cpu_*/cpus", "sys/module/kvm*/parameters/*"),
)
"""Kernel files that labctl reads: `labctl pins --sysfs` takes the folder `sys` of it."""

_LARGEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """Hold what a command printed. `problem`: why it was not had, "" where it was."""

    argv: tuple[str, ...]
    status: int | None
    stdout: str
    stderr: str
    problem: str

    @property
    def text(self) -> str:
        """Return the whole file."""
        ended = self.problem or f"status {self.status}"
        return (
            f"$ {shlex.join(self.argv)}\n# {ended}\n# stdout\n{_lines(self.stdout)}"
            f"# stderr\n{_lines(self.stderr)}"
        )

    def to_json(self) -> dict[str, Any]:
        return {"argv": list(self.argv), "status": self.status, "problem": self.problem}


def _lines(said: str) -> str:
    return said if not said or said.endswith("\n") else f"{said}\n"


def tool_output(argv: Sequence[str]) -> ToolOutput:
    """Return what a command prints, whatever its status. What it mounts is gone when it ends."""
    try:
        done = process.run(
            [*_ALONE, *argv],
            deadline=Deadline.after(_TOOL_S, f"'{shlex.join(argv)}'"),
            check=False,
            env=perf_stat_probe.ENVIRONMENT,
        )
    except LabctlError as error:
        return ToolOutput(
            argv=tuple(argv), status=None, stdout="", stderr="", problem=error.message
        )
    return ToolOutput(
        argv=tuple(argv),
        status=done.returncode,
        stdout=done.stdout,
        stderr=done.stderr,
        problem="",
    )


def tool_outputs() -> dict[str, ToolOutput]:
    """Return by name the output of every tool that labctl asks about the host."""
    return {name: tool_output(argv) for name, argv in _TOOLS.items()}


def kernel_files(root: Path = Path("/")) -> dict[str, bytes]:
    """Map path (relative to the root) to content for the files of /proc and /sys that labctl
    reads.
    """
    found = {}
    for pattern in _FILES:
        for path in sorted(root.glob(pattern)):
            try:
                with open(path, "rb") as file:
                    found[str(path.relative_to(root))] = file.read(_LARGEST_BYTES)
            except OSError:
                continue  # a folder, or write-only
    return found
