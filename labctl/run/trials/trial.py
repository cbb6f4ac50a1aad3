"""Run one trial: warm up, measure, store the tools' output.

Only the workload runs inside the measured window: snapshots are taken before the command starts and
after it has ended, and nothing is sent to the guest meanwhile (METHOD rule 11).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from labctl.base.channel import Serving
from labctl.base.command import Command, CommandCgroup, CommandResult
from labctl.base.cpus import format_cpus
from labctl.base.errors import BrokenError, HostError, LabctlError
from labctl.base.process import last_words
from labctl.base.runner_messages import cgroup_name
from labctl.collect import neighbour, runner_counts, snapshots
from labctl.collect.collector import Target, ThreadRef
from labctl.domain import readback
from labctl.run.collectors.calibrate import Calibrations
from labctl.run.collectors.collecting import collecting
from labctl.run.collectors.trace_room import limit_mib
from labctl.run.contained import contained, keep_fault
from labctl.run.guests.bench import Bench, labctl_threads, process_threads, tree_threads
from labctl.run.guests.lab import Lab
from labctl.run.trials.beside import (
    Neighbours,
    PlanNeighbours,
    RunningPeer,
    Together,
    serving,
)
from labctl.run.trials.parse import parse_trial
from labctl.run.trials.quiet import Others, Since
from labctl.run.trials.request import (
    SLACK_S,
    TrialRequest,
    Validity,
    cgroup_of,
    new_data,
    setting_of,
    unnoted,
    validity,
)
from labctl.run.trials.warmup import warm_up
from labctl.run.trials.window_checks import clock_reasons, host_reasons, oddities, thread_reasons
from labctl.store.records.plan_record import PlannedTrial
from labctl.store.run_folder import RunFolder
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus
from labctl.study.plan import Plan
from labctl.workloads.setting import Setting
from labctl.workloads.workload import Workload

# Check how a trial's command and its servers ran, and that the command had its workload's cgroup.


def ran_reasons(
    workload: Workload,
    command: Command,
    result: CommandResult,
    serving: Serving,
    folder: TrialFolder,
) -> list[str]:
    """Return why a run does not count: its servers, its status, its cgroup."""
    why = workload.why_failed(result)
    return [
        *server_reasons(serving, folder),
        *([why] if why else ()),
        *cgroup_reasons(command, folder),
    ]


def server_reasons(serving: Serving, folder: TrialFolder) -> list[str]:
    """Return why the trial's servers make it invalid; their output is stored."""
    reasons = []
    for number, server in enumerate(serving.ended):
        folder.write_raw(f"server-{number}.txt", server.output)
        if server.too_early:
            said = last_words(server.output) or "it printed nothing"
            reasons.append(
                f"the server {server.name} ended unexpectedly with status {server.status}: {said}"
            )
    return reasons


def cgroup_reasons(command: Command, folder: TrialFolder) -> list[str]:
    """Return why the command's cgroup makes the trial invalid: it had another, or other limits."""
    if command.cgroup is None:
        return []
    told = folder.read_json(runner_counts.RAW)["cgroup"]
    return [*not_in_force(command.cgroup, cgroup_name(), told)]


def not_in_force(asked: CommandCgroup, name: str, told: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each limit that the machine did not have, by its runner's readings."""
    # proc_pid_cgroup(5); from a guest, possibly any text.
    lines = (line.split(":", 2) for line in told["member"].splitlines() if line.count(":") > 1)
    places = {one: place for _, names, place in lines for one in names.split(",")}
    files = {path.rpartition("/")[2] for path in told["files"]}
    for controller in asked.controllers:
        where = places.get(controller, places.get("", "/"))
        if not where.endswith(f"/{name}"):
            yield f"the command was in the {controller} cgroup {where}, not in its own"
        if not any(file.startswith(f"{controller}.") for file in files):
            yield f"the command's cgroup has no limits of the {controller} controller"
    for path, value in told["files"].items():
        if value["set"] != value["found"]:
            yield (
                f"the command's cgroup: expected {value['set']} in {path}, got "
                f"{value['found'] or 'no value'}"
            )
    if killed := told["oom_kills"]:
        yield f"{killed} processes were killed: the command's cgroup was out of memory"


# Collect what collectors may attach to in a trial: its machine, its threads, its command.


def target_of(
    lab: Lab,
    bench: Bench,
    request: TrialRequest,
    seconds: float,
    folder: TrialFolder,
    hogs: Neighbours,
    peer: RunningPeer | None,
) -> Target:
    """Return the collectors' target of a trial before its command exists."""

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
        calibration=request.calibration,
        beside=hogs.used,
    )


def with_command(target: Target, bench: Bench, pid: int, command: Command) -> Target:
    """Return the target with the waiting command, natively: in a guest its threads are the guest's.
    Raises BrokenError if it is not placed as its twin requests, or cannot have its CPU weight."""
    if bench.cpus is None:
        return target
    limits = command.cgroup
    cpus = bench.cpus & limits.cpus if limits is not None and limits.cpus else bench.cpus
    sched = command.sched or bench.sched
    problems = readback.native_mismatches(pid, cpus, sched, tuning=bench.tuning)
    if problems := [*problems, *bench.weigh(pid, command)]:
        raise BrokenError("; ".join(problems))
    return replace(target, pid=pid, threads=partial(process_threads, pid, "workload"))


# Run a trial's command in its measured window, with collectors around it.


def measured_window(
    lab: Lab,
    bench: Bench,
    request: TrialRequest,
    command: Command,
    seconds: float,
    folder: TrialFolder,
    hogs: Neighbours | None = None,
    peer: RunningPeer | None = None,
) -> CommandResult:
    """Return the result of a command that takes `seconds`; what was collected is in the folder."""
    hogs = hogs or Together()
    seconds += SLACK_S
    target = target_of(lab, bench, request, seconds, folder, hogs, peer)
    with (
        collecting(target, request.level, before_command=True),
        bench.channel.prepared(
            command, seconds=seconds, cpus=bench.cpus, sched=bench.sched
        ) as execution,
    ):
        target = with_command(target, bench, execution.pid, command)
        # Collectors need time to attach and to end, so the snapshots are inside of that.
        with collecting(target, request.level) as edges:
            before = edges.before()
            execution.go()
            execution.wait_exited()
            after = edges.after()
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


def bare_window(bench: Bench, workload: Workload, setting: Setting) -> CommandResult:
    """Return the command's result with nothing collected around it."""
    return bench.channel.run(
        workload.command(setting),
        seconds=setting.duration_s + SLACK_S,
        cpus=bench.cpus,
        sched=bench.sched,
    )


def store_output(
    folder: TrialFolder, result: CommandResult, hogs: Neighbours | None = None
) -> None:
    """Store the output of the command and the neighbours."""
    folder.write_raw("stdout.txt", result.stdout)
    folder.write_raw("stderr.txt", result.stderr)
    for name, data in result.files.items():
        folder.write_raw(f"files/{Path(name).name}", data)
    folder.write_raw_json(runner_counts.RAW, result.counts)
    if hogs is not None and hogs.outcome:
        folder.write_raw_json(neighbour.RAW, {"neighbours": hogs.outcome})


def run_trial(lab: Lab, bench: Bench, request: TrialRequest, folder: TrialFolder) -> TrialRecord:
    """Run one attempt at a trial and store its raw files; failures are in the record.

    Raises HostError if the host cannot go on (no space left), never ChannelClosed: a machine that
    ended makes the trial invalid.
    """
    definition = request.declared.definition
    started = time.monotonic()
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    reasons = list(bench.problems)
    times: dict[str, float] = {"measured_s": 0.0, "warmup_s": 0.0}
    _store(folder, bench.evidence)
    try:
        with contained(folder, "measuring it"):
            reasons += _measure(lab, bench, request, folder, times)
            reasons += bench.host_problems()
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
            **({"definition": definition} if definition is not None else {}),
            **_parsed_beside(request),
            "kind": str(bench.kind),
            "accelerator": lab.accelerator.name,
            "vcpus": lab.vcpus,
        },
        measured_s=times["measured_s"],
        warmup_s=times["warmup_s"],
    )


def _store(folder: TrialFolder, evidence: Mapping[str, object]) -> None:
    for name, value in evidence.items():
        if isinstance(value, str):
            folder.write_raw(name, value)
        else:
            folder.write_raw_json(name, value)


def _parsed_beside(request: TrialRequest) -> dict[str, object]:
    """Return what parsing needs to know of the neighbours' workloads."""
    if request.condition is None:
        return {}
    keys = ("program", "parameters", "run_s", "definition")
    rows = (one.to_json() for one in request.condition.neighbours)
    return {"neighbours": [{key: row.get(key) for key in keys} for row in rows]}


def _measure(
    lab: Lab,
    bench: Bench,
    request: TrialRequest,
    folder: TrialFolder,
    times: dict[str, float],
) -> list[str]:
    """Run the trial itself; return why it is invalid."""
    workload = request.workload
    setting = setting_of(lab, bench, workload, request.declared)
    command = workload.command(setting)
    reasons: list[str] = []
    with ExitStack() as stack:
        new_data(lab, bench, workload, setting)
        peer = stack.enter_context(serving(lab, workload, setting.parameters))
        hogs = stack.enter_context(request.neighbours())
        servers = stack.enter_context(
            bench.channel.serving(workload.servers(setting), cpus=bench.cpus, sched=bench.sched)
        )
        stack.enter_context(cgroup_of(lab, bench, command))
        warmed = warm_up(bench, workload, setting, request)
        folder.write_raw_json("warmup.json", warmed)
        times["warmup_s"] = warmed["seconds"]
        if not warmed["settled"]:
            reasons.append(
                f"the warm-up did not settle within {request.limits.warmup_cap_s:g} s "
                f"({len(warmed['windows'])} windows)"
            )
        hogs.start()
        result = measured_window(
            lab, bench, request, command, setting.duration_s, folder, hogs, peer
        )
        times["measured_s"] = result.duration_s
        if peer is not None:
            _store(folder, peer.evidence())
    store_output(folder, result, hogs)
    for text in oddities(workload, result, setting.duration_s):
        request.note(text)
    reasons += ran_reasons(workload, command, result, servers, folder)
    reasons += thread_reasons(bench, workload, command, folder)
    return [*reasons, *host_reasons(folder), *clock_reasons(bench, folder)]


# Make one attempt at a trial: run it, parse it, and decide whether it counts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """Describe an attempt. `is_disturbed`: other processes used its CPUs more than the study
    allows; `others`: those that had CPU time meanwhile."""

    record: TrialRecord
    is_disturbed: bool
    others: Others


class Attempts:
    """Make attempts at the trials of a plan, each stored in a folder of its own."""

    def __init__(
        self,
        lab: Lab,
        folder: RunFolder,
        plan: Plan,
        calibrations: Calibrations,
        neighbours: PlanNeighbours,
        note: Callable[[str], None] = unnoted,
    ) -> None:
        self.lab = lab
        self._note = note
        self.neighbours = neighbours
        self.folder = folder
        self.plan = plan
        self._calibrations = calibrations
        self._window_rates: dict[tuple[str, str, str], float] = {}

    def run(self, bench: Bench, trial: PlannedTrial, attempt: int, *, traces: bool) -> Attempted:
        """Run, parse and store an attempt. `traces`: whether there is room for the recordings."""
        folder = self.folder.new_trial(trial.number, attempt)
        declared = self.plan.workloads[self.plan.workload_of(trial.cell)]
        notes: list[str] = []
        request = TrialRequest.of(
            self.plan,
            trial,
            attempt=attempt,
            window_rates=self._window_rates,
            traces=traces,
            calibration=partial(self._calibrations.for_arm(bench.tuning).of, bench.kind, declared),
            neighbours=partial(self.neighbours.of, trial),
            note=notes.append,
        )
        since = Since.now()
        record = run_trial(self.lab, bench, request, folder)
        others = since.others()
        found = Validity()
        if record.status is TrialStatus.DONE:
            try:
                readings = parse_trial(folder, record)
                found = validity(readings, request.limits)
                folder.write_readings(readings)
            except BrokenError as error:
                found = replace(found, reason=error.message)
            if found.reason is not None:
                record = replace(record, status=TrialStatus.INVALID, reasons=(found.reason,))
        record = replace(record, digests=folder.digests())
        folder.write_record(record)
        for text in notes:
            self._note(text)
        return Attempted(record=record, is_disturbed=found.is_disturbed, others=others)

    def failed(
        self, trial: PlannedTrial, attempt: int, error: LabctlError, wall_s: float
    ) -> TrialRecord:
        """Store an attempt that failed because no machine could be prepared."""
        record = TrialRecord(
            number=trial.number,
            attempt=attempt,
            block=trial.block,
            boot=trial.boot,
            position=trial.position,
            cell=trial.cell,
            status=TrialStatus.INVALID,
            reasons=(error.message,),
            wall_s=wall_s,
        )
        folder = self.folder.new_trial(trial.number, attempt)
        keep_fault(folder, error)
        folder.write_record(record)
        return record
