"""Describe a command for a machine (native or guest), and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labctl.base.cpus import CpuSet
from labctl.base.tuning import Sched

Argv = tuple[str, ...]
User = int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCgroup:
    """Limit a command by a cgroup of its own; None means no limit. `weight`: against the 100 of
    everything else on the machine. `quota_percent`: of one CPU. `memory_mib`: no more than the
    runner itself has."""

    weight: int | None = None
    quota_percent: int | None = None
    memory_mib: int | None = None
    cpus: CpuSet | None = None

    @property
    def controllers(self) -> tuple[str, ...]:
        """Return the controllers that the limits need."""
        needed = {
            "cpu": self.weight or self.quota_percent,
            "memory": self.memory_mib,
            "cpuset": self.cpus,
        }
        return tuple(name for name, limit in needed.items() if limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Describe an argv that means the same on both sides. `files`: its results to bring back, names
    or globs relative to the working directory, which is empty and the command's own.

    `environment`: the complete one; None for the machine's own with `env` added. `user`: a number,
    also of the group, or a name that the machine knows, with exactly these `capabilities` (as in
    capabilities(7), without CAP_); None for root. `scratch_mib`: size limit of each file that it
    writes. `open_files`: how many it may have open; None for the number that any machine grants.
    `setup`, `after`: commands that run in its folder before and after it, outside the measured
    window. `timeout_s`: time until it is killed; None leaves that to the caller. `label`: its name
    in messages if its argv begins with a loop of labctl's; else its program. `sched`: its own
    policy; None for its machine's. `cgroup`: a cgroup of its own.
    """

    argv: Argv
    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    user: User = None
    capabilities: tuple[str, ...] = ()
    scratch_mib: int | None = None
    open_files: int | None = None
    setup: tuple[Argv, ...] = ()
    after: tuple[Argv, ...] = ()
    timeout_s: float | None = None
    label: str | None = None
    sched: Sched | None = None
    cgroup: CommandCgroup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Define when a server is ready. `kind`: "tcp", "udp" (`value`: the port), "unix" (a path),
    "log" (a regular expression that its output matches) or "command" (an argv that ends with 0)."""

    kind: str
    value: int | str | Argv
    timeout_s: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Describe a program that lives from before a trial's warm-up to after its measured window, on
    the measured machine itself. `stop`: the signal that ends it, "TERM", "INT" or "QUIT".
    `scratch_mib`: size limit of each file that it writes, and of its output."""

    argv: Argv
    ready: Ready
    environment: Mapping[str, str]
    user: User = None
    capabilities: tuple[str, ...] = ()
    scratch_mib: int | None = None
    open_files: int | None = None
    stop: str = "TERM"
    grace_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """Describe an ext4 file system that is made on a data disk for one trial: `device`, a block
    device or a file, is mounted at `at` and belongs to `user`. `prepare`: commands that fill it;
    afterwards it is mounted again, so that the trial begins with an empty cache."""

    device: str
    at: str
    environment: Mapping[str, str]
    user: User = None
    prepare: tuple[Argv, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """Count the processes that a command left running when it ended, with the first names."""

    count: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Result of one command on its machine.

    `duration_s` is CLOCK_MONOTONIC of that machine from before the fork to after the wait. `counts`
    holds the counts of that machine's kernel during the command, as the runner read them before and
    after: see `labctl/runner/execution.py`.
    """

    returncode: int
    stdout: bytes
    stderr: bytes
    files: Mapping[str, bytes]
    duration_s: float
    counts: Mapping[str, Any]
    left: LeftBehind = LeftBehind()
