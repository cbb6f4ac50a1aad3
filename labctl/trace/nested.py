"""Two schedulers on one time line: a host's threads over what their guest ran on them.

`docs/nested.md` says what each state, part and suspect means, and what it can't tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from labctl.trace.clocks import ClockMap
from labctl.trace.host_lanes import ENTRY, EXIT, HostSide
from labctl.trace.lane_spans import meter
from labctl.trace.lanes import Lane, Late, State, Timeline
from labctl.trace.late import ENOUGH, Shared, described, late_ones, shared
from labctl.trace.model import Nanoseconds, Trace
from labctl.trace.suspects import Found, Sides, double_scheduling, lock_holders, wake_up_chains
from labctl.trace.task_lanes import Mapped, switching_cpus, task_lane, task_tids
from labctl.trace.threads import Thread
from labctl.trace.wakeups import Wakeups, wakeups

CYCLICTEST = "cyclictest"
MOST_LATE = 2_000
"""The longest are listed; the shares are of all."""

_HELPERS = ("emulator", "iothread", "vhost")
_SHARES = {
    State.GUEST: "guest",
    State.EXIT: "exit",
    State.PREEMPTED: "preempted",
    State.HALTED: "halted",
    State.UNKNOWN: "unknown",
}
"""Of a vCPU's time, by what figures call them."""


@dataclass(slots=True)
class _Draft:
    """A time line that is being put together."""

    lanes: list[Lane] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def timeline_of(
    host: Trace,
    threads: Sequence[Thread],
    guest: Trace | None,
    clock: ClockMap | str,
    *,
    task: str = CYCLICTEST,
) -> Timeline:
    """The time line of a trial, over its host's trace.

    `threads`: whose the host's threads are; with none of a vCPU the trial was native. `clock`: the
    guest's on the host's, or why there is none. `task`: how the names of the threads begin whose
    wake-ups are looked at.
    """
    draft = _Draft(problems=[*host.problems])
    _say_lost(draft, host, "host")
    side = HostSide.of(host, {thread.tid: thread.name for thread in threads if thread.name})
    tids = _vcpus(threads)
    hosts = _vcpu_lanes(draft, side, tids)
    _add_helpers(draft, side, threads)
    late: tuple[Late, ...] = ()
    found: list[Found] = []
    error_ns = None
    if not tids:
        late = _look(draft, host, task, {}, _task_lanes(host, "host", _same), _same, 0)
    elif guest is None or isinstance(clock, str):
        reason = clock if isinstance(clock, str) else "its scheduler was not recorded"
        draft.problems.append(f"Of the guest's own side nothing is shown: {reason}.")
    else:
        error_ns = clock.error_ns
        draft.problems += guest.problems
        _say_lost(draft, guest, "guest")
        guests = _task_lanes(guest, "guest", clock.to_host)
        sides = Sides(host=side, hosts=hosts, guests=guests, threads=tids, error_ns=error_ns)
        late = _look(draft, guest, task, hosts, guests, clock.to_host, error_ns)
        found = [double_scheduling(sides), lock_holders(sides), wake_up_chains(sides)]
        _say_found(draft, sides, found)
    return Timeline(
        start_ns=host.start_ns,
        end_ns=host.end_ns,
        lanes=tuple(draft.lanes),
        late=late,
        suspects=tuple(suspect for kind in found for suspect in kind.kept),
        gaps=host.gaps,
        clock_error_ns=error_ns,
        figures=draft.figures,
        problems=tuple(draft.problems),
    )


def _vcpus(threads: Sequence[Thread]) -> dict[int, list[int]]:
    """Their threads: of one that was taken out and put in again there are several."""
    found: dict[int, list[int]] = {}
    for thread in threads:
        if thread.role == "vcpu":
            found.setdefault(thread.index, []).append(thread.tid)
    return dict(sorted(found.items()))


def _vcpu_lanes(
    draft: _Draft, side: HostSide, vcpus: Mapping[int, Sequence[int]]
) -> dict[int, Lane]:
    lanes: dict[int, Lane] = {}
    for vcpu, tids in vcpus.items():
        lanes[vcpu], denied = side.vcpu_lane(tids, vcpu)
        if denied:
            draft.problems.append(
                f"{denied} times an event of vCPU {vcpu}'s thread is missing that no lost record "
                "accounts for: what it did around there is unknown."
            )
        total = side.trace.end_ns - side.trace.start_ns
        for state, name in _SHARES.items():
            length = meter(lanes[vcpu], state).total_ns
            if total:
                draft.figures[f"vcpu{vcpu}_{name}_share"] = length / total
    draft.lanes += lanes.values()
    if vcpus and not any(len(side.trace.events.get(name, ())) for name in (ENTRY, EXIT)):
        draft.problems.append(
            "KVM told of no entries and exits (under emulation there are none): 'running the "
            "guest' is all the time a vCPU's thread had a CPU, the guest's code and QEMU's own, "
            "and 'halted' all its sleep."
        )
    return lanes


def _add_helpers(draft: _Draft, side: HostSide, threads: Sequence[Thread]) -> None:
    for role in _HELPERS:
        for thread in threads:
            if thread.role == role:
                title = f"{role} {thread.index}: {thread.name}" if thread.name else role
                lane = side.thread_lane(thread.tid, title)
                if lane is not None:
                    draft.lanes.append(lane)


def _task_lanes(trace: Trace, side: str, mapped: Mapped) -> dict[int, Lane]:
    return {
        cpu: task_lane(trace, cpu, side=side, title=f"CPU {cpu}", mapped=mapped)
        for cpu in switching_cpus(trace)
    }


def _look(
    draft: _Draft,
    trace: Trace,
    task: str,
    hosts: Mapping[int, Lane],
    tasks: Mapping[int, Lane],
    mapped: Mapped,
    error_ns: int,
) -> tuple[Late, ...]:
    """The late wake-ups that a machine's trace tells of, and their figures."""
    draft.lanes += tasks.values()
    found = _watched(draft, trace, task)
    if not len(found):
        return ()
    late = late_ones(found)
    parts = shared(late, hosts, tasks, mapped)
    total = int(parts.latency_ns.sum())
    draft.figures["wakeups"] = len(found)
    draft.figures["late_wakeups"] = len(late)
    draft.figures["late_threshold_s"] = int(parts.latency_ns.min()) / 1e9
    if total:
        for name, column in (
            ("host", parts.host_ns),
            ("exit", parts.exit_ns),
            ("queue", parts.queue_ns),
            ("other", parts.other_ns),
        ):
            draft.figures[f"late_{name}_share"] = int(column.sum()) / total
    _say_of_late(draft, found, parts, error_ns)
    longest = np.argsort(-parts.latency_ns, kind="stable")[:MOST_LATE]
    rows = longest[np.argsort(parts.meant_ns[longest], kind="stable")]
    return described(parts, rows, hosts, tasks, trace.names)


def _watched(draft: _Draft, trace: Trace, task: str) -> Wakeups:
    found, lost = wakeups(trace, task_tids(trace, task))
    if not len(found):
        found, lost = wakeups(trace, [tid for tid in trace.names if tid])
        draft.problems.append(
            f"No wake-up of a task named '{task}' was recorded: late ones are of any task."
            if len(found)
            else "No wake-ups were recorded, late or not."
        )
    if lost:
        draft.problems.append(
            f"Of {lost} more wake-ups nothing is known: events were lost in between."
        )
    if task == CYCLICTEST and found.timed.any():
        return found.take(found.timed)  # another wake-up of it ends or stops it
    if len(found) and not found.timed.all():
        draft.problems.append(
            f"Of {len(found)} wake-ups {int((~found.timed).sum())} were by no timer of the task's "
            "own: their latency counts from the wake-up."
        )
    return found


def _say_of_late(draft: _Draft, found: Wakeups, parts: Shared, error_ns: int) -> None:
    if len(found) < ENOUGH:
        draft.problems.append(
            f"{len(found)} wake-ups are few for a 95th percentile: fewer than 20 are beyond it."
        )
    if len(parts) > MOST_LATE:
        draft.problems.append(
            f"Of {len(parts)} late wake-ups the {MOST_LATE} longest are listed; shares are of all."
        )
    columns = (parts.host_ns, parts.exit_ns, parts.queue_ns)
    unsure = np.any([(part > 0) & (part <= error_ns) for part in columns], axis=0)
    if error_ns and unsure.any():
        draft.problems.append(
            f"{int(unsure.sum())} of {len(parts)} late wake-ups have a part that is no longer than "
            f"the {error_ns / 1000:.1f} us by which the guest's clock may be off: it may be "
            "another's."
        )


def _say_found(draft: _Draft, sides: Sides, found: Sequence[Found]) -> None:
    for one in found:
        draft.figures[f"{one.name}_count"] = one.count
        draft.figures[f"{one.name}_s"] = one.total_ns / 1e9
        if one.count > len(one.kept):
            draft.problems.append(
                f"Of {one.count} times '{one.kind}' the {len(one.kept)} longest are listed."
            )
    if len(sides.hosts) > 1 and not len(sides.host.trace.events.get(EXIT, ())):
        draft.problems.append(
            "Preempted lock holders can't be suspected: that takes KVM's exits for spinning."
        )
    missing = sorted(sides.hosts.keys() - sides.guests.keys())
    if missing:
        numbers = ", ".join(map(str, missing))
        draft.problems.append(f"Of vCPU {numbers} the guest recorded no switch of tasks.")


def _say_lost(draft: _Draft, trace: Trace, whose: str) -> None:
    if trace.gaps:
        draft.problems.append(
            f"{trace.lost} of the {whose}'s events were lost, at {len(trace.gaps)} moments: what "
            "went on over them is unknown, and nothing is counted that does."
        )


def _same(time_ns: Nanoseconds) -> Nanoseconds:
    return time_ns
