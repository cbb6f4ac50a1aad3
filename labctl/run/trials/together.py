"""Run one workload in many guests at once, over one window, and read the metric of each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from labctl.base.command import Command, CommandResult
from labctl.base.errors import BrokenError, LabctlError
from labctl.collect.proc_stat import cpu_ticks
from labctl.run.guests.clone_state import cpu_ns
from labctl.run.guests.tuned_guest import TunedGuest
from labctl.run.trials.parse import believable
from labctl.run.trials.ran_checks import ran_reasons
from labctl.run.trials.trial_request import SLACK_S
from labctl.run.trials.warmup import WINDOW_S, WINDOWS
from labctl.run.trials.window import store_output
from labctl.store.samples import Sample
from labctl.store.trial import TrialFolder
from labctl.workloads.setting import Parameters, Setting
from labctl.workloads.workload import Workload

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Hold what each guest does. `metric`: the one that is read."""

    program: Workload
    parameters: Parameters
    vcpus: int
    duration_s: float
    metric: str

    def setting(self, guest: TunedGuest) -> Setting:
        return Setting(
            parameters=self.parameters,
            vcpus=self.vcpus,
            duration_s=self.duration_s,
            data_paths=guest.data_paths,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Hold what guests did over one window. `values`: each guest's metric, or a sentence that says
    why it has none; `common_s`: seconds in which all of them ran; `other_cpus`: CPUs that others
    than these guests kept busy."""

    values: Sequence[float | str]
    common_s: float
    other_cpus: float


def run_together(
    job: Job, guests: Sequence[TunedGuest], folders: Sequence[TrialFolder]
) -> Together:
    """Warm all guests up at once, then run the job in all of them at once. `folders`: where each
    one's output is stored. Raises BrokenError where one is gone or fails to warm up."""
    with ExitStack() as stack:
        serving = []
        for guest in guests:
            servers = job.program.servers(job.setting(guest))
            serving.append(stack.enter_context(guest.channel.serving(servers)))
        # A load of fixed pace has no rate that could show a trend: one run of it is enough.
        windows = 1 if job.program.rate_metric is None else WINDOWS
        for _ in range(windows):
            warmed = _at_once(
                guests,
                lambda guest: job.program.warmup_command(job.setting(guest), WINDOW_S, None),
                WINDOW_S + SLACK_S,
            )
            for guest, result in zip(guests, warmed.results, strict=True):
                if why := job.program.why_failed(result):
                    raise BrokenError(f"the warm-up in {guest.clone.identity.name} failed: {why}")
        window = _at_once(
            guests,
            lambda guest: job.program.command(job.setting(guest)),
            job.duration_s + SLACK_S,
        )
    values = []
    for guest, served, folder, result in zip(guests, serving, folders, window.results, strict=True):
        store_output(folder, result)
        command = job.program.command(job.setting(guest))
        reasons = ran_reasons(job.program, command, result, served, folder)
        values.append("; ".join(reasons) or _value(job, folder))
    return Together(values=values, common_s=window.common_s, other_cpus=window.other_cpus)


@dataclass(frozen=True, slots=True)
class _Window:
    results: list[CommandResult]
    common_s: float
    other_cpus: float


def _at_once(
    guests: Sequence[TunedGuest], command: Callable[[TunedGuest], Command], seconds: float
) -> _Window:
    """Fork a command in every guest, then let all of them go."""
    with ExitStack() as stack:
        executions = [
            stack.enter_context(guest.channel.prepared(command(guest), seconds=seconds))
            for guest in guests
        ]
        began_s, busy_s, own_s = time.monotonic(), _busy_s(), _own_s(guests)
        went = []
        for execution in executions:
            execution.go()
            went.append(time.monotonic())
        # They are sent nothing until each has ended.
        for execution in executions:
            execution.wait_exited()
        taken_s = time.monotonic() - began_s
        others_s = (_busy_s() - busy_s) - (_own_s(guests) - own_s)
        results = [execution.result() for execution in executions]
    ends = [at + result.duration_s for at, result in zip(went, results, strict=True)]
    return _Window(results, max(0.0, min(ends) - max(went)), max(0.0, others_s / taken_s))


def _busy_s() -> float:
    """Return CPU seconds that this host's CPUs have done work for."""
    ticks = cpu_ticks(Path("/proc/stat").read_text(encoding="ascii"), "cpu", "/proc/stat")
    return (ticks.total - ticks.idle - ticks.steal) / _TICKS_PER_S


def _own_s(guests: Sequence[TunedGuest]) -> float:
    """Return CPU seconds of the guests, and of this process, which waits."""
    used = sum(cpu_ns(guest.clone.running) for guest in guests)
    return used / 1e9 + time.process_time()


def _value(job: Job, folder: TrialFolder) -> float | str:
    """Return the guest's metric, or why it has none."""
    program = job.program.with_parameters(job.parameters)
    try:
        with believable(str(folder.path)):
            for reading in program.parse(folder):
                if isinstance(reading, Sample):
                    if reading.key == job.metric:
                        return reading.value
                elif reading.metric == job.metric:
                    return reading.reason
    except LabctlError as error:
        return error.message
    return f"its output has no '{job.metric}'"
