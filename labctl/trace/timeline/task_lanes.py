"""Show which task each CPU of a machine ran, from its own scheduler's events. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import Nanoseconds, Trace
from labctl.trace.timeline.lane_spans import NUMBER_OF, Holes, LaneSpans, stacked
from labctl.trace.timeline.lanes import Lane, State
from labctl.trace.tracepoints import SWITCH

Mapped = Callable[[Nanoseconds], Nanoseconds]
"""Function from a machine's clock to that of the time line."""


def switching_cpus(trace: Trace) -> list[int]:
    if SWITCH not in trace.events:
        return []
    return [int(cpu) for cpu in np.unique(trace.events[SWITCH].cpu)]


def task_lane(
    trace: Trace, cpu: int, *, side: str, mapped: Mapped, window_ns: tuple[int, int]
) -> Lane:
    """Return TASK (its name is the detail) and IDLE, from one switch of the CPU to the next.

    UNKNOWN where events were lost, and where the task that leaves isn't the one that came: switches
    in between weren't recorded. `mapped`: of the trace's times. `window_ns`: what is shown, by the
    time line's clock.
    """
    switches = trace.events[SWITCH]
    own = switches.cpu == cpu
    time = switches.time_ns[own]
    left, came = switches.fields["prev_pid"][own], switches.fields["next_pid"][own]
    # Before the first switch and after the last one: who leaves, and who came.
    start = np.concatenate(([trace.start_ns], time))
    end = np.append(time, max(trace.end_ns, int(time[-1])))
    ran = np.concatenate((left[:1], came)).astype(np.int64)
    leaves = np.concatenate((left, came[-1:])).astype(np.int64)
    until, again = Holes.of(trace.gaps, cpu).of_spans(start, end)
    broken = until < end
    lost = ~broken & (ran != leaves)
    # Before the first switch nobody was seen to come; a loss in there leaves only who leaves.
    until[0] = start[0] if broken[0] else end[0]
    until = np.where(lost, start, until)
    again = np.where(lost, end, again)
    # Nothing is known of what came after a loss that no switch follows.
    again[-1] = end[-1]
    spans = stacked(
        [
            LaneSpans(start, until, _states(ran), ran),
            LaneSpans(
                until,
                again,
                np.full(len(start), NUMBER_OF[State.UNKNOWN]),
                np.zeros(len(start), dtype=np.int64),
            ),
            LaneSpans(again, end, _states(leaves), leaves),
        ]
    ).within(trace.start_ns, trace.end_ns)
    placed = LaneSpans(mapped(spans.start_ns), mapped(spans.end_ns), spans.state, spans.key)
    shown = placed.within(*window_ns)
    return shown.lane(f"CPU {cpu}", side, cpu, lambda tid: trace.names.get(tid, f"task {tid}"))


def _states(tids: NDArray[np.int64]) -> NDArray[np.int8]:
    return np.where(tids == 0, NUMBER_OF[State.IDLE], NUMBER_OF[State.TASK])
