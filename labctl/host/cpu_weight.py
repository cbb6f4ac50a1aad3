"""Give a guest or a command a CPU weight other than its neighbours', and read it back.

The carrier of the weight depends on the host (`cgroups.cpu_sharing`): the cpu cgroups of guests and
native runs, or the autogroups of their sessions, whose nice value is a weight in steps of a
quarter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from labctl.base.errors import BrokenError
from labctl.host.cgroups import Layout, has_cpu_groups, placement, placement_problems
from labctl.host.own_cgroups import Cgroup, CpuLimits

DEFAULT = 100
_AUTOGROUPS = "sched-autogroup"
"""Knob of the host that switches autogroups off."""


def autogroup_nice(weight: int | None) -> int:
    """Return the nice value of an autogroup that comes nearest to a weight: each step is a factor
    of 1.25 (sched(7), "The nice value and group scheduling")."""
    steps = round(math.log((weight or DEFAULT) / DEFAULT, 1.25))
    return min(19, max(-20, -steps))


def why_no_weight(layout: Layout, autogroups: bool, host: Mapping[str, str]) -> str | None:
    """Return why weights cannot be set on this host; None if they can. `autogroups`: are they on?
    `host`: the knobs of the host that a tuning sets."""
    if has_cpu_groups(layout) or (autogroups and host.get(_AUTOGROUPS) != "0"):
        return None
    return "it needs cpu cgroups or autogroups, by which a guest has a weight: there are none here"


def group_limits(layout: Layout, weight: int | None) -> CpuLimits | None:
    """Return the limits of a cgroup of that weight; None if the weight is not set by a cgroup."""
    if weight is None or not has_cpu_groups(layout):
        return None
    return CpuLimits(weight=weight)


def libvirt_shares(layout: Layout, weight: int) -> int | None:
    """Return the value of libvirt's `<shares>` for a weight, in the unit of the hierarchy's own
    file. None if the weight is not set by a cgroup."""
    limits = group_limits(layout, weight)
    if limits is None:
        return None
    (shares,) = limits.files(layout.controllers["cpu"].version).values()
    return int(shares)


def weigh_session(layout: Layout, pid: int, weight: int | None) -> None:
    """Set the weight of a process's session, if weights come from sessions and it is not the
    default. Raises BrokenError if the kernel refuses it."""
    if weight is None or has_cpu_groups(layout):
        return
    nice = autogroup_nice(weight)
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")
    except OSError as error:
        raise BrokenError(
            f"the session of process {pid} can't have the nice value {nice}: {error.strerror}"
        ) from error


def session_problems(layout: Layout, pid: int, weight: int | None) -> list[str]:
    """Return why a process's weight is wrong, by its cgroup and its session."""
    return placement_problems(layout, placement(pid), autogroup_nice(weight))


def group_problems(layout: Layout, group: Cgroup, weight: int | None) -> list[str]:
    """Return why a cgroup's weight is wrong; [] also if the weight is not set by a cgroup."""
    limits = group_limits(layout, weight)
    if limits is None:
        return []
    problems = []
    for name, wanted in limits.files(layout.controllers["cpu"].version).items():
        path = group.folders["cpu"] / name
        try:
            found = path.read_text(encoding="ascii").strip()
        except OSError as error:
            found = str(error.strerror)
        if found != wanted:
            problems.append(f"{path}: expected {wanted}, got {found}")
    return problems
