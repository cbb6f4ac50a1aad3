"""Make labctl's own control groups, and remove those that killed guests left behind."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import BrokenError, HostError
from labctl.host.cgroups import (
    Hierarchy,
    Layout,
    controllers_enabled,
    has,
    has_cpu_groups,
    mount_points,
)
from labctl.host.settings.journal import Journal
from labctl.host.settings.tunables import PRESENT, CgroupFolder

# Make labctl's own control groups, with their limits, or say why this host has none.


_V1_USAGE, _V2_USAGE = "cpuacct.usage", "cpu.stat"
_PERIOD_US = 100_000
"""Period of a quota: the kernel's default."""
_V1_SHARES = 1024
_V2_WEIGHT = 100
"""Default of the kernel and libvirt, so that our groups weigh as much as libvirt's /machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLimits:
    """Hold a group's CPU limits. `weight`: against others' 100, as in v2. `quota_percent`: of one
    CPU; None for no limit."""

    weight: int = _V2_WEIGHT
    quota_percent: int | None = None

    def files(self, version: int) -> dict[str, str]:
        """Return the files of a cpu cgroup for these limits, and their values."""
        quota_us = None if self.quota_percent is None else self.quota_percent * _PERIOD_US // 100
        if version == 2:
            limit = {} if quota_us is None else {"cpu.max": f"{quota_us} {_PERIOD_US}"}
            return {"cpu.weight": str(self.weight), **limit}
        # Two is the minimum (kernel/sched/core.c, MIN_SHARES).
        shares = max(2, self.weight * _V1_SHARES // _V2_WEIGHT)
        limit = {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
        return {"cpu.shares": str(shares), **({} if quota_us is None else limit)}


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Hold a cgroup of ours in each hierarchy that it needs (its folders), for one competitor."""

    folders: Mapping[str, Path]
    memory: Hierarchy | None
    cpu_root: Path | None
    """Root of the v1 cpu hierarchy; members must be there to have real-time policies."""
    accounts: Path | None = None
    """File with the CPU time of its members; None if no hierarchy has one."""

    def cpu_ns(self) -> int | None:
        """Return the CPU time of all processes that were ever in it, in ns; None if no hierarchy
        accounts for it. Raises BrokenError if the group is gone."""
        if self.accounts is None:
            return None
        try:
            text = self.accounts.read_text(encoding="ascii")
        except OSError as error:
            raise BrokenError(f"{self.accounts} cannot be read: {error.strerror}") from error
        if self.accounts.name == _V1_USAGE:
            return int(text)
        return int(dict(line.split() for line in text.splitlines())["usage_usec"]) * 1000

    def add(self, pid: int) -> None:
        """Move a process here; children that it forks later follow it."""
        targets = {*self.folders.values()} | ({self.cpu_root} if self.cpu_root else set())
        for folder in sorted(targets):
            try:
                (folder / "cgroup.procs").write_text(str(pid))
            except OSError as error:
                raise HostError(
                    f"cannot move process {pid} to the cgroup {folder}: {error.strerror}",
                    hint="Run labctl as root, on a host whose cgroups are writable.",
                ) from error

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel killed because the group ran out of memory.

        Raises BrokenError if the kernel does not count them (before 4.13 on v1) or there is no
        limit.
        """
        if self.memory is None:
            raise BrokenError("a cgroup without a memory limit counts no out-of-memory kills")
        name = "memory.events" if self.memory.version == 2 else "memory.oom_control"
        path = self.folders["memory"] / name
        return oom_kill_count(path.read_text(encoding="utf-8"), path)


def why_no_command_cgroup(layout: Layout, controllers: Collection[str]) -> str | None:
    """Return why a native command cannot have a cgroup with these controllers; None if it can."""
    for controller in controllers:
        if not has(layout, controller):
            return f"this host has no cgroup controller '{controller}'"
    return _why_no_cpu_group(layout) if "cpu" in controllers else None


def _why_no_cpu_group(layout: Layout) -> str | None:
    """Return why labctl makes no cpu group here. On v2, enabling the controller for one group puts
    all its sibling groups into cpu groups as well, those of native runs and guests included."""
    if not layout.v2_refuses_realtime:
        return None
    return (
        "on this kernel (CONFIG_RT_GROUP_SCHED, cgroup v2) a cpu cgroup would take real-time "
        "policies from guests and native runs"
    )


@contextmanager
def command_cgroup(
    layout: Layout, journal: Journal, name: str, controllers: Collection[str]
) -> Iterator[None]:
    """Keep in the journal the folders of a cgroup by which a native runner limits its command, at
    the top of each hierarchy that has one of these controllers. Raises HostError if none has."""
    if why := why_no_command_cgroup(layout, controllers):
        raise HostError(why)
    # A v2 group covers all controllers, so the memory of the guest is a limit there as well.
    wanted = {*controllers}
    if wanted and layout.name == "v2" and has(layout, "memory"):
        wanted.add("memory")
    folders = {layout.controllers[one].folder / name for one in wanted}
    with ExitStack() as stack:
        stack.enter_context(controllers_enabled(layout, journal, wanted=wanted))
        for folder in sorted(folders):
            stack.enter_context(journal.changed(CgroupFolder(str(folder)), PRESENT))
        yield


def why_no_limits(layout: Layout, limits: CpuLimits) -> str | None:
    """Return why a group cannot have such limits on this host; None if it can."""
    cpu = layout.controllers.get("cpu")
    if cpu is None:
        return "the host has no cpu cgroups, in which a weight or a quota is set"
    if why := _why_no_cpu_group(layout):
        return why
    has_quotas = cpu.version == 2 or (cpu.folder / "cpu.cfs_quota_us").exists()
    if limits.quota_percent is not None and not has_quotas:
        return "the host's cpu cgroups have no quotas (CONFIG_CFS_BANDWIDTH)"
    return None


@contextmanager
def group(
    layout: Layout,
    journal: Journal,
    name: str,
    *,
    memory_bytes: int | None = None,
    limits: CpuLimits | None = None,
    accounted: bool = False,
) -> Iterator[Cgroup]:
    """Make a group "labctl-NAME" at the top of each hierarchy, beside libvirt's /machine.

    Its cpu weight is the default unless `limits` say otherwise, its memory at most `memory_bytes`
    (no swap on top). `accounted`: `Cgroup.cpu_ns` reports its CPU time, if any hierarchy of the
    host accounts for it. The journal lists it, so that SIGKILL leaves none behind; at the end,
    processes still in it are killed. Raises HostError if a limit is requested and the host has no
    such cgroups.
    """
    memory = layout.controllers.get("memory") if memory_bytes is not None else None
    if memory_bytes is not None and memory is None:
        raise HostError(
            "the host has no memory cgroups, so native runs can't get the guest's memory",
            hint="Boot the host with 'cgroup_enable=memory'.",
        )
    if limits is not None and (why := why_no_limits(layout, limits)):
        raise HostError(f"cannot limit what a cgroup takes of CPUs: {why}")
    cpu = layout.controllers.get("cpu")
    # Limits need a cpu cgroup, which refuses real-time policies if the kernel has budgets.
    by_cgroup = cpu is not None and (limits is not None or has_cpu_groups(layout))
    folders: dict[str, Path] = {}
    if cpu is not None and by_cgroup:
        folders["cpu"] = cpu.folder / f"labctl-{name}"
    if memory is not None:
        folders["memory"] = memory.folder / f"labctl-{name}"
    accounts = None
    if accounted and (found := _accounting(layout)):
        folders["cpuacct"] = found.parent / f"labctl-{name}"
        accounts = folders["cpuacct"] / found.name
    with ExitStack() as stack:
        stack.enter_context(controllers_enabled(layout, journal))
        for folder in sorted(set(folders.values())):
            stack.enter_context(journal.changed(CgroupFolder(str(folder)), PRESENT))
        if cpu is not None and by_cgroup:
            for file, value in (limits or CpuLimits()).files(cpu.version).items():
                _set(folders["cpu"] / file, value)
        if memory is not None and memory_bytes is not None:
            _limit_memory(folders["memory"], memory.version, memory_bytes)
        cpu_root = cpu.folder if cpu and cpu.version == 1 and not by_cgroup else None
        yield Cgroup(folders, memory, cpu_root, accounts)


def _accounting(layout: Layout) -> Path | None:
    """Return the path, below a hierarchy's root, of the file with a group's CPU time. A v2 group
    has it without any controller (Documentation/admin-guide/cgroup-v2.rst, "cpu.stat")."""
    if (v1 := layout.controllers.get("cpuacct")) is not None and v1.version == 1:
        return v1.folder / _V1_USAGE
    return None if layout.unified is None else layout.unified / _V2_USAGE


def oom_kill_count(text: str, path: Path) -> int:
    """Return the counter `oom_kill` in the text of memory.oom_control (v1) or memory.events
    (v2)."""
    count = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    if count is None:
        raise BrokenError(f"{path} has no counter 'oom_kill'")
    return int(count.group(1))


def _limit_memory(folder: Path, version: int, memory_bytes: int) -> None:
    if version == 2:
        _set(folder / "memory.max", str(memory_bytes))
        swap, value = folder / "memory.swap.max", "0"
    else:
        _set(folder / "memory.limit_in_bytes", str(memory_bytes))
        swap, value = folder / "memory.memsw.limit_in_bytes", str(memory_bytes)
    if swap.exists():  # absent without swap accounting
        _set(swap, value)


def _set(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except OSError as error:
        raise HostError(f"cannot set {path} to {value}: {error.strerror}") from error


# Remove cgroups of guests that a killed embedded libvirt left behind.
#
# libvirt makes one per guest in each hierarchy that it uses, and removes it when it sees the guest
# end. After SIGKILL it cannot see that: the next labctl ends the guest before it opens libvirt.


_PARTITIONS = ("machine", "machine.slice")
"""Folders of guests' cgroups: libvirt's own, and systemd's. systemd removes its scopes but not what
libvirt made beside them in v1 hierarchies that systemd does not use."""

_EMPTYING_S = 2.0
"""Time for a process to leave its cgroup: that happens some time after it is gone from /proc."""


def of_guests(libvirt_root: Path, names: re.Pattern[str], root: Path = Path("/")) -> list[Path]:
    """Return the cgroups, below `root`, of guests of these names that a libvirt embedded with that
    root folder has started, running or not.

    Their names hold the SHA-256 of the root folder's name (libvirt's
    virDomainDriverGenerateRootHash), so that neither a daemon's guests nor those of another state
    folder match.
    """
    digest = hashlib.sha256(str(libvirt_root).encode()).hexdigest()[:8]
    name = re.compile(
        rf"(machine-)?qemu-embed-{digest}-\d+-(?:{names.pattern})\.(libvirt-qemu|scope)"
    )
    return [
        path
        for folder in _partitions(root)
        for path in sorted(folder.iterdir())
        # systemd.unit(5): a "-" that is not a separator is escaped.
        if name.fullmatch(path.name.replace("\\x2d", "-"))
    ]


def remove(group: Path) -> None:
    """Remove a cgroup, and the groups that libvirt made in it for the guest's threads; do nothing
    if it is gone.

    Raises OSError, and removes nothing, if processes are still in it.
    """
    deadline = time.monotonic() + _EMPTYING_S
    with suppress(FileNotFoundError):
        while not _is_empty(group):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "there is still a process in it", str(group))
            time.sleep(0.01)
        for folder, _, _ in os.walk(group, topdown=False):
            os.rmdir(folder)


def remove_empty_partitions(root: Path = Path("/")) -> None:
    """Remove the partitions that libvirt made for its guests and left behind. systemd's own slice
    stays, and so does a partition with another guest."""
    for mount in mount_points(root):
        with suppress(OSError):  # missing or in use: rmdir(2) removes only empty ones
            os.rmdir(mount / _PARTITIONS[0])


def _partitions(root: Path) -> Iterator[Path]:
    for mount in mount_points(root):
        for name in _PARTITIONS:
            if (folder := mount / name).is_dir():
                yield folder


def _is_empty(group: Path) -> bool:
    events = group / "cgroup.events"
    if events.exists():
        # On v2 it counts all groups below, and in threaded groups cgroup.procs can't be read.
        return "populated 0" in events.read_text(encoding="ascii").splitlines()
    folders = (Path(folder) for folder, _, _ in os.walk(group))
    return not any((folder / "cgroup.procs").read_text(encoding="ascii") for folder in folders)
