"""Put what a runner is to start into the words of its requests (`labctl/runner`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from labctl.base.command import Command, CommandCgroup, FileSystem, Server
from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.places_inside import CWD, WORK
from labctl.base.tuning import Policy, Sched

_MIB = 1 << 20


def placement(cpus: CpuSet | None, sched: Sched | None) -> dict[str, Any]:
    """Return on which CPUs and under which policy a request asks for a program."""
    sched = sched or Sched(policy=Policy.OTHER)
    return {
        "cpus": sorted(cpus) if cpus else None,
        "policy": str(sched.policy),
        "priority": sched.priority,
    }


def cgroup_name() -> str:
    """Return the name of the cgroup that a command has of its own: one for each labctl, as the
    host's hierarchies are shared."""
    return f"labctl-command-{os.getpid()}"


def surroundings(command: Command, folder: str | None) -> dict[str, Any]:
    """Return what a request says of a command that doesn't run as the runner itself does."""
    if command.environment is None:
        return {"folder": folder}
    return {
        "environment": dict(command.environment),
        "work": WORK,
        "folder": CWD,
        "user": command.user,
        "capabilities": list(command.capabilities),
        "largest": command.scratch_mib * _MIB if command.scratch_mib else None,
        "open_files": command.open_files,
        "setup": [list(argv) for argv in command.setup],
        "after": [list(argv) for argv in command.after],
        **({"cgroup": _cgroup(command.cgroup)} if command.cgroup else {}),
    }


def _cgroup(wanted: CommandCgroup) -> dict[str, Any]:
    return {
        "name": cgroup_name(),
        "weight": wanted.weight,
        "quota_percent": wanted.quota_percent,
        "memory": wanted.memory_mib * _MIB if wanted.memory_mib else None,
        "cpus": format_cpus(wanted.cpus) if wanted.cpus else None,
    }


def serve_request(servers: Sequence[Server], disks: Sequence[FileSystem]) -> dict[str, Any]:
    """Return what a request says of servers, and of file systems that are made before them."""
    return {"servers": [*map(_server, servers)], "disks": [*map(_disk, disks)], "work": WORK}


def _server(server: Server) -> dict[str, Any]:
    ready = server.ready
    return {
        "argv": list(server.argv),
        "environment": dict(server.environment),
        "user": server.user,
        "capabilities": list(server.capabilities),
        "largest": server.scratch_mib * _MIB if server.scratch_mib else None,
        "open_files": server.open_files,
        "stop": server.stop,
        "grace_s": server.grace_s,
        "ready": {
            "kind": ready.kind,
            "value": list(ready.value) if isinstance(ready.value, tuple) else ready.value,
            "timeout_s": ready.timeout_s,
        },
    }


def _disk(disk: FileSystem) -> dict[str, Any]:
    return {
        "device": disk.device,
        "at": disk.at,
        "environment": dict(disk.environment),
        "user": disk.user,
        "prepare": [list(argv) for argv in disk.prepare],
    }
