"""Run a trial's command in its measured window, with what collects around it."""

from __future__ import annotations

import os
from pathlib import Path

from labctl.base.command import Command, CommandResult
from labctl.base.cpus import format_cpus
from labctl.collect import neighbour, runner_counts, snapshots
from labctl.run.collectors.collecting import collecting
from labctl.run.guests.bench import Bench
from labctl.run.guests.lab import Lab
from labctl.run.trials.neighbours import Neighbours, Together
from labctl.run.trials.peer import RunningPeer
from labctl.run.trials.trial_request import SLACK_S, TrialRequest
from labctl.run.trials.trial_target import target_of, with_command
from labctl.store.trial import TrialFolder
from labctl.workloads.setting import Setting
from labctl.workloads.workload import Workload


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
    """Return the outcome of a command that takes `seconds`; what was collected around it is in the
    folder."""
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
        # Collectors take their time to attach and to end: the snapshots are inside of that.
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
    """Return the command's outcome with nothing collected around it."""
    return bench.channel.run(
        workload.command(setting),
        seconds=setting.duration_s + SLACK_S,
        cpus=bench.cpus,
        sched=bench.sched,
    )


def store_output(
    folder: TrialFolder, result: CommandResult, hogs: Neighbours | None = None
) -> None:
    """Put what the command and the neighbours printed beside what was collected."""
    folder.write_raw("stdout.txt", result.stdout)
    folder.write_raw("stderr.txt", result.stderr)
    for name, data in result.files.items():
        folder.write_raw(f"files/{Path(name).name}", data)
    folder.write_raw_json(runner_counts.RAW, result.counts)
    if hogs is not None and hogs.outcome:
        folder.write_raw_json(neighbour.RAW, {"neighbours": hogs.outcome})
