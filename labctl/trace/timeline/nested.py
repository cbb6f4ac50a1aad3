"""Put two schedulers on one time line: a host's threads, and what their guest ran on them.

`docs/nested.md` defines each state, part and suspect, and their limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from labctl.base.errors import UsageError
from labctl.base.notation import quantity
from labctl.base.units import Unit
from labctl.base.wording import counted
from labctl.store.samples import HELPERS, VCPU, Reading
from labctl.store.trial import TrialFolder
from labctl.trace.clocks import ClockMap
from labctl.trace.coverage import Bounds, Coverage, bounds_of, is_narrow
from labctl.trace.model import Gap, Nanoseconds, Trace
from labctl.trace.threads import CYCLICTEST, Thread, Workload
from labctl.trace.timeline.host_lanes import HostSide, Mapped, switching_cpus, task_lane
from labctl.trace.timeline.lanes import Lane, Late, State, Timeline, meter
from labctl.trace.timeline.late import ENOUGH, Shared, Sight, described, late_ones, shared
from labctl.trace.timeline.recordings import Traces, recordings
from labctl.trace.timeline.suspects import (
    Found,
    Sides,
    blocked_vcpus,
    double_scheduling,
    lock_holders,
    wake_up_chains,
)
from labctl.trace.timeline.wakeups import Wakeups, Woken, woken

# Summarize a workload's late wake-ups on a time line, with coverage and notes.


MOST_LATE = 2_000
"""The longest are listed; the shares are of all."""

_OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Hold a workload's lateness. `bounds`: on each part's share of the late ones' time. `figures`
    and `problems`: as in `Timeline`."""

    late: tuple[Late, ...] = ()
    coverage: Coverage | None = None
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def lateness(
    trace: Trace, workload: Workload, sight: Sight, mapped: Mapped, error_ns: int
) -> Lateness:
    """Return the late wake-ups in a machine's trace; `sight` must have a lane for each CPU.

    `error_ns`: the error bound of `mapped`.
    """
    problems: list[str] = []
    watched = _watched(trace, workload, problems)
    found = watched.wakeups.take(np.isin(watched.wakeups.cpu, list(sight.tasks)))
    coverage = _coverage(found, watched, workload)
    if not coverage.total:
        return Lateness(problems=tuple(problems))
    if coverage.inferred:
        problems.append(
            f"Inferred wake-ups: {coverage.inferred:,} of {coverage.seen:,}. No event shows "
            "them; the timers that the tasks slept on show when they were due."
        )
    figures: dict[str, float] = {"wakeups": len(found), "wakeups_unseen": coverage.unseen}
    if not len(found):
        return Lateness(coverage=coverage, figures=figures, problems=tuple(problems))
    parts = shared(late_ones(found), sight, mapped)
    figures["late_wakeups"] = len(parts)
    bounds: dict[str, Bounds] = {}
    if coverage.is_enough:
        figures["late_threshold_s"] = int(parts.latency_ns.min()) / 1e9
        bounds = _bounds(parts, sight, coverage)
        figures |= _shares(parts, sight, bounds)
    problems += _said_of_late(found, parts, error_ns)
    longest = np.argsort(-parts.latency_ns, kind="stable")[:MOST_LATE]
    rows = longest[np.argsort(parts.meant_ns[longest], kind="stable")]
    return Lateness(
        late=described(parts, rows, sight, trace.names),
        coverage=coverage,
        bounds=bounds,
        figures=figures,
        problems=tuple(problems),
    )


def _watched(trace: Trace, workload: Workload, problems: list[str]) -> Woken:
    window = workload.window_ns or (trace.start_ns, trace.end_ns)
    by_timers = workload.name == CYCLICTEST
    found = woken(trace, workload.tids(trace), by_timers=by_timers).within(*window)
    if not len(found.wakeups) and not len(found.unseen):
        found = woken(trace, [tid for tid in trace.names if tid]).within(*window)
        problems.append(
            f"No wake-up of '{workload.name}' was recorded, so late ones of any task are shown."
            if len(found.wakeups)
            else "No wake-ups were recorded, late or not."
        )
    timed = found.wakeups.timed
    if by_timers and timed.any():
        return found.only(timed)  # other wake-ups begin or end it
    if not timed.all():
        problems.append(
            f"{int((~timed).sum()):,} of {len(timed):,} wake-ups were not caused by the task's own "
            "timer: their latency counts from the wake-up."
        )
    return found


def _coverage(found: Wakeups, watched: Woken, workload: Workload) -> Coverage:
    unseen, unseen_ns = len(watched.unseen), watched.unseen.total_ns
    until_ns = int((found.again_ns - found.meant_ns).max(initial=0))
    if workload.own is not None:
        # Cycles that were over before the task slept are not wake-ups.
        known = len(watched.wakeups) + len(watched.unslept_ns) + unseen
        more = max(0, workload.own.wakeups - known)
        unseen, unseen_ns = unseen + more, unseen_ns + more * workload.own.worst_ns
        # At least this much is missing, whichever it is.
        unseen_ns = max(unseen_ns, workload.own.worst_ns - until_ns)
    return Coverage(
        seen=len(found),
        inferred=int(found.inferred.sum()),
        unseen=unseen,
        unseen_ns=unseen_ns,
        worst_ns=int(found.latency_ns.max(initial=0)),
        until_ns=until_ns,
        own=workload.own,
    )


def _bounds(parts: Shared, sight: Sight, coverage: Coverage) -> dict[str, Bounds]:
    """Return the bounds of each part that can be determined, and of the rest."""
    if not sight.parts or not parts.latency_ns.any():
        return {}
    found = {
        name: bounds_of(parts.latency_ns, parts.of(name), parts.unsure_ns, coverage)
        for name in sight.parts
    }
    # All of the rest that is unsure may belong to another part.
    rest = parts.other_ns - parts.unsure_ns
    found[_OTHER] = bounds_of(parts.latency_ns, rest, parts.unsure_ns, coverage)
    return found


def _shares(parts: Shared, sight: Sight, bounds: Mapping[str, Bounds]) -> dict[str, float]:
    """Return the shares of the seen wake-ups, without parts whose share may be far from that of
    all."""
    total = int(parts.latency_ns.sum())
    known = [name for name in bounds if is_narrow(bounds[name])]
    found = {f"late_{name}_share": int(parts.of(name).sum()) / total for name in known}
    if sight.main_loop is not None and "host" in known:
        found["late_main_loop_share"] = int(parts.main_loop_ns.sum()) / total
    return found


def _said_of_late(found: Wakeups, parts: Shared, error_ns: int) -> list[str]:
    said: list[str] = []
    if len(found) < ENOUGH:
        said.append(
            f"{len(found)} wake-ups are few for a 95th percentile: fewer than 20 are beyond it."
        )
    if len(parts) > MOST_LATE:
        said.append(
            f"The {MOST_LATE:,} longest of {len(parts):,} late wake-ups are listed; shares are of "
            "all."
        )
    unsure = int(parts.unsure_ns.sum())
    if unsure:
        said.append(
            f"{unsure / int(parts.latency_ns.sum()):.1%} of the late wake-ups' time cannot be "
            "attributed: it is counted in the rest."
        )
    columns = (parts.host_ns, parts.exit_ns, parts.queue_ns)
    near = np.any([(part > 0) & (part <= error_ns) for part in columns], axis=0)
    if error_ns and near.any():
        said.append(
            f"Late wake-ups with a part that is no longer than the {_seconds(error_ns)} by which "
            f"the guest's clock may be off: {int(near.sum()):,} of {len(parts):,}. Such a part "
            "may belong to a neighbouring one."
        )
    return said


def _seconds(value_ns: int) -> str:
    return quantity(value_ns / 1e9, Unit.SECONDS)


MOST_CPUS = 1024
QUIET_NS = 1_000_000_000
"""Longest time of a host without any event: its trace begins with its first, not before."""

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
    """Hold a time line under construction."""

    window_ns: tuple[int, int]
    lanes: list[Lane] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def take(self, found: Lateness) -> Lateness:
        self.figures.update(found.figures)
        self.problems += found.problems
        return found


def read_timeline(folder: TrialFolder) -> Timeline:
    """Return the time line of a stored trial's measured window, as `timeline_of_files` does."""
    program = str(folder.read_record().parsed_with.get("program", ""))
    # A discarded attempt has none.
    readings = folder.read_readings() if folder.has("samples.json") else ()
    return timeline_of_files(Traces(folder), program, readings)


def timeline_of_files(traces: Traces, program: str, readings: Iterable[Reading] = ()) -> Timeline:
    """Return the time line of a trial's measured window, from its collectors' files.

    `program`: labctl's name for the workload's. `readings`: of its own output. Raises UsageError
    for a trial without a trace, BrokenError naming an invalid file of labctl's own. Missing
    recordings are among the `problems`.
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
    """Return the time line of a workload's window, or of its host's whole trace if that is unknown.

    `threads`: the owners of the host's threads. `guest`: None natively, too. `clock`: the guest's
    on the host's, or why there is none.
    """
    tids = _vcpus(threads)
    is_native = guest is None and not tids
    window = _window(host, workload, None if is_native else clock)
    # Its recorder began before the window and ended after it, with or without events.
    start, end = min(host.start_ns, window[0]), max(host.end_ns, window[1])
    host = replace(host, start_ns=start, end_ns=end)
    draft = _Draft(window_ns=window, problems=[*host.problems])
    _say_lost(draft, host, "host")
    # Of several guests' threads with the same name, these are this one's.
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
        draft.problems.append(f"The guest's own side is not shown: {reason}.")
    else:
        error_ns = clock.error_ns
        draft.problems += guest.problems
        _say_lost(draft, guest, "guest")
        guest_gaps = tuple(_gaps(guest, clock.to_host, window))
        _say_covered(draft, guest, workload)
        if not hosts:
            draft.problems.append(
                "Without the host's side the causes of late wake-ups are unknown."
            )
        # A guest may write anything, so only CPUs that it has are searched for.
        own = [cpu for cpu in switching_cpus(guest) if cpu in tids or not tids][:MOST_CPUS]
        guests = _task_lanes(draft, guest, "guest", own, clock.to_host)
        sides = Sides(host=side, hosts=hosts, guests=guests, threads=tids, error_ns=error_ns)
        sight = Sight(hosts=hosts, tasks=guests, main_loop=main_loop, has_exits=side.has_exits)
        looked = draft.take(lateness(guest, workload, sight, clock.to_host, error_ns))
        if hosts:
            found = [double_scheduling(sides), blocked_vcpus(sides), wake_up_chains(sides)]
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
    """Return the workload's window, by the host's clock; the whole trace without one, or if it is
    impossible."""
    told = workload.window_ns
    if told is None or isinstance(clock, str):
        return host.start_ns, host.end_ns
    times = np.array(told) if clock is None else clock.to_host(np.array(told))
    start = max(int(times[0]), host.start_ns - QUIET_NS)
    end = min(int(times[1]), host.end_ns + QUIET_NS)
    return (start, end) if start < end else (host.start_ns, host.end_ns)


def _vcpus(threads: Sequence[Thread]) -> dict[int, list[int]]:
    """Return the vCPUs' threads: a vCPU that was unplugged and plugged in again has several."""
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
                f"{denied:,}. Its state around there is unknown."
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
    """Draw the lanes of QEMU's other threads. Return the main loop's, if it runs the guest's
    timers.

    Under emulation it does (QEMU_CLOCK_VIRTUAL, in main_loop_wait() of util/main-loop.c); KVM's
    timers are the kernel's.
    """
    is_emulated = any(one.role == VCPU and one.name.endswith("/TCG") for one in threads)
    main_loop = None
    for role in HELPERS:
        for place, thread in enumerate(one for one in threads if one.role == role):
            # Workers come and go, and a new one takes the place of one that ended.
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
        if sides.both:
            lengths = (suspect.end_ns - suspect.start_ns for suspect in one.kept)
            draft.figures[f"{one.name}_max_s"] = max(lengths, default=0) / 1e9
        if one.count > len(one.kept):
            draft.problems.append(
                f"'{one.kind}': the {len(one.kept):,} longest of {one.count:,} are listed."
            )
    if len(sides.hosts) > 1 and not sides.host.has_exits:
        draft.problems.append(
            "Preempted lock holders can't be detected without KVM's exits for spinning."
        )
    missing = sorted(sides.hosts.keys() - sides.guests.keys())
    if missing:
        numbers = ", ".join(map(str, missing))
        draft.problems.append(f"The guest recorded no task switch on vCPU {numbers}.")


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
            f"{counted(len(trace.gaps), 'place')}. The state in between is unknown."
        )


def _gaps(trace: Trace, mapped: Mapped, window_ns: tuple[int, int]) -> Iterator[Gap]:
    """Yield losses that touch the window, by the time line's clock."""
    for gap in trace.gaps:
        start, end = mapped(np.array([gap.start_ns, gap.end_ns])).tolist()
        if start < window_ns[1] and end > window_ns[0]:
            yield replace(gap, start_ns=start, end_ns=end)


def _same(time_ns: Nanoseconds) -> Nanoseconds:
    return time_ns
