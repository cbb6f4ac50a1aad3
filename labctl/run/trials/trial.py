"""Run one trial: warm up, measure, store what the tools printed.

Nothing but the workload runs inside the measured window: snapshots are taken before the command
starts and after it has ended, and the guest is sent nothing meanwhile (METHOD rule 11).
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from labctl.base.command import CommandResult
from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, HostError, LabctlError
from labctl.base.tuning import Sched
from labctl.collect import neighbour, side, snapshots
from labctl.collect.collector import Target, ThreadRef
from labctl.domain import readback
from labctl.run.collectors.calibrate import Calibrations
from labctl.run.collectors.collecting import collecting
from labctl.run.collectors.trace_room import limit_mib
from labctl.run.contained import contained
from labctl.run.guests.bench import Bench
from labctl.run.guests.lab import Lab
from labctl.run.guests.threads import labctl_threads, process_threads, tree_threads
from labctl.run.trials.neighbours import Neighbours, neighbours
from labctl.run.trials.peer import RAW, RunningPeer, serving
from labctl.run.trials.trial_request import SLACK_S, TrialRequest
from labctl.run.trials.warmup import warm_up
from labctl.run.trials.window_checks import clock_reasons, host_reasons, thread_reasons
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus
from labctl.workloads.failures import last_words
from labctl.workloads.model import Setting


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
    reasons += thread_reasons(bench, workload, folder)
    return [*reasons, *host_reasons(folder), *clock_reasons(bench, folder)]


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
