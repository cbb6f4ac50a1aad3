"""Define how checks read the host: files below a root, and the output of commands that only
read."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from labctl.base import process
from labctl.base.cpus import CpuSet, parse_cpus
from labctl.base.errors import HostError
from labctl.base.process import Deadline

_COMMAND_S = 10.0


@dataclass(frozen=True, slots=True)
class Output:
    returncode: int
    text: str
    """Its standard output, then its standard error."""


@dataclass(frozen=True, slots=True)
class Access:
    """Owner, group and mode of a file: stat(2). `mode` without the file's type."""

    uid: int
    gid: int
    mode: int


class RunTool(Protocol):
    def __call__(self, argv: Sequence[str], *, seconds: float = _COMMAND_S) -> Output | None: ...


def run_tool(argv: Sequence[str], *, seconds: float = _COMMAND_S) -> Output | None:
    """Return the output of a command; None if it is not installed, or takes longer than that."""
    try:
        done = process.run(
            argv,
            deadline=Deadline.after(seconds, f"'{argv[0]}'"),
            check=False,
            env={"LC_ALL": "C"},
        )
    except HostError:
        return None
    return Output(done.returncode, done.stdout + done.stderr)


@dataclass(frozen=True, slots=True)
class Reader:
    """Read below `root`; paths are those of the host. A file that can't be read is None."""

    root: Path = Path("/")
    run: RunTool = run_tool

    def path(self, path: str | Path) -> Path:
        return self.root / str(path).lstrip("/")

    def text(self, path: str) -> str | None:
        """Return the text of a file, stripped; None also if the file is missing."""
        try:
            return self.path(path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        text = self.text(path)
        return int(text) if text and re.fullmatch(r"-?\d+", text) else None

    def cpus(self, path: str) -> CpuSet | None:
        """Return a CPU list; None if there is none (newer kernels write "(null)" for none at
        all)."""
        text = self.text(path)
        try:
            return None if text is None else parse_cpus(text.replace("(null)", ""))
        except ValueError:
            return None

    def names(self, folder: str, pattern: str = "*") -> list[str]:
        """Return the names in a folder that match, in natural order; [] if the folder is
        missing."""
        return sorted((path.name for path in self.path(folder).glob(pattern)), key=_natural)

    def exists(self, path: str) -> bool:
        """Return whether a file exists, whether or not its folder is readable."""
        try:
            return self.path(path).exists()
        except PermissionError:
            return False

    def access(self, path: str) -> Access | None:
        try:
            found = os.stat(self.path(path))
        except OSError:
            return None
        return Access(found.st_uid, found.st_gid, found.st_mode & 0o7777)

    def may_write(self, path: str) -> bool:
        """Return whether we may read and write a file, or make one in a folder."""
        return os.access(self.path(path), os.R_OK | os.W_OK, effective_ids=True)

    def inode(self, path: str | Path) -> int | None:
        try:
            return os.stat(self.path(path)).st_ino
        except OSError:
            return None

    def free_bytes(self, folder: Path) -> int:
        """Return the free bytes below a folder, or below its nearest parent."""
        return shutil.disk_usage(self._nearest(folder)).free

    def device(self, folder: Path) -> str:
        """Return "major:minor" of the file system that holds a folder, or its nearest parent."""
        number = os.stat(self._nearest(folder)).st_dev
        return f"{os.major(number)}:{os.minor(number)}"

    def _nearest(self, folder: Path) -> Path:
        found = self.path(folder)
        while not found.exists():
            found = found.parent
        return found

    def process_status(self, field: str) -> str:
        """Return a field of our own /proc/self/status (proc_pid_status(5)); "" if it is missing."""
        status = self.text("/proc/self/status") or ""
        found = re.search(rf"^{field}:\s*(.*)$", status, re.MULTILINE)
        return found[1].strip() if found else ""

    def is_root(self) -> bool:
        """Return whether our effective user is root."""
        return self.process_status("Uid").split()[1:2] == ["0"]

    def has_capability(self, number: int) -> bool:
        """Return whether we have a capability in effect; by its number in linux/capability.h."""
        return bool(int(self.process_status("CapEff") or "0", 16) >> number & 1)

    def flags(self) -> frozenset[str] | None:
        """Return the first CPU's flags; None if /proc/cpuinfo lists none (not x86)."""
        found = re.search(r"^flags\s*:(.*)$", self.text("/proc/cpuinfo") or "", re.MULTILINE)
        return frozenset(found[1].split()) if found else None

    def running(self, name: str) -> list[int]:
        """Return the pids of the processes whose program has that name (at most 15 characters)."""
        pids = self.names("/proc", "[0-9]*")
        return [int(pid) for pid in pids if self.text(f"/proc/{pid}/comm") == name[:15]]

    def program(self, name: str) -> str | None:
        """Return the path of a program in PATH; None if it is not installed."""
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        return shutil.which(name, path=os.pathsep.join(str(self.path(f)) for f in folders if f))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort "node10" after "node9"."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]
