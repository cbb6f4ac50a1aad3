"""Summarize a workload's late wake-ups on a time line, with coverage and notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from labctl.base.notation import quantity
from labctl.base.units import Unit
from labctl.trace.coverage import Bounds, Coverage, bounds_of, is_narrow
from labctl.trace.model import Trace
from labctl.trace.threads import CYCLICTEST, Workload
from labctl.trace.timeline.lanes import Late
from labctl.trace.timeline.late import ENOUGH, Shared, Sight, described, late_ones, shared
from labctl.trace.timeline.task_lanes import Mapped
from labctl.trace.timeline.wakeups import Wakeups, Woken, woken

MOST_LATE = 2_000
"""The longest are listed; the shares are of all."""

_OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Hold a workload's lateness. `bounds`: of each part's share of the late ones' time. `figures`
    and `problems`: as a `Timeline` has them."""

    late: tuple[Late, ...] = ()
    coverage: Coverage | None = None
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def lateness(
    trace: Trace, workload: Workload, sight: Sight, mapped: Mapped, error_ns: int
) -> Lateness:
    """Return what a machine's trace tells of late wake-ups; it must have a lane in `sight` for each
    CPU.

    `error_ns`: by how much `mapped` may be off.
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
            f"No wake-up of '{workload.name}' was recorded: late ones are of any task."
            if len(found.wakeups)
            else "No wake-ups were recorded, late or not."
        )
    timed = found.wakeups.timed
    if by_timers and timed.any():
        return found.only(timed)  # what else wakes it begins or ends it
    if not timed.all():
        problems.append(
            f"Of {len(timed):,} wake-ups {int((~timed).sum()):,} were by no timer of the "
            "task's own: their latency counts from the wake-up."
        )
    return found


def _coverage(found: Wakeups, watched: Woken, workload: Workload) -> Coverage:
    unseen, unseen_ns = len(watched.unseen), watched.unseen.total_ns
    until_ns = int((found.again_ns - found.meant_ns).max(initial=0))
    if workload.own is not None:
        # Cycles that were over before the task slept are no wake-ups.
        known = len(watched.wakeups) + len(watched.unslept_ns) + unseen
        more = max(0, workload.own.wakeups - known)
        unseen, unseen_ns = unseen + more, unseen_ns + more * workload.own.worst_ns
        # At least that is missing, of whichever.
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
    """Return the bounds of each part that can be told of, and of the rest."""
    if not sight.parts or not parts.latency_ns.any():
        return {}
    found = {
        name: bounds_of(parts.latency_ns, parts.of(name), parts.unsure_ns, coverage)
        for name in sight.parts
    }
    # Of the rest all that is unsure may be another part's.
    rest = parts.other_ns - parts.unsure_ns
    found[_OTHER] = bounds_of(parts.latency_ns, rest, parts.unsure_ns, coverage)
    return found


def _shares(parts: Shared, sight: Sight, bounds: Mapping[str, Bounds]) -> dict[str, float]:
    """Return the shares of those seen; none of a part of which that may be far from the share of
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
            f"Of {len(parts):,} late wake-ups the {MOST_LATE:,} longest are listed; shares are "
            "of all."
        )
    unsure = int(parts.unsure_ns.sum())
    if unsure:
        said.append(
            f"Of {unsure / int(parts.latency_ns.sum()):.1%} of the late wake-ups' time it is "
            "unknown what it went to: it is among the rest."
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
