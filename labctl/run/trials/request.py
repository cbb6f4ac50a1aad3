"""Define one attempt at a trial: its workload, its setting, and its validity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from labctl.base.command import Command
from labctl.base.process import Deadline
from labctl.base.runner_messages import cgroup_name
from labctl.base.tuning import Kind, Level
from labctl.collect.collector import Calibration, uncalibrated
from labctl.host.own_cgroups import command_cgroup
from labctl.run.guests.bench import Bench
from labctl.run.guests.lab import Lab
from labctl.run.planning.conditions import condition_of
from labctl.run.trials.beside import Neighbours, no_neighbours
from labctl.store.records.plan_record import PlannedTrial
from labctl.store.samples import Reading, Unavailable
from labctl.study.conditions import Condition
from labctl.study.plan import Plan
from labctl.study.study import Limits, StudyWorkload
from labctl.workloads.registry import workload_of
from labctl.workloads.setting import Setting
from labctl.workloads.workload import Workload

SLACK_S = 60.0
"""Time, beyond its duration, for a workload to start and to write its report."""


def unnoted(text: str) -> None:
    """Ignore a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    planned: PlannedTrial
    attempt: int
    workload: Workload
    declared: StudyWorkload
    limits: Limits
    condition: Condition | None = None
    """Neighbours of the trial; None for a quiet one."""
    neighbours: Callable[[], AbstractContextManager[Neighbours]] = no_neighbours
    """Starts them; they wait."""
    level: Level
    window_rates: dict[tuple[str, str, str], float]
    """Machine's kind, workload and program to the operations per second that size a warm-up
    window; the first trial determines them for all."""
    traces: bool = True
    """True if the disk has room for the recordings of level `trace`."""
    calibration: Calibration = uncalibrated
    note: Callable[[str], None] = unnoted
    """Takes what is odd about a program's run, in a sentence."""

    @classmethod
    def of(cls, plan: Plan, trial: PlannedTrial, **given: Any) -> TrialRequest:
        """Return the request for a trial of a plan. `given`: what the plan does not contain."""
        declared = plan.workloads[plan.workload_of(trial.cell)]
        return cls(
            planned=trial,
            workload=workload_of(declared),
            declared=declared,
            limits=limits_of(plan, declared),
            condition=condition_of(plan, trial.cell["condition"]),
            level=plan.collect,
            **given,
        )


# Prepare the inputs of a workload's command: its setting, pristine data disks, and on the host its
# own cgroup.


def setting_of(lab: Lab, bench: Bench, workload: Workload, declared: StudyWorkload) -> Setting:
    """Return the inputs of a workload's command on that machine. Raises UsageError for parameters
    that it does not have."""
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
        deadline = Deadline.after(60, "dropping the data disks' caches")
        for path in bench.data_paths:
            bench.channel.forget(path, deadline)
        lab.data.forget()


@contextmanager
def cgroup_of(lab: Lab, bench: Bench, command: Command) -> Iterator[None]:
    """Record the cgroup of a native command in the undo journal; its runner sets it up. In a guest
    the runner makes it as well. Raises HostError if the host has no such controller."""
    if command.cgroup is None or bench.kind is not Kind.NATIVE:
        yield
        return
    with command_cgroup(lab.layout, lab.journal, cgroup_name(), command.cgroup.controllers):
        yield


def limits_of(plan: Plan, declared: StudyWorkload) -> Limits:
    """Return the limits of a workload's trials."""
    if declared.other_cpu is None:
        return plan.limits
    return replace(plan.limits, other_cpu=declared.other_cpu)


OTHER_CPU = "host_cpu{thread=other}"


@dataclass(frozen=True, slots=True)
class Validity:
    """Hold why a trial cannot be used (None: it can), and whether others disturbed it: they took
    more of its CPUs than the study allows."""

    reason: str | None = None
    is_disturbed: bool = False


def validity(readings: Iterable[Reading], limits: Limits) -> Validity:
    """Decide whether a trial counts, by the CPU time that others took on its CPUs.

    A shared machine once halved a whole restore (METHOD rules 6 and 24). The time includes that of
    a hypervisor below this host. One limit applies to every arm, and on both sides of 0: a value as
    far below it is as wrong.
    """
    unknown = "it is unknown how much others used the trial's CPUs"
    for reading in readings:
        if isinstance(reading, Unavailable):
            if reading.metric == OTHER_CPU:
                return Validity(f"{unknown}: {reading.reason}")
        elif reading.key == OTHER_CPU and reading.value > limits.other_cpu:
            return Validity(
                f"others took {reading.value:.2f} CPU seconds per second on the trial's CPUs "
                f"(the study allows {limits.other_cpu:g})",
                is_disturbed=True,
            )
        elif reading.key == OTHER_CPU and reading.value < -limits.other_cpu:
            return Validity(
                f"{unknown}: {-reading.value:.2f} CPU seconds per second more were counted of "
                f"known threads than were busy there (the study allows {limits.other_cpu:g} on "
                "either side)"
            )
    return Validity()
