"""Attribute the workload's late wake-ups and stalls to guest and host, from the traces of both
sides."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.base.errors import UsageError
from labctl.base.units import SAMPLES_BEYOND
from labctl.collect.collector import RawTrial, Source
from labctl.store.samples import Reading, Unavailable, sample
from labctl.trace import files
from labctl.trace.timeline.lanes import Timeline
from labctl.trace.timeline.nested import timeline_of_files
from labctl.trace.timeline.suspects import BLOCKED as SUSPECT
from labctl.trace.timeline.suspects import BLOCKED_NS

SEEN = "wakeups_traced"
BLOCKED = "vcpu_blocked_max"
SHARES = ("late_host_share", "late_exit_share", "late_queue_share")
_IMPOSSIBLE = {
    "native": {
        "vcpu_blocked_max": "natively there is no vCPU.",
        "late_host_share": "natively there is no vCPU that waits.",
        "late_exit_share": "natively there are no VM exits.",
    },
    "tcg": {"late_exit_share": "emulated: no VM exits."},
}


def parse(trial: RawTrial) -> Iterator[Reading]:
    """Return the share of the workload's wake-ups that the traces cover, the shares of time of the
    latest 5 %, and the longest time (s) that a vCPU slept with a task on it; nothing for a trial
    without a trace.

    Raises BrokenError if a file of labctl's own is incomplete.
    """
    if trial.traces.host is None and trial.traces.guest is None:
        return
    try:
        timeline = timeline_of_files(trial.traces, trial.program, trial.own)
    except UsageError as error:
        reason = f"{error.message}."
        yield from (
            Unavailable(metric=metric, reason=reason) for metric in (SEEN, BLOCKED, *SHARES)
        )
        return
    source = files.HOST if trial.kind == "native" else files.GUEST
    coverage = timeline.coverage
    if coverage is None:
        yield Unavailable(metric=SEEN, reason=_problems(timeline))
    else:
        yield sample(SEEN, coverage.seen / coverage.total, source=source)
    late = round(timeline.figures.get("late_wakeups", 0))
    impossible = _IMPOSSIBLE.get("native" if trial.kind == "native" else trial.accelerator, {})
    longest = f"{SUSPECT[1]}_max_s"
    error_ns = timeline.clock_error_ns or 0
    if error_ns > BLOCKED_NS:
        reason = f"the guest's clock may be off by {error_ns / 1e6:.3f} ms."
        yield Unavailable(metric=BLOCKED, reason=reason)
    elif longest in timeline.figures:
        yield sample(BLOCKED, timeline.figures[longest], source=source)
    else:
        yield Unavailable(metric=BLOCKED, reason=impossible.get(BLOCKED) or _problems(timeline))
    for metric in SHARES:
        if metric in impossible:
            yield Unavailable(metric=metric, reason=impossible[metric])
        elif 0 < late < SAMPLES_BEYOND:
            reason = f"{late} late wake-ups are fewer than {SAMPLES_BEYOND} (METHOD rule 16)."
            yield Unavailable(metric=metric, reason=reason)
        elif metric in timeline.figures:
            yield sample(metric, timeline.figures[metric], source=source)
        else:
            yield Unavailable(metric=metric, reason=_why_none(timeline, metric))


def _why_none(timeline: Timeline, share: str) -> str:
    coverage = timeline.coverage
    if coverage is not None and not coverage.is_enough:
        return f"{coverage.why_unknown}."
    part = share.removeprefix("late_").removesuffix("_share")
    if part in timeline.late_bounds:
        least, most = timeline.late_bounds[part]
        return f"it is only known to be from {least:.0%} to {most:.0%}."
    return _problems(timeline)


def _problems(timeline: Timeline) -> str:
    return " ".join(timeline.problems) or "no wake-up of the workload was recorded."


LATE_WAKEUPS = Source(order=90, parse=parse)
"""Derived from the traces of both sides."""
