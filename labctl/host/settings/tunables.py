"""Read, write and rebuild the host's knobs from a journal's entries."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus

ABSENT = "absent"
PRESENT = "present"

_KERNEL_FOLDERS = ("/proc/", "/sys/", "/dev/", "/run/")
"""Folders made anew at each boot (procfs, sysfs, devtmpfs, tmpfs): nothing to undo after one."""

_EMPTYING_S = 2.0
"""Time for killed processes to leave their cgroup."""


class StillUsedError(Exception):
    """Report that the old value can't be restored because another process relies on the new one."""


class Tunable(Protocol):
    """Read and write one knob. `read` returns a value that `write` accepts, so that a saved value
    can be restored.

    Both raise OSError; `read` raises FileNotFoundError if the knob's object is gone. `kind` and
    `arguments` are enough for `labctl.host.settings.journal.rebuild` to make an equal one.
    """

    kind: ClassVar[str]

    @property
    def name(self) -> str: ...

    @property
    def survives_reboot(self) -> bool: ...

    def arguments(self) -> dict[str, str]: ...

    def read(self) -> str: ...

    def write(self, value: str) -> None: ...


@dataclass(frozen=True, slots=True)
class PathTunable:
    """Name a setting by its path, which determines whether it lasts over a reboot."""

    path: str

    @property
    def name(self) -> str:
        return self.path

    @property
    def survives_reboot(self) -> bool:
        return not self.path.startswith(_KERNEL_FOLDERS)

    def arguments(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class FileValue(PathTunable):
    """Read and write a setting that is one file of /proc/sys or /sys."""

    kind: ClassVar[str] = "file-value"

    def read(self) -> str:
        return selected(_text(self.path))

    def write(self, value: str) -> None:
        # No O_CREAT and no O_TRUNC: the kernel's files need neither, and a missing file is an
        # error.
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            # An empty write(2) does nothing: an empty value is set by an empty line.
            os.write(descriptor, (value or "\n").encode())
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class CpuMask(PathTunable):
    """Read and write a kernel file that holds CPUs as a hexadecimal mask; read as a CPU list
    ("0-3,8")."""

    kind: ClassVar[str] = "cpu-mask"

    def read(self) -> str:
        text = _text(self.path).strip()
        try:
            mask = int(text.replace(",", ""), 16)
        except ValueError:
            raise OSError(
                errno.EINVAL, f"it holds '{text}', which is not a mask", self.path
            ) from None
        return format_cpus(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)

    def write(self, value: str) -> None:
        FileValue(self.path).write(cpu_mask(parse_cpus(value)))


@dataclass(frozen=True, slots=True)
class FileAccess(PathTunable):
    """Access rights of a path, as "uid:gid:mode" with an octal mode ("0:108:0660")."""

    kind: ClassVar[str] = "file-access"

    @property
    def name(self) -> str:
        return f"access to {self.path}"

    def read(self) -> str:
        status = os.stat(self.path)
        return access(status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))

    def write(self, value: str) -> None:
        uid, gid, mode = value.split(":")
        # chown(2) clears set-user-ID bits, so the mode comes last.
        os.chown(self.path, int(uid), int(gid))
        os.chmod(self.path, int(mode, 8))


@dataclass(frozen=True, slots=True)
class CgroupFolder(PathTunable):
    """Make or remove a cgroup of ours: "present" or "absent". Removing it kills its processes."""

    kind: ClassVar[str] = "cgroup"

    @property
    def name(self) -> str:
        return f"cgroup {self.path}"

    def read(self) -> str:
        return PRESENT if os.path.isdir(self.path) else ABSENT

    def write(self, value: str) -> None:
        if value == PRESENT:
            os.mkdir(self.path)
            return
        deadline = time.monotonic() + _EMPTYING_S
        while True:
            for pid in self._members():
                _kill(pid)
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:
                # EBUSY until the kernel has removed the last member.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _members(self) -> list[int]:
        try:
            return [int(pid) for pid in Path(self.path, "cgroup.procs").read_text().split()]
        except FileNotFoundError:
            return []


@dataclass(frozen=True, slots=True)
class CgroupControllers(PathTunable):
    """Set the controllers that a v2 cgroup's children have: its cgroup.subtree_control."""

    kind: ClassVar[str] = "cgroup-controllers"

    def read(self) -> str:
        return " ".join(sorted(Path(self.path).read_text(encoding="utf-8").split()))

    def write(self, value: str) -> None:
        wanted, present = set(value.split()), set(self.read().split())
        self._apply("+", wanted - present)
        try:
            self._apply("-", present - wanted)
        except OSError as error:
            # EBUSY: a child passes the controller on to its own children (libvirt's /machine does),
            # so others use it by now (cgroup v2, "Top-down Constraint").
            raise StillUsedError("another cgroup uses the controllers by now") from error

    def _apply(self, sign: str, controllers: set[str]) -> None:
        for controller in sorted(controllers):
            FileValue(self.path).write(sign + controller)


@dataclass(frozen=True, slots=True)
class Hugetlbfs(PathTunable):
    """Mount or unmount a hugetlbfs of ours, "present" or "absent", with its folder. `size`: of its
    pages, in the form of mount(8) ("2M")."""

    size: str
    kind: ClassVar[str] = "hugetlbfs"

    @property
    def name(self) -> str:
        return f"hugetlbfs {self.path}"

    @property
    def survives_reboot(self) -> bool:
        return False

    def read(self) -> str:
        return PRESENT if os.path.ismount(self.path) else ABSENT

    def write(self, value: str) -> None:
        if value == PRESENT:
            os.makedirs(self.path, mode=0o755, exist_ok=True)
            options = f"pagesize={self.size}".encode()
            try:
                _called("mount", b"labctl", os.fsencode(self.path), b"hugetlbfs", 0, options)
            except OSError:
                os.rmdir(self.path)
                raise
        else:
            _called("umount2", os.fsencode(self.path), 0)
            os.rmdir(self.path)


def _called(name: str, *arguments: bytes | int) -> None:
    """Call a function of the C library that returns 0 or sets errno; raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    # To ctypes an int is 32 bits wide, but mount(2) takes its flags as a long.
    passed = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    if getattr(library, name)(*passed) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def selected(text: str) -> str:
    """Return the value in the text of a setting's file: the bracketed word of "always [madvise]
    never"."""
    chosen = re.search(r"\[([^\]\s]+)\]", text)
    return chosen.group(1) if chosen else text.strip()


def cpu_mask(cpus: CpuSet) -> str:
    """Return CPUs in hexadecimal, in groups of 32 bits as in the kernel's lib/bitmap-str.c."""
    digits = f"{sum(1 << cpu for cpu in cpus):x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    return ",".join(digits[start : start + 8] for start in range(0, len(digits), 8))


def access(uid: int, gid: int, mode: int) -> str:
    """Return the value of a FileAccess."""
    return f"{uid}:{gid}:{mode:04o}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        # Its files disappear while a CPU is offline and return with it: that is not "gone".
        cpu = re.search(r"^(.*/devices/system/cpu/cpu\d+)/", path)
        if cpu and _is_offline(Path(cpu.group(1))):
            raise OSError(errno.ENXIO, f"{Path(cpu.group(1)).name} is offline", path) from None
        raise


def _is_offline(cpu: Path) -> bool:
    try:
        return (cpu / "online").read_text(encoding="ascii").strip() == "0"
    except OSError:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
