"""Limit a command by a cgroup of its own, of either version: cgroups(7)."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from typing import Any

from labctl.runner.proc import read_text
from labctl.runner.steps import run_step

# Where hierarchies of cgroups are mounted that this machine, or our part of it, has nowhere.
CGROUPS = "/run/labctl-cgroups"
PERIOD_US = 100000  # of a quota: the kernel's default
ALL = sys.maxsize  # of memory: more than any machine has
EMPTYING_S = 2.0  # for a cgroup to let go of killed processes, or of its real-time budget


class Cgroup:
    """Limit a command by a cgroup of its own, at the top of each hierarchy that has one of its
    controllers. There it competes with the groups beside it, whose weight is 100."""

    def __init__(self, wanted: dict[str, Any], realtime: bool) -> None:
        asks = {
            "cpu": wanted.get("weight") or wanted.get("quota_percent"),
            "memory": wanted.get("memory"),
            "cpuset": wanted.get("cpus"),
        }
        found = {name: hierarchy(name) for name, asked in asks.items() if asked}
        # A v2 group covers all controllers, so it would leave the group that limits us.
        beside = [root for version, root in found.values() if version == 2]
        if beside and "memory" not in found and own_memory(beside[0], 2, "memory.max") < ALL:
            found["memory"] = hierarchy("memory")
        self.version = {name: version for name, (version, _) in found.items()}
        self.roots = {name: root for name, (_, root) in found.items()}
        self.folders = {name: at + "/" + wanted["name"] for name, at in self.roots.items()}
        self.values: dict[str, str] = {}
        self.made: list[str] = []
        self.renewed: list[str] = []
        self.enabled: list[tuple[str, str]] = []
        try:
            for name in found:
                self.make(name)
            self.limit(wanted, realtime)
        except BaseException:
            self.remove()
            raise

    def make(self, name: str) -> None:
        if self.version[name] == 2:
            passed_on = self.roots[name] + "/cgroup.subtree_control"
            if name not in (read_text(passed_on) or "").split():
                write_value(passed_on, "+" + name)
                self.enabled.append((passed_on, name))
        folder = self.folders[name]
        if folder in self.made or folder in self.renewed:
            return  # a v2 group covers all controllers
        if os.path.isdir(folder):
            # Its maker removes it; a new one holds no pages and has counted nothing yet.
            remove_cgroup(folder)
            self.renewed.append(folder)
        else:
            self.made.append(folder)
        os.mkdir(folder)

    def limit(self, wanted: dict[str, Any], realtime: bool) -> None:
        weight, quota = wanted.get("weight"), wanted.get("quota_percent")
        quota_us = quota * PERIOD_US // 100 if quota else None
        if self.version.get("cpu") == 2:
            self.set("cpu", "cpu.weight", weight or 100)
            self.set("cpu", "cpu.max", "%s %d" % (quota_us or "max", PERIOD_US))
        elif "cpu" in self.version:
            # As the kernel derives shares from a weight (kernel/sched/core.c,
            # cpu_weight_write_u64).
            self.set("cpu", "cpu.shares", max(2, (weight or 100) * 1024 // 100))
            self.set("cpu", "cpu.cfs_period_us", PERIOD_US)
            self.set("cpu", "cpu.cfs_quota_us", quota_us or -1)
            budget = read_text(self.roots["cpu"] + "/cpu.rt_runtime_us")
            if realtime and budget is not None:  # CONFIG_RT_GROUP_SCHED: else FIFO is refused
                self.set_realtime(budget.strip())
        if "memory" in self.version:
            version = self.version["memory"]
            name = "memory.max" if version == 2 else "memory.limit_in_bytes"
            most = min(wanted.get("memory") or ALL, own_memory(self.roots["memory"], version, name))
            self.set("memory", name, most)
            swap = ("memory.swap.max", 0) if version == 2 else ("memory.memsw.limit_in_bytes", most)
            if os.path.exists(self.folders["memory"] + "/" + swap[0]):
                self.set("memory", *swap)
        if "cpuset" in self.version:
            if self.version["cpuset"] == 1:
                nodes = (read_text(self.roots["cpuset"] + "/cpuset.mems") or "").strip()
                self.set("cpuset", "cpuset.mems", nodes)
            self.set("cpuset", "cpuset.cpus", wanted["cpus"])

    def set(self, controller: str, name: str, value: int | str) -> None:
        path = self.folders[controller] + "/" + name
        self.values[path] = str(value)
        write_value(path, str(value))

    def set_realtime(self, budget: str) -> None:
        """Give the group all of the real-time budget. That of a group just removed is only free
        again after a grace period of RCU (kernel/sched/core.c, cpu_cgroup_css_released)."""
        until = time.monotonic() + EMPTYING_S
        while True:
            try:
                return self.set("cpu", "cpu.rt_runtime_us", budget)
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.005)

    def enter(self) -> None:
        for folder in sorted(set(self.folders.values())):
            write_value(folder + "/cgroup.procs", "0")

    def in_force(self, member: str) -> dict[str, Any]:
        """Return each file's value as set and as read back, and how the command fared."""
        events = {1: "/memory.oom_control", 2: "/memory.events"}[self.version.get("memory", 2)]
        kills = re.search(
            r"^oom_kill (\d+)$", read_text(self.folders.get("memory", "") + events) or "", re.M
        )
        return {
            "files": {
                path: {"set": value, "found": (read_text(path) or "").strip()}
                for path, value in self.values.items()
            },
            "member": member,
            "cpu_stat": read_text(self.folders.get("cpu", "") + "/cpu.stat") or "",
            "oom_kills": int(kills.group(1)) if kills else 0,
        }

    def remove(self) -> None:
        """Remove our groups and end the processes in them. labctl removes the folders that it
        made."""
        while self.made:
            remove_cgroup(self.made[-1])
            self.made.pop()
        while self.enabled:
            passed_on, name = self.enabled[-1]
            write_value(passed_on, "-" + name)
            self.enabled.pop()


def hierarchy(controller: str) -> tuple[int, str]:
    """Return the controller's cgroup version in this kernel, and its mount point; it is mounted
    here if needed (cgroups(7), "/proc files")."""
    rows = [line.split() for line in (read_text("/proc/cgroups") or "").splitlines()[1:]]
    on = {name: number for name, number, _, enabled in rows if enabled == "1"}
    # Number 0 is v2's, and newer kernels leave out controllers that v1 lacks. Those of one v1
    # hierarchy are mounted together or not at all.
    is_v2 = on.get(controller, "0") == "0"
    together = [name for name in on if on[name] == on.get(controller)]
    kind, options = ("cgroup2", "rw") if is_v2 else ("cgroup", ",".join(together))
    at = cgroup_mount(kind, controller)
    if at is None:
        at = os.path.join(CGROUPS, "unified" if is_v2 else controller)
        os.makedirs(at, exist_ok=True)
        run_step("mounting", ["mount", "-t", kind, "-o", options, "none", at], {}, "/")
    if is_v2 and controller not in (read_text(at + "/cgroup.controllers") or "").split():
        raise OSError("this machine has no cgroup controller '%s'" % controller)
    return 2 if is_v2 else 1, at


def cgroup_mount(kind: str, controller: str) -> str | None:
    """Return the mount point of a hierarchy's root (proc_pid_mountinfo(5))."""
    for line in (read_text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, (found, _, options) = left.split(), right.split(None, 2)
        is_ours = found == kind and (kind == "cgroup2" or controller in options.split(","))
        if is_ours and fields[3] == "/":
            return fields[4]
    return None


def own_memory(root: str, version: int, name: str) -> int:
    """Return the memory limit of this program's group; the new group's is not below it."""
    wanted = "" if version == 2 else "memory"
    for line in (read_text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if wanted in controllers.split(","):
            text = (read_text(root + path + "/" + name) or "").strip()
            return int(text) if text.isdigit() else ALL
    return ALL


def remove_cgroup(folder: str) -> None:
    """End what is in a cgroup, and remove it."""
    until = time.monotonic() + EMPTYING_S
    while os.path.isdir(folder):
        for pid in (read_text(folder + "/cgroup.procs") or "").split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.rmdir(folder)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def write_value(path: str, value: str) -> None:
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(value.encode())
    except OSError as error:
        raise OSError("cannot set %s to %s: %s" % (path, value, error.strerror)) from None
