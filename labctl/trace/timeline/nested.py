"""Put two schedulers on one time line: a host's threads over what their guest ran on them.

`docs/nested.md` says what each state, part and suspect means, and what it can't tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from labctl.base.errors import UsageError
from labctl.base.wording import counted
from labctl.store.samples import HELPERS, VCPU, Reading
from labctl.store.trial import TrialFolder
from labctl.trace.clocks import ClockMap
from labctl.trace.model import Gap, Nanoseconds, Trace
from labctl.trace.threads import Thread, Workload
from labctl.trace.timeline.host_lanes import HostSide
from labctl.trace.timeline.lane_spans import meter
from labctl.trace.timeline.lanes import Lane, State, Timeline
from labctl.trace.timeline.late import Sight
from labctl.trace.timeline.lateness import Lateness, lateness
from labctl.trace.timeline.recordings import Traces, recordings
from labctl.trace.timeline.suspects import (
    Found,
    Sides,
    double_scheduling,
    lock_holders,
    wake_up_chains,
)
from labctl.trace.timeline.task_lanes import Mapped, switching_cpus, task_lane

MOST_CPUS = 1024
QUIET_NS = 1_000_000_000
"""So long a host may be without any event: its trace begins with its first, and not before."""

_SHARES = {
    State.GUEST: "guest",
    State.EXIT: "exit",
    State.PREEMPTED: "preempted",
    State.HALTED: "halted",
    State.UNKNOWN: "unknown",
}
"""Shares of a vCPU's time, by their names in figures."""


@dataclass(slots=True)
class _Draft:
    """Hold a time line that is being put together."""

    window_ns: tuple[int, int]
    lanes: list[Lane] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def take(self, found: Lateness) -> Lateness:
        self.figures.update(found.figures)
        self.problems += found.problems
        return found


def read_timeline(folder: TrialFolder) -> Timeline:
    """Return the time line of a stored trial's measured window, as `timeline_of_files` has it."""
    program = str(folder.read_record().parsed_with.get("program", ""))
    # An attempt that was thrown away has none.
    readings = folder.read_readings() if folder.has("samples.json") else ()
    return timeline_of_files(Traces(folder), program, readings)


def timeline_of_files(traces: Traces, program: str, readings: Iterable[Reading] = ()) -> Timeline:
    """Return the time line of a trial's measured window, of the files that its collectors left.

    `program`: what labctl calls the workload's. `readings`: of its own output. Raises UsageError
    for a trial without a trace, BrokenError naming a file of labctl's own that isn't what was
    written. What a recorder didn't get is among the `problems`.
    """
    found = recordings(traces, program, readings)
    host = found.host
    if host is None:
        if found.guest is None or isinstance(found.clock, str):
            raise UsageError(
                f"trial {traces.folder.path.name} has no trace of its host, and its guest's can't "
                f"be put on the host's clock: {found.clock}",
                hint="'labctl timeline RUN' lists trials that have both.",
            )
        times = found.clock.to_host(np.array([found.guest.start_ns, found.guest.end_ns]))
        host = Trace(where="", start_ns=int(times[0]), end_ns=int(times[1]), events={})
    made = timeline_of(host, found.threads, found.guest, found.clock, found.workload)
    return replace(made, problems=(*found.problems, *made.problems))


def timeline_of(
    host: Trace,
    threads: Sequence[Thread],
    guest: Trace | None,
    clock: ClockMap | str,
    workload: Workload,
) -> Timeline:
    """Return the time line of a workload's window, or of all of its host's trace if that isn't
    known.

    `threads`: whose the host's threads are. `guest`: None natively, too. `clock`: the guest's on
    the host's, or why there is none.
    """
    tids = _vcpus(threads)
    is_native = guest is None and not tids
    window = _window(host, workload, None if is_native else clock)
    # Its recorder began before the window and ended after it, with or without events.
    start, end = min(host.start_ns, window[0]), max(host.end_ns, window[1])
    host = replace(host, start_ns=start, end_ns=end)
    draft = _Draft(window_ns=window, problems=[*host.problems])
    _say_lost(draft, host, "host")
    # Of several guests' threads that are called the same, these are this one's.
    names = {thread.tid: f"this guest's {thread.name}" for thread in threads if thread.name}
    side = HostSide.of(host, names, window)
    hosts = _vcpu_lanes(draft, side, tids)
    main_loop = _helper_lanes(draft, side, threads)
    looked = Lateness()
    found: list[Found] = []
    error_ns = None
    guest_gaps: tuple[Gap, ...] = ()
    if is_native:
        cpus = _task_lanes(draft, host, "host", switching_cpus(host), _same)
        sight = Sight(hosts={}, tasks=cpus, is_native=True)
        looked = draft.take(lateness(host, workload, sight, _same, 0))
    elif guest is None or isinstance(clock, str):
        reason = clock if isinstance(clock, str) else "there is no trace of it that can be read"
        draft.problems.append(f"Of the guest's own side nothing is shown: {reason}.")
    else:
        error_ns = clock.error_ns
        draft.problems += guest.problems
        _say_lost(draft, guest, "guest")
        guest_gaps = tuple(_gaps(guest, clock.to_host, window))
        _say_covered(draft, guest, workload)
        if not hosts:
            draft.problems.append(
                "Without the host's side it is unknown what late wake-ups waited for."
            )
        # What a guest wrote may be anything: only CPUs that it has are looked for.
        own = [cpu for cpu in switching_cpus(guest) if cpu in tids or not tids][:MOST_CPUS]
        guests = _task_lanes(draft, guest, "guest", own, clock.to_host)
        sides = Sides(host=side, hosts=hosts, guests=guests, threads=tids, error_ns=error_ns)
        sight = Sight(hosts=hosts, tasks=guests, main_loop=main_loop, has_exits=side.has_exits)
        looked = draft.take(lateness(guest, workload, sight, clock.to_host, error_ns))
        if hosts:
            found = [double_scheduling(sides), wake_up_chains(sides)]
        if side.has_exits:
            found.append(lock_holders(sides))
        _say_found(draft, sides, found)
    return Timeline(
        start_ns=window[0],
        end_ns=window[1],
        lanes=tuple(draft.lanes),
        late=looked.late,
        coverage=looked.coverage,
        late_bounds=looked.bounds,
        suspects=tuple(suspect for kind in found for suspect in kind.kept),
        gaps=tuple(_gaps(host, _same, window)),
        guest_gaps=guest_gaps,
        clock_error_ns=error_ns,
        figures=draft.figures,
        problems=tuple(draft.problems),
    )


def _window(host: Trace, workload: Workload, clock: ClockMap | str | None) -> tuple[int, int]:
    """Return the workload's, by the host's clock: without one, or where it can't be, all of the
    trace."""
    told = workload.window_ns
    if told is None or isinstance(clock, str):
        return host.start_ns, host.end_ns
    times = np.array(told) if clock is None else clock.to_host(np.array(told))
    start = max(int(times[0]), host.start_ns - QUIET_NS)
    end = min(int(times[1]), host.end_ns + QUIET_NS)
    return (start, end) if start < end else (host.start_ns, host.end_ns)


def _vcpus(threads: Sequence[Thread]) -> dict[int, list[int]]:
    """Return their threads: of one that was taken out and put in again there are several."""
    found: dict[int, list[int]] = {}
    for thread in threads:
        if thread.role == VCPU:
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
                f"Missing events of vCPU {vcpu}'s thread that no lost record accounts for: "
                f"{denied:,}. What it did around there is unknown."
            )
        total = side.window_ns[1] - side.window_ns[0]
        for state, name in _SHARES.items():
            length = meter(lanes[vcpu], state).total_ns
            if total and (side.has_exits or state is not State.EXIT):
                draft.figures[f"vcpu{vcpu}_{name}_share"] = length / total
    draft.lanes += lanes.values()
    if vcpus and not side.has_exits:
        draft.problems.append(
            "KVM reported no entries and exits (under emulation there are none): 'running the "
            "guest' is all the time a vCPU's thread had a CPU, the guest's code and QEMU's own, "
            "and 'halted' all its sleep."
        )
    return lanes


def _helper_lanes(draft: _Draft, side: HostSide, threads: Sequence[Thread]) -> Lane | None:
    """Draw the lanes of QEMU's other threads. Return the main loop's, where that runs the guest's
    timers.

    Under emulation it does (QEMU_CLOCK_VIRTUAL, in main_loop_wait() of util/main-loop.c); KVM's
    timers are the kernel's.
    """
    is_emulated = any(one.role == VCPU and one.name.endswith("/TCG") for one in threads)
    main_loop = None
    for role in HELPERS:
        for place, thread in enumerate(one for one in threads if one.role == role):
            # Workers come and go, and one that came has the place of one that went.
            number = thread.index if role == "iothread" else place
            title = f"{role} {number}: {thread.name}" if thread.name else role
            lane = side.thread_lane(thread.tid, title)
            if lane is None:
                continue
            draft.lanes.append(lane)
            if is_emulated and thread.tid == thread.pid:
                main_loop = lane
    return main_loop


def _task_lanes(
    draft: _Draft, trace: Trace, side: str, cpus: Sequence[int], mapped: Mapped
) -> dict[int, Lane]:
    lanes = {
        cpu: task_lane(trace, cpu, side=side, mapped=mapped, window_ns=draft.window_ns)
        for cpu in cpus
    }
    draft.lanes += lanes.values()
    return lanes


def _say_found(draft: _Draft, sides: Sides, found: Sequence[Found]) -> None:
    for one in found:
        draft.figures[f"{one.name}_count"] = one.count
        draft.figures[f"{one.name}_s"] = one.total_ns / 1e9
        if one.count > len(one.kept):
            draft.problems.append(
                f"Of {one.count:,} times '{one.kind}' the {len(one.kept):,} longest are listed."
            )
    if len(sides.hosts) > 1 and not sides.host.has_exits:
        draft.problems.append(
            "Preempted lock holders can't be suspected: that takes KVM's exits for spinning."
        )
    missing = sorted(sides.hosts.keys() - sides.guests.keys())
    if missing:
        numbers = ", ".join(map(str, missing))
        draft.problems.append(f"Of vCPU {numbers} the guest recorded no switch of tasks.")


def _say_covered(draft: _Draft, guest: Trace, workload: Workload) -> None:
    if workload.window_ns is None:
        return
    start, end = workload.window_ns
    covered = min(guest.end_ns, end) - max(guest.start_ns, start)
    if covered < end - start:
        draft.problems.append(
            f"The guest's trace covers {max(0, covered) / 1e9:.1f} s of the workload's "
            f"{(end - start) / 1e9:.1f} s."
        )


def _say_lost(draft: _Draft, trace: Trace, whose: str) -> None:
    if trace.gaps:
        draft.problems.append(
            f"Events that were lost on the {whose}'s side: {trace.lost:,}, in "
            f"{counted(len(trace.gaps), 'place')}. What went on over one is unknown."
        )


def _gaps(trace: Trace, mapped: Mapped, window_ns: tuple[int, int]) -> Iterator[Gap]:
    """Losses that touch the window, by the time line's clock."""
    for gap in trace.gaps:
        start, end = mapped(np.array([gap.start_ns, gap.end_ns])).tolist()
        if start < window_ns[1] and end > window_ns[0]:
            yield replace(gap, start_ns=start, end_ns=end)


def _same(time_ns: Nanoseconds) -> Nanoseconds:
    return time_ns
