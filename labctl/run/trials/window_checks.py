"""Check after a measured window that threads, clocks and the host were what was asked (METHOD rules
6 and 28).

What came and went between its begin and its end is not seen: nothing runs inside of the window but
the workload.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from labctl.base import kernel
from labctl.base.channel import ClockReading
from labctl.base.command import Command, CommandResult
from labctl.base.errors import BrokenError
from labctl.base.process import Deadline
from labctl.collect import runner_counts, snapshots
from labctl.collect.counters import host_cpus
from labctl.domain.asked import (
    EMULATOR,
    IOTHREAD,
    VCPU,
    VHOST,
    WORKLOAD,
    ExpectedThread,
    ThreadState,
    changes,
    mismatches,
)
from labctl.domain.readback import row_states, workload_states
from labctl.run.guests.bench import Bench
from labctl.store.trial import TrialFolder
from labctl.workloads.workload import Workload

RAW = "threads.json"

_MACHINE = (VCPU, EMULATOR, IOTHREAD, VHOST)
_OTHERS = ("neighbour", "peer")
"""Nothing is asked of them but to stay as they are. labctl's own tools move to a CPU to read it."""

LIMIT_PPM = 100.0


def thread_reasons(
    bench: Bench, workload: Workload, command: Command, folder: TrialFolder
) -> list[str]:
    """Return why the trial's threads make it invalid; what they were is stored."""
    host, told = folder.read_json(snapshots.RAW), folder.read_json(runner_counts.RAW)["threads"]
    stored, wrong = held(
        bench.asked,
        host,
        told,
        places_itself=workload.places_itself,
        schedules_itself=workload.schedules_itself,
        command=command,
    )
    folder.write_raw_json(RAW, stored)
    return wrong


def clock_reasons(bench: Bench, folder: TrialFolder) -> list[str]:
    """Return why a guest's clock makes its trial invalid; its rate is stored."""
    if bench.first_clock is None:
        return []
    last = bench.channel.wait_ready(Deadline.after(30, "the guest's clock"))
    measured = clock_rates(bench.first_clock, last)
    folder.write_raw_json("clock.json", measured)
    found = clock_problem(measured)
    return [found] if found else []


def host_reasons(folder: TrialFolder) -> list[str]:
    """Return why what happened on the host meanwhile makes a trial invalid."""
    host = folder.read_json(snapshots.RAW)
    before, after = host["before"], host["after"]
    reasons = []
    # In the native cgroup: stress-ng calls itself successful after four kills.
    if "oom_kills" in before and (killed := after["oom_kills"] - before["oom_kills"]):
        reasons.append(f"{killed} processes were killed: the guest was out of memory")
    if (then := before[host_cpus.LIMIT]) != (now := after[host_cpus.LIMIT]):
        reasons.append(
            f"another process changed the limit on the host's idle CPUs: "
            f"/{kernel.DEVICE} went from {then} to {now}"
        )
    return reasons


def held(
    asked: Sequence[ExpectedThread],
    host: Mapping[str, Any],
    told: Mapping[str, Any],
    *,
    places_itself: bool,
    schedules_itself: bool = False,
    command: Command | None = None,
) -> tuple[dict[str, object], list[str]]:
    """Return what the trial's `threads.json` holds, and a sentence for each thread that was not
    what was asked, or that changed meanwhile.

    `host`: the two snapshots, `told`: what the command's runner has read of its threads, each
    `before` and `after`. `places_itself`, `schedules_itself`: whether its threads choose their own
    CPUs or policy. `command`: what it was, with the policy and the CPUs that its workload asks for.
    Raises BrokenError when the runner has told something else.
    """
    before, after = (_machine(host, at) + _workload(told, at) for at in ("before", "after"))
    # In a guest nothing is asked of the command but to stay what it was when it was started.
    asked = [*asked, *(_as_started(before) if not _is_asked(asked, WORKLOAD) else ())]
    asked = [_of_command(thread, command) for thread in asked] if command else asked
    others = [row_states(host[at]["threads"], _OTHERS) for at in ("before", "after")]
    at_end = [
        _as_asked(asked, state, cpus=places_itself, policy=schedules_itself) for state in after
    ]
    wrong = [
        *(f"before the measured window {said}" for said in mismatches(asked, before)),
        *(f"after the measured window {said}" for said in mismatches(asked, at_end)),
        *changes(asked, [*before, *others[0]], [*at_end, *others[1]]),
    ]
    stored: dict[str, object] = {
        "asked": [thread.to_json() for thread in asked],
        "before": [state.to_json() for state in before],
        "after": [state.to_json() for state in after],
    }
    return stored, wrong


def _machine(host: Mapping[str, Any], at: str) -> list[ThreadState]:
    return row_states(host[at]["threads"], _MACHINE)


def _workload(told: Mapping[str, Any], at: str) -> list[ThreadState]:
    """There is at least one: the command's own, which has not been waited for."""
    try:
        if states := workload_states(told[at]):
            return states
        raise LookupError("none")
    except (LookupError, TypeError, ValueError) as error:
        raise BrokenError(
            f"the runner reported no threads of the command {at} its run ({error!r})"
        ) from error


def _as_started(before: Sequence[ThreadState]) -> list[ExpectedThread]:
    return [
        ExpectedThread(
            role=WORKLOAD,
            index=0,
            cpus=state.cpus,
            policy=state.policy,
            priority=state.priority,
        )
        for state in before
        if state.role == WORKLOAD
    ][:1]


def _of_command(thread: ExpectedThread, command: Command) -> ExpectedThread:
    """Return what is asked of a thread, of the command's with its own policy and CPUs."""
    if thread.role != WORKLOAD:
        return thread
    if sched := command.sched:
        thread = replace(thread, policy=str(sched.policy), priority=sched.priority)
    if command.cgroup is not None and (cpus := command.cgroup.cpus):
        thread = replace(thread, cpus=thread.cpus & cpus)
    return thread


def _is_asked(asked: Sequence[ExpectedThread], role: str) -> bool:
    return any(thread.role == role for thread in asked)


def _as_asked(
    asked: Sequence[ExpectedThread], state: ThreadState, *, cpus: bool, policy: bool
) -> ThreadState:
    """Return a command's thread as if it had kept what it may choose itself: CPUs or policy."""
    if state.role != WORKLOAD:
        return state
    (wanted,) = [thread for thread in asked if thread.role == WORKLOAD]
    if cpus:
        state = replace(state, cpus=wanted.cpus)
    if policy:
        state = replace(state, policy=wanted.policy, priority=wanted.priority)
    return state


def clock_rates(first: ClockReading, last: ClockReading) -> dict[str, float]:
    """Return how much faster the machine's clock runs than the host's, in ppm, and how unsure that
    is.

    Each reading lies somewhere between its two host moments; over a longer time that matters less.
    """
    machine_ns = last.machine_ns - first.machine_ns
    shortest_ns = last.asked_ns - first.answered_ns
    longest_ns = last.answered_ns - first.asked_ns
    middle_ns = (shortest_ns + longest_ns) / 2
    return {
        "seconds": middle_ns / 1e9,
        "ppm": (machine_ns / middle_ns - 1) * 1e6,
        "uncertainty_ppm": (longest_ns - shortest_ns) / 2 / middle_ns * 1e6,
    }


def clock_problem(measured: Mapping[str, float]) -> str | None:
    """Return a sentence when the rates differ by more than LIMIT_PPM beyond doubt."""
    if abs(measured["ppm"]) - measured["uncertainty_ppm"] <= LIMIT_PPM:
        return None
    return (
        f"the guest's clock runs {measured['ppm']:+.0f} ppm against the host's "
        f"(± {measured['uncertainty_ppm']:.0f}), more than {LIMIT_PPM:.0f}"
    )


# Notice a program that probably does something else than its user means. Its trials stay valid.


SHORT = 0.5
"""Share of its duration below which a run has probably ignored it."""


def oddities(program: Workload, result: CommandResult, duration_s: float) -> Iterator[str]:
    """Yield a sentence with the remedy for each; the same ones for every run of the program."""
    # Servers leave workers, too.
    if result.left.count and not program.file.serve:
        such = f", such as {result.left.names[0]}" if result.left.names else ""
        yield (
            f"{program.name} left processes running{such}, which labctl ended: keep the program in "
            "the foreground, or start a server with --serve ('serve' in a file)"
        )
    is_short = result.returncode == 0 and result.duration_s < SHORT * duration_s
    if program.file.trial.kind == "duration" and is_short:
        yield (
            f"{program.name} ended in less than half of the {duration_s:g} s that it was told to "
            "run: check the argument with {{ duration }}; without it labctl repeats the program "
            "('kind: repeat' in a file)"
        )
