"""Make ready what a workload's command is made of: its setting, and data disks that nothing was
done to."""

from __future__ import annotations

from labctl.base.deadline import Deadline
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
