"""Describe the host's control groups (v1, v2 and hybrid), and a process's place in them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import BrokenError, HostError
from labctl.host.settings.journal import Journal
from labctl.host.settings.tunables import CgroupControllers
from labctl.host.tracers import config_value, read_config

_LIBVIRT_CONTROLLERS = ("cpuset", "memory", "devices")
"""Controllers for `cgroup_controllers` of qemu.conf beside "cpu". Not "cpuset" alone: on a hybrid
host libvirt 9.0 then fails with "v2 controller '(null)' is not available"."""

_V1_CONTROLLERS = frozenset(
    {
        *("cpuset", "cpu", "cpuacct", "blkio", "memory", "devices", "freezer", "net_cls"),
        *("perf_event", "net_prio", "hugetlb", "pids", "rdma", "misc"),
    }
)
"""Controllers among a v1 mount's options (cgroups(7)); the others are rw, xattr, name=systemd
etc."""
_OURS = ("cpu", "memory")
"""Controllers that labctl's own groups have (`own_cgroups`)."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Mount point of a controller, and the cgroup version of its files."""

    version: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Layout:
    """Describe the mounted cgroups. `controllers`: name to hierarchy. `unified`: the v2 mount, with
    or without controllers.
    """

    controllers: Mapping[str, Hierarchy]
    unified: Path | None
    rt_group_sched: bool
    """True if FIFO and RR are refused in cpu cgroups that own no real-time budget."""

    @property
    def name(self) -> str:
        """Return "v1", "v2", "hybrid" (v1 controllers beside a v2 mount) or "none"."""
        has_v1 = any(hierarchy.version == 1 for hierarchy in self.controllers.values())
        if self.unified is None:
            return "v1" if has_v1 else "none"
        return "hybrid" if has_v1 else "v2"

    @property
    def v2_refuses_realtime(self) -> bool:
        """Return whether the cpu controller is v2's, which has no budgets to give, on a kernel that
        requires one."""
        cpu = self.controllers.get("cpu")
        return cpu is not None and cpu.version == 2 and self.rt_group_sched


@dataclass(frozen=True, slots=True)
class CpuSharing:
    """Mechanism that gives native runs, guests and neighbours equal weights on this host."""

    by_cgroup: bool
    sentence: str


def detect(root: Path = Path("/")) -> Layout:
    """Return the layout of the host whose /proc and /sys lie below `root`."""
    mountinfo = (root / "proc/self/mountinfo").read_text(encoding="utf-8")
    unified = _unified_mount(mountinfo)
    v2_controllers = ""
    if unified is not None:
        v2_controllers = _text(root / unified.relative_to("/") / "cgroup.controllers")
    layout = layout_from(mountinfo, v2_controllers)
    cpu = layout.controllers.get("cpu")
    if cpu is None:
        return layout
    if cpu.version == 1:
        knob = root / cpu.folder.relative_to("/") / "cpu.rt_runtime_us"
        return Layout(layout.controllers, layout.unified, knob.exists())
    return Layout(layout.controllers, layout.unified, _groups_have_budgets(root))


def _groups_have_budgets(root: Path) -> bool:
    """Return whether this kernel gives cpu cgroups budgets of real-time policies. v2 has no file
    for them. The kernel's configuration shows it, and since 6.16 also its command line: 0 or 1,
    other values are ignored (`setup_rt_group_sched`, kernel/sched/core.c)."""
    release = _text(root / "proc/sys/kernel/osrelease").strip()
    config = read_config(release, root) or ""
    if config_value(config, "CONFIG_RT_GROUP_SCHED") != "y":
        return False
    default = "CONFIG_RT_GROUP_SCHED_DEFAULT_DISABLED"
    asked = re.findall(r"(?<!\S)rt_group_sched=([01])(?!\S)", _text(root / "proc/cmdline"))
    if asked and default in config:  # an older kernel has neither
        return bool(asked[-1] == "1")
    return config_value(config, default) != "y"


def layout_from(mountinfo: str, v2_controllers: str) -> Layout:
    """Return the layout that a /proc/self/mountinfo (proc(5)) and a v2 cgroup.controllers
    describe."""
    controllers: dict[str, Hierarchy] = {}
    for folder, fstype, options in _cgroup_mounts(mountinfo):
        if fstype == "cgroup":
            for name in _V1_CONTROLLERS.intersection(options):
                controllers.setdefault(name, Hierarchy(1, folder))
    unified = _unified_mount(mountinfo)
    if unified is not None:
        for name in v2_controllers.split():
            controllers.setdefault(name, Hierarchy(2, unified))
    return Layout(controllers, unified, rt_group_sched=False)


def mount_points(root: Path = Path("/")) -> list[Path]:
    """Return the mount points of all hierarchies on the host whose /proc lies below `root`."""
    mountinfo = (root / "proc/self/mountinfo").read_text(encoding="utf-8")
    return [root / folder.relative_to("/") for folder, _, _ in _cgroup_mounts(mountinfo)]


@contextmanager
def controllers_enabled(
    layout: Layout,
    journal: Journal,
    *,
    wanted: Collection[str] = _OURS,
) -> Iterator[None]:
    """Enable the needed controllers for children of the v2 root, except the cpu controller if it
    would block real-time policies. Does nothing on v1."""
    missing = {
        name for name in wanted if has(layout, name) and layout.controllers[name].version == 2
    }
    if layout.rt_group_sched:
        missing.discard("cpu")
    if layout.unified is None or not missing:
        yield
        return
    tunable = CgroupControllers(str(layout.unified / "cgroup.subtree_control"))
    with journal.changed(tunable, " ".join(sorted(missing | set(tunable.read().split())))):
        yield


def libvirt_controllers(layout: Layout) -> list[str]:
    """Return the value of `cgroup_controllers` in qemu.conf for this host; [] for no cgroups of
    guests.

    "cpu" is left out with CONFIG_RT_GROUP_SCHED, where `vcpusched` would fail in libvirt's cpu
    cgroup with "Cannot set scheduler parameters … Operation not permitted". On v2 the list is then
    empty: without systemd, libvirt (seen with 9.0) assumes that a guest's group has every
    controller of the root, whatever is named, and fails to enable "cpu" for the guest's threads.
    "devices" is not a v2 controller (libvirt uses BPF there) but is named all the same.
    """
    if layout.v2_refuses_realtime:
        return []
    wanted = [name for name in _LIBVIRT_CONTROLLERS if name == "devices" or has(layout, name)]
    if has(layout, "cpu") and not layout.rt_group_sched:
        wanted.insert(0, "cpu")
    return wanted


def realtime_problem(layout: Layout, root: Path = Path("/")) -> HostError | None:
    """Return why no trial on this host could have a real-time policy or be valid, with the remedy;
    None if it can.

    v2 has no budgets of real-time policies, so a cpu group refuses them (cgroup-v2.rst, "CPU"). If
    the root passes the controller on, every group below it is a cpu group. In a container with a
    cgroup namespace, the apparent root may be such a group itself.
    """
    if not layout.v2_refuses_realtime:
        return None
    cpu = layout.controllers["cpu"]
    refuses = "the kernel refuses real-time policies in cpu cgroups of v2 (CONFIG_RT_GROUP_SCHED)"
    reboot = (
        "Boot the host with 'rt_group_sched=0' (Linux 6.16 or newer), or with a kernel built "
        "without CONFIG_RT_GROUP_SCHED."
    )
    mount = root / cpu.folder.relative_to("/")
    if (mount / "cgroup.type").exists():  # all groups but the root have it
        return HostError(
            f"{refuses}, and labctl runs in such a cgroup: {cpu.folder} is not the root, so "
            "no trial here would be valid",
            hint=reboot,
        )
    file = "cgroup.subtree_control"
    if "cpu" not in _text(mount / file).split():
        return None
    return HostError(
        f"{refuses}, and every group below the root has one: {cpu.folder / file} has 'cpu', "
        "so no trial here would be valid",
        hint=f"{reboot} Or, if no group needs its CPU weight or quota, which are lost: echo -cpu "
        f"> {cpu.folder / file}. This fails while a child group, such as systemd's, uses "
        "the controller.",
    )


def libvirt_setting(layout: Layout) -> str:
    """Return the line of a daemon's qemu.conf that names `libvirt_controllers`."""
    named = ", ".join(f'"{name}"' for name in libvirt_controllers(layout))
    return f"cgroup_controllers = [{named}]"


def cpu_sharing(layout: Layout, autogroup: bool) -> CpuSharing:
    """Return how equal weights are achieved (sched(7), "The autogroup feature"). `autogroup`: is it
    on?

    An autogroup has an effect only for processes in the root cpu cgroup.
    """
    if has_cpu_groups(layout):
        return CpuSharing(
            True, "Guest, native runs and neighbours are in cpu cgroups with equal weights."
        )
    reason = (
        "this kernel refuses real-time policies in cpu cgroups (CONFIG_RT_GROUP_SCHED)"
        if layout.rt_group_sched
        else "the host offers no cpu cgroups"
    )
    if autogroup:
        return CpuSharing(
            False,
            "Guest, native runs and neighbours are separate sessions in the root cpu "
            f"cgroup, and autogrouping gives sessions equal weights: {reason}.",
        )
    return CpuSharing(
        False,
        "All threads have the same weight, so a guest or a neighbour with more threads "
        f"gets more CPU time: {reason}, and autogrouping is off.",
    )


def autogroup_enabled(root: Path = Path("/")) -> bool:
    return _text(root / "proc/sys/kernel/sched_autogroup_enabled").strip() == "1"


def placement(pid: int | str, root: Path = Path("/")) -> dict[str, str]:
    """Return a process's place from /proc: hierarchy to path, and "autogroup" if it has one. `pid`:
    a number or "self".

    The v2 hierarchy's name is "unified". Raises BrokenError if the process is gone.
    """
    folder = root / f"proc/{pid}"
    try:
        text = (folder / "cgroup").read_text(encoding="utf-8")
    except OSError as error:
        raise BrokenError(f"process {pid} is gone") from error
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found[controllers or "unified"] = path
    if autogroup := _text(folder / "autogroup").strip():
        found["autogroup"] = autogroup
    return found


def placement_problems(layout: Layout, found: Mapping[str, str], nice: int = 0) -> list[str]:
    """Return why a competitor's weight is wrong, from its `placement`; [] if it is right.

    If weights come from autogroups, each competitor must be a session of its own in the root cpu
    cgroup, at `nice`. If they come from cpu cgroups, each must be in a group of its own, not the
    root.
    """
    by_cgroup = has_cpu_groups(layout)
    path = cpu_group(layout, found)
    problems = []
    if by_cgroup and path == "/":
        problems.append("it is in the root cpu cgroup, not in its own")
    if not by_cgroup and path not in ("/", None):
        problems.append(f"it is in the cpu cgroup {path}, not in the root")
    autogroup = found.get("autogroup")
    if not by_cgroup and autogroup is not None and not autogroup.endswith(f"nice {nice}"):
        problems.append(f"its autogroup is '{autogroup}', not at nice {nice}")
    return problems


def cpu_group(layout: Layout, found: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Return the cpu cgroup of a process from its `placement`; None if it has none. On v2 that is
    the nearest group, from its own upwards, that has the controller (cgroup-v2.rst, "Controlling
    Controllers")."""
    cpu = layout.controllers.get("cpu")
    if cpu is None or cpu.version == 1:
        return next((path for names, path in found.items() if "cpu" in names.split(",")), None)
    if "unified" not in found:
        return None
    group = Path("/", found["unified"])
    mount = root / cpu.folder.relative_to("/")
    while group != Path("/"):
        if "cpu" in _text(mount / group.relative_to("/") / "cgroup.controllers").split():
            break
        group = group.parent
    return str(group)


def has_cpu_groups(layout: Layout) -> bool:
    """Return whether guests, native runs and neighbours have cpu cgroups; otherwise they are
    sessions."""
    return has(layout, "cpu") and not layout.rt_group_sched


def has(layout: Layout, controller: str) -> bool:
    return controller in layout.controllers


def _cgroup_mounts(mountinfo: str) -> Iterator[tuple[Path, str, list[str]]]:
    """Mount point, type and super options of every cgroup mount."""
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        fields, end = left.split(), right.split()
        if dash and len(fields) > 4 and len(end) > 2 and end[0] in ("cgroup", "cgroup2"):
            yield Path(fields[4]), end[0], end[2].split(",")


def _unified_mount(mountinfo: str) -> Path | None:
    for folder, fstype, _ in _cgroup_mounts(mountinfo):
        if fstype == "cgroup2":
            return folder
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
