"""Run one trial: warm up, measure, store what the tools printed.

Nothing but the workload runs inside the measured window: snapshots are taken before the command
starts and after it has ended, and the guest is sent nothing meanwhile (METHOD rule 11).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from labctl.base import latency_qos
from labctl.base.command import CommandResult
from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, HostError, LabctlError
from labctl.base.levels import Level
from labctl.base.tuning import Kind, Sched
from labctl.collect import host_cpus, neighbour, side, snapshots
from labctl.collect.collector import Target, ThreadRef
from labctl.domain import readback
from labctl.run.collectors.calibrate import Calibrations
from labctl.run.collectors.collecting import collecting
from labctl.run.collectors.trace_room import limit_mib
from labctl.run.contained import contained
from labctl.run.guests.bench import Bench
from labctl.run.guests.lab import Lab
from labctl.run.guests.threads import labctl_threads, process_threads, tree_threads
from labctl.run.trials import clock, held
from labctl.run.trials.first_touch import change, faults_so_far
from labctl.run.trials.neighbours import Neighbours, neighbours
from labctl.run.trials.parse import believable
from labctl.run.trials.peer import RAW, RunningPeer, serving
from labctl.run.trials.warmup import WINDOWS, is_flat, is_settled
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus
from labctl.study.plan import PlannedTrial
from labctl.study.study import Limits, StudyWorkload
from labctl.workloads.failures import last_words
from labctl.workloads.model import Setting, Workload

WINDOW_S = 0.1
"""Length of a warm-up window."""

SLACK_S = 60.0
"""Beyond its duration, what a workload may take to start and to write its report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    planned: PlannedTrial
    attempt: int
    workload: Workload
    declared: StudyWorkload
    limits: Limits
    level: Level
    window_rates: dict[tuple[str, str], float]
    """Machine's kind and workload to the operations per second that size a warm-up window; what
    the first trial finds is for all."""
    traces: bool = True
    """True if the disk has room for what level `trace` records."""


def run_trial(
    lab: Lab, bench: Bench, calibrations: Calibrations, request: TrialRequest, folder: TrialFolder
) -> TrialRecord:
    """Run one attempt at a trial and store its raw files; what goes wrong is in the record.

    Raises HostError when the host can't go on (no space left), ChannelClosed never: a machine
    that ended makes the trial invalid.
    """
    started = time.monotonic()
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    reasons = list(bench.problems)
    times: dict[str, float] = {"measured_s": 0.0, "warmup_s": 0.0}
    for name, value in bench.evidence.items():
        if isinstance(value, str):
            folder.write_raw(name, value)
        else:
            folder.write_raw_json(name, value)
    try:
        with contained(folder, "measuring it"):
            reasons += _measure(lab, bench, calibrations, request, folder, times)
    except HostError:
        raise
    except LabctlError as error:
        reasons.append(error.message)
    return TrialRecord(
        number=request.planned.number,
        attempt=request.attempt,
        block=request.planned.block,
        boot=bench.boot or request.planned.boot,
        position=request.planned.position,
        cell=request.planned.cell,
        status=TrialStatus.INVALID if reasons else TrialStatus.DONE,
        reasons=tuple(reasons),
        wall_s=time.monotonic() - started,
        started_at=started_at,
        restored=bench.restored,
        parsed_with={
            "program": request.declared.program,
            "parameters": dict(request.declared.parameters),
            "duration_s": request.declared.duration_s,
            "kind": str(bench.kind),
            "accelerator": lab.accelerator.name,
            "vcpus": lab.vcpus,
        },
        measured_s=times["measured_s"],
        warmup_s=times["warmup_s"],
    )


def _measure(
    lab: Lab,
    bench: Bench,
    calibrations: Calibrations,
    request: TrialRequest,
    folder: TrialFolder,
    times: dict[str, float],
) -> list[str]:
    """Return the trial itself; returns why it is invalid."""
    workload = request.workload
    setting = Setting(
        parameters=workload.check_parameters(request.declared.parameters),
        vcpus=lab.vcpus,
        duration_s=request.declared.duration_s,
        data_path=bench.data_path,
        peer=bench.peer,
        cpus=bench.cpus,
    )
    reasons: list[str] = []
    with ExitStack() as stack:
        if workload.uses_data_disk:
            lab.data.reset()
            lab.data.is_dirty = workload.writes_data_disk(setting.parameters)
            deadline = Deadline.after(60, "dropping the data disk from the caches")
            bench.channel.forget(bench.data_path, deadline)
            lab.data.forget()
        peer = stack.enter_context(serving(lab, workload, setting.parameters))
        hogs = Neighbours()
        if request.planned.cell["condition"] == "neighbour":
            hogs = stack.enter_context(neighbours(lab, sorted(lab.topology.usable)))
        warmed = warm_up(bench, workload, setting, request)
        folder.write_raw_json("warmup.json", warmed)
        times["warmup_s"] = warmed["seconds"]
        if not warmed["settled"]:
            reasons.append(
                f"the warm-up did not settle within {request.limits.warmup_cap_s:g} s "
                f"({len(warmed['windows'])} windows)"
            )
        hogs.start()
        result = measured_window(lab, bench, request, setting, hogs, peer, folder)
        times["measured_s"] = result.duration_s
        if peer is not None:
            folder.write_raw(RAW, peer.output())
    calibrations.store(folder, bench, request.declared)
    store_output(folder, result, hogs)
    if result.returncode != 0:
        reasons.append(
            f"{workload.binaries[-1]} ended with status {result.returncode}: "
            f"{last_words(result.stderr)}"
        )
    reasons += _thread_reasons(bench, workload, folder)
    return [*reasons, *_host_reasons(folder), *_clock_reasons(bench, folder)]


def measured_window(
    lab: Lab,
    bench: Bench,
    request: TrialRequest,
    setting: Setting,
    hogs: Neighbours,
    peer: RunningPeer | None,
    folder: TrialFolder,
) -> CommandResult:
    """Return the command's outcome; what was collected around it is in the folder."""
    seconds = setting.duration_s + SLACK_S
    target = _target(lab, bench, request, seconds, folder, hogs, peer)
    with (
        collecting(target, request.level, before_command=True),
        bench.channel.prepared(
            request.workload.command(setting),
            seconds=seconds,
            cpus=bench.cpus,
            sched=bench.sched,
        ) as execution,
    ):
        if bench.cpus is not None:
            _check_native_placement(execution.pid, bench.cpus, bench.sched)
            workload = partial(process_threads, execution.pid, "workload")
            target = replace(target, pid=execution.pid, threads=workload)
        # Collectors take their time to attach and to end: the snapshots are inside of that.
        with collecting(target, request.level) as snapshot:
            before = snapshot()
            execution.go()
            execution.wait_exited()
            after = snapshot()
        result = execution.result()
    hogs.stop()
    folder.write_raw_json(
        snapshots.RAW,
        {
            "kind": str(bench.kind),
            "clk_tck": os.sysconf("SC_CLK_TCK"),
            "vcpus": lab.vcpus,
            "trial_cpus": format_cpus(bench.trial_cpus),
            "siblings": format_cpus(bench.siblings),
            "before": before,
            "after": after,
        },
    )
    return result


def _target(
    lab: Lab,
    bench: Bench,
    request: TrialRequest,
    seconds: float,
    folder: TrialFolder,
    hogs: Neighbours,
    peer: RunningPeer | None,
) -> Target:
    def known_threads() -> list[ThreadRef]:
        threads = [*bench.threads(), *labctl_threads(), *(peer.threads() if peer else ())]
        for pid in hogs.pids:
            threads += tree_threads(pid, "neighbour")
        return threads

    return Target(
        folder=folder,
        kind=bench.kind,
        accelerator=lab.accelerator.name,
        channel=bench.channel,
        trial_cpus=bench.trial_cpus,
        vcpu_tids=bench.vcpu_tids,
        threads=bench.threads,
        known_threads=known_threads,
        counters=bench.counters,
        housekeeping=lambda: lab.pin_plan_for(bench.tuning).housekeeping,
        room_mib=limit_mib(folder.path),
        is_traced=request.traces,
        seconds=seconds,
    )


def warm_up(
    bench: Bench, workload: Workload, setting: Setting, request: TrialRequest
) -> dict[str, Any]:
    """Run windows of the same workload until neither their rates nor, under KVM, the faults on
    newly touched memory show a trend (METHOD rule 6).

    A workload that only computes does the same operations in each window, as many as the run's
    first one tells, and is rated by the CPU time that they take: what others on the host take away
    changes the operations per second from window to window, but not how warm the machine is.
    """
    windows: list[dict[str, Any]] = []
    rates: list[float] = []
    touches: list[int] = []
    started = time.monotonic()
    cap_s = request.limits.warmup_cap_s
    size = (str(bench.kind), request.planned.cell["workload"])
    fault_counts = faults_so_far(bench)

    def is_warm() -> bool:
        return is_settled(rates) and (not bench.waits_for_faults or is_flat(touches))

    while not is_warm() and (len(rates) < WINDOWS or time.monotonic() - started < cap_s):
        sizing = request.window_rates.get(size)
        busy = _busy_s(bench)
        command = workload.warmup_command(setting, WINDOW_S, sizing)
        result = bench.channel.run(
            command, seconds=WINDOW_S + SLACK_S, cpus=bench.cpus, sched=bench.sched
        )
        if result.returncode != 0:
            said = last_words(result.stderr)
            raise BrokenError(f"the warm-up of {workload.name} failed: {said}")
        cpu_s = _busy_s(bench) - busy if bench.kind is Kind.GUEST else _rusage_s(result.side)
        with believable(f"the warm-up of {workload.name}"):
            found = workload.window_rates(result.stdout.decode(errors="replace"), result.files)
        before, fault_counts = fault_counts, faults_so_far(bench)
        touched = change(before, fault_counts)
        touches.append(sum(touched.values()))
        windows.append(
            {
                "duration_s": result.duration_s,
                "rates": found,
                "cpu_s": cpu_s,
                "faults": touched,
            }
        )
        if not workload.calibratable:
            # A load of fixed pace has no rate that could show a trend.
            rates += found or [1.0] * WINDOWS
        elif sizing is not None:
            rates.append(1 / cpu_s)
        else:
            request.window_rates[size] = found[-1]
    return {
        "settled": is_warm(),
        "rates_settled": is_settled(rates),
        "seconds": time.monotonic() - started,
        "windows": windows,
    }


def _busy_s(bench: Bench) -> float:
    """Return CPU seconds that the guest's vCPU threads have had (sched-stats.rst, schedstat field
    1)."""
    total = 0.0
    for tid in bench.vcpu_tids:
        try:
            total += int(Path(f"/proc/{tid}/schedstat").read_text().split()[0]) / 1e9
        except OSError as error:
            raise BrokenError(f"the guest's vCPU thread {tid} is gone") from error
    return total


def _rusage_s(told: Mapping[str, Any]) -> float:
    return float(told["rusage"]["utime_s"] + told["rusage"]["stime_s"])


def _check_native_placement(pid: int, cpus: CpuSet, sched: Sched | None) -> None:
    """Raise BrokenError when the waiting command is not where and what its twin asks for."""
    problems = readback.native_mismatches(pid, cpus, sched)
    if problems:
        raise BrokenError("; ".join(problems))


def store_output(folder: TrialFolder, result: CommandResult, hogs: Neighbours) -> None:
    """Put what the command and the neighbours printed beside what was collected."""
    folder.write_raw("stdout.txt", result.stdout)
    folder.write_raw("stderr.txt", result.stderr)
    for name, data in result.files.items():
        folder.write_raw(f"files/{Path(name).name}", data)
    folder.write_raw_json(side.RAW, result.side)
    if hogs.outcome is not None:
        folder.write_raw_json(neighbour.RAW, hogs.outcome)


def _thread_reasons(bench: Bench, workload: Workload, folder: TrialFolder) -> list[str]:
    host, told = folder.read_json(snapshots.RAW), folder.read_json(side.RAW)["threads"]
    stored, wrong = held.held(bench.asked, host, told, places_itself=workload.places_itself)
    folder.write_raw_json(held.RAW, stored)
    return wrong


def _clock_reasons(bench: Bench, folder: TrialFolder) -> list[str]:
    if bench.first_clock is None:
        return []
    last = bench.channel.wait_ready(Deadline.after(30, "the guest's clock"))
    measured = clock.rates(bench.first_clock, last)
    folder.write_raw_json("clock.json", measured)
    found = clock.problem(measured)
    return [found] if found else []


def _host_reasons(folder: TrialFolder) -> list[str]:
    host = folder.read_json(snapshots.RAW)
    before, after = host["before"], host["after"]
    reasons = []
    # In the native cgroup: stress-ng calls itself successful after four kills.
    if "oom_kills" in before and (killed := after["oom_kills"] - before["oom_kills"]):
        reasons.append(f"{killed} processes were killed: the guest's memory did not suffice")
    if (then := before[host_cpus.LIMIT]) != (now := after[host_cpus.LIMIT]):
        reasons.append(
            f"somebody changed how deep the host's CPUs may sleep: /{latency_qos.DEVICE} went from "
            f"{then} to {now}"
        )
    return reasons
