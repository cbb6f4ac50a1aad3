"""Make ready what a workload's command is made of: its setting, data disks that nothing was done
to, and on the host the cgroup that it has of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from labctl.base.command import Command
from labctl.base.deadline import Deadline
from labctl.base.runner_requests import cgroup_name
from labctl.base.tuning import Kind
from labctl.host.own_cgroups import command_cgroup
from labctl.run.guests.bench import Bench
from labctl.run.guests.lab import Lab
from labctl.study.study import StudyWorkload
from labctl.workloads.setting import Setting
from labctl.workloads.workload import Workload


def setting_of(lab: Lab, bench: Bench, workload: Workload, declared: StudyWorkload) -> Setting:
    """Return what a workload's command on that machine is made of. Raises UsageError for parameters
    that it doesn't have."""
    return Setting(
        parameters=workload.check_parameters(declared.parameters),
        vcpus=lab.vcpus,
        duration_s=declared.duration_s,
        data_paths=bench.data_paths,
        peer=bench.peer,
        cpus=bench.cpus,
    )


def new_data(lab: Lab, bench: Bench, workload: Workload, setting: Setting) -> None:
    """Give a workload that uses the data disks pristine ones, which are in no cache."""
    if workload.uses_data_disk:
        lab.data.reset()
        lab.data.is_dirty = workload.writes_data_disk(setting.parameters)
        deadline = Deadline.after(60, "dropping the data disks from the caches")
        for path in bench.data_paths:
            bench.channel.forget(path, deadline)
        lab.data.forget()


@contextmanager
def cgroup_of(lab: Lab, bench: Bench, command: Command) -> Iterator[None]:
    """Have the cgroup of a native command in the undo journal: its runner sets it. In a guest the
    runner makes it as well. Raises HostError where the host has no such controller."""
    if command.cgroup is None or bench.kind is not Kind.NATIVE:
        yield
        return
    with command_cgroup(lab.layout, lab.journal, cgroup_name(), command.cgroup.controllers):
        yield
