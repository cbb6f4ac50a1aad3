"""Say what collectors may attach to in a trial: its machine, its threads, its command."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.collect.collector import Target, ThreadRef
from labctl.domain import readback
from labctl.run.collectors.trace_room import limit_mib
from labctl.run.guests.bench import Bench
from labctl.run.guests.lab import Lab
from labctl.run.guests.threads import labctl_threads, process_threads, tree_threads
from labctl.run.trials.neighbours import Neighbours
from labctl.run.trials.peer import RunningPeer
from labctl.run.trials.trial_request import TrialRequest
from labctl.store.trial import TrialFolder


def target_of(
    lab: Lab,
    bench: Bench,
    request: TrialRequest,
    seconds: float,
    folder: TrialFolder,
    hogs: Neighbours,
    peer: RunningPeer | None,
) -> Target:
    """Return what collectors may use of a trial before its command is there."""

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
    """Return the target with the command that waits to begin, natively: in a guest its threads are
    the guest's. Raises BrokenError when it is not where and what its twin asks for."""
    if bench.cpus is None:
        return target
    limits = command.cgroup
    cpus = bench.cpus & limits.cpus if limits is not None and limits.cpus else bench.cpus
    sched, slice_ns = command.sched or bench.sched, bench.tuning.vcpu_slice_ns
    if problems := readback.native_mismatches(pid, cpus, sched, slice_ns=slice_ns):
        raise BrokenError("; ".join(problems))
    return replace(target, pid=pid, threads=partial(process_threads, pid, "workload"))
