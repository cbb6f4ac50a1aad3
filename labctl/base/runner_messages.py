"""Write requests to a runner (`labctl/runner`), pack it, and check its answers."""

from __future__ import annotations

import base64
import io
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import labctl
from labctl.base.command import Command, CommandCgroup, FileSystem, LeftBehind, Server
from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import BrokenError
from labctl.base.paths import CWD, WORK
from labctl.base.tuning import Policy, Sched

# Write the programs that a runner should start as requests (`labctl/runner`).


_MIB = 1 << 20


def placement(cpus: CpuSet | None, sched: Sched | None) -> dict[str, object]:
    """Return the CPUs and the policy of a program, as a request has them."""
    sched = sched or Sched(policy=Policy.OTHER)
    return {
        "cpus": sorted(cpus) if cpus else None,
        "policy": str(sched.policy),
        "priority": sched.priority,
    }


def cgroup_name() -> str:
    """Return the name of a command's own cgroup: one for each labctl, because all share the host's
    hierarchies."""
    return f"labctl-command-{os.getpid()}"


def surroundings(command: Command, folder: str | None) -> dict[str, object]:
    """Return a request's settings of a command that does not run as the runner itself does."""
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


def _cgroup(wanted: CommandCgroup) -> dict[str, object]:
    return {
        "name": cgroup_name(),
        "weight": wanted.weight,
        "quota_percent": wanted.quota_percent,
        "memory": wanted.memory_mib * _MIB if wanted.memory_mib else None,
        "cpus": format_cpus(wanted.cpus) if wanted.cpus else None,
    }


def serve_request(servers: Sequence[Server], disks: Sequence[FileSystem]) -> dict[str, object]:
    """Return a request's settings of servers, and of file systems that are made before them."""
    return {"servers": [*map(_server, servers)], "disks": [*map(_disk, disks)], "work": WORK}


def _server(server: Server) -> dict[str, object]:
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


def _disk(disk: FileSystem) -> dict[str, object]:
    return {
        "device": disk.device,
        "at": disk.at,
        "environment": dict(disk.environment),
        "user": disk.user,
        "prepare": [list(argv) for argv in disk.prepare],
    }


# Check a runner's answers before use: in a guest they are not trusted.


_LARGEST = 2**63
"""Largest count from a runner."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_FILES = 5000
_MOST_SAID = 1 << 16
"""Limit on the bytes that are kept of a server's output."""
_MOST_NAME = 4096
"""Letters of a file's name."""
_MOST_THREADS = 100_000
_MOST_LEFT = 10
_MOST_COMM = 15
"""Letters of a process's name (proc_pid_comm(5))."""
_COUNTED = ("monotonic_ns", "pid", "tid")
"""Numbers beside the texts in a runner's readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedProgram:
    """Hold the SHA-256 of each file that a program needs to run, by its path on the machine; none
    if `problem` says why. `is_script`: programs that it starts itself are not among them."""

    files: Mapping[str, str]
    is_script: bool = False
    problem: str | None = None

    @property
    def path(self) -> str:
        """Return the program's own file, where the machine found it; it exists if there is no
        problem."""
        return next(iter(self.files))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedServer:
    """Hold how a server ended. `too_early`: by itself, before it was told to. `output`: the end of
    its output."""

    name: str
    too_early: bool
    status: int
    output: bytes


def ended(machine: str, told: Any, most: int) -> list[EndedServer]:
    """Return how servers ended, at most `most`. Raises BrokenError."""
    try:
        if not isinstance(told, list) or len(told) > most:
            raise ValueError("no list of servers")
        return [
            EndedServer(
                name=str(one["name"])[:100],
                too_early=bool(one["too_early"]),
                status=whole(one["status"]),
                output=base64.b64decode(one["output"])[:_MOST_SAID],
            )
            for one in told
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise garbage(machine, told) from error


def hashed(told: Mapping[str, Any]) -> HashedProgram:
    """Return a program's files and their hashes. Raises ValueError, KeyError or AttributeError."""
    if "problem" in told:
        return HashedProgram(files={}, problem=str(told["problem"])[:400])
    files = {str(path): str(digest) for path, digest in told["files"].items()}
    if not 0 < len(files) <= _MOST_FILES or not all(map(_SHA256.fullmatch, files.values())):
        raise ValueError("no SHA-256")
    return HashedProgram(files=files, is_script=bool(told["is_script"]))


def left_behind(told: Any) -> LeftBehind:
    """Return the processes that a command left; none of an older runner. Raises ValueError,
    KeyError or TypeError."""
    if told is None:
        return LeftBehind()
    names = tuple(str(name)[:_MOST_COMM] for name in told["names"][:_MOST_LEFT])
    return LeftBehind(count=whole(told["count"]), names=names)


def garbage(machine: str, found: Any) -> BrokenError:
    """Return the error for an invalid answer of a machine."""
    try:
        shown = str(found)[:200]
    except ValueError:  # Python prints no number of more than 4300 digits
        shown = "an endless number"
    return BrokenError(f"{machine}: answered with {shown!r}")


def whole(value: Any) -> int:
    """Return a whole number of 64 bits; raises ValueError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST:
        raise ValueError("no whole number")
    return value


def numbers(value: Any) -> dict[str, float]:
    """Return an object of finite numbers; raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError("no object")
    for number in value.values():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError("no number")
        if not abs(number) <= _LARGEST:
            raise ValueError("no number that anything counts")
    return value


def counters(value: Any) -> dict[str, str | int]:
    """Return texts of /proc with the time when they were read; raises ValueError for anything
    else."""
    if not isinstance(value, dict):
        raise ValueError("no object")
    for name, found in value.items():
        if name in _COUNTED:
            whole(found)
        elif not isinstance(found, str):
            raise ValueError("no text")
    return value


def cgroup(value: Any) -> dict[str, object]:
    """Return a runner's report on a command's cgroup; raises ValueError for anything else."""
    files = {
        str(name)[:_MOST_NAME]: {at: _text(told[at]) for at in ("set", "found")}
        for name, told in value["files"].items()
    }
    if len(files) > _MOST_FILES:
        raise ValueError("more files than a cgroup has")
    return {
        "files": files,
        "member": _text(value["member"]),
        "cpu_stat": _text(value["cpu_stat"]),
        "oom_kills": whole(value["oom_kills"]),
    }


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return value[:_MOST_SAID]


def threads(value: Any) -> dict[str, list[dict[str, str | int]]]:
    """Return two lists of threads, ids and texts of /proc; raises ValueError for anything else."""
    found = {at: [counters(thread) for thread in value[at]] for at in ("before", "after")}
    if max(map(len, found.values())) > _MOST_THREADS:
        raise ValueError("more threads than a command has")
    return found


# Pack the runner (`labctl/runner`) into the one file that goes to a machine.


_LABCTL = Path(labctl.__file__).parent
_START = "from labctl.runner.main import main\n\nmain()\n"


def runner_archive() -> bytes:
    """Return an archive that Python runs (zipapp, "The Python Zip Application Archive Format").

    Its bytes depend only on the modules' texts, so that equal runners have equal digests. Nothing
    in it is compressed: a guest's Python may lack zlib.
    """
    texts = {"__main__.py": _START, "labctl/__init__.py": ""}
    for module in sorted((_LABCTL / "runner").glob("*.py")):
        texts[f"labctl/runner/{module.name}"] = module.read_text(encoding="utf-8")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in texts.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return packed.getvalue()
