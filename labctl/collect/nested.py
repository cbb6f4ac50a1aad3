"""Whose part of a workload's late wake-ups was whose, from the traces of both sides."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.base.errors import UsageError
from labctl.base.percentiles import SAMPLES_BEYOND
from labctl.base.units import Better, Unit
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.trace import files
from labctl.trace.nested import timeline_of_files
from labctl.trace.recordings import Traces

SHARES = ("late_host_share", "late_exit_share", "late_queue_share")
_IMPOSSIBLE = {
    "native": {
        "late_host_share": "natively there is no vCPU that waits.",
        "late_exit_share": "natively there are no VM exits.",
    },
    "tcg": {"late_exit_share": "emulated: no VM exits."},
}


def parse(traces: Traces, *, program: str, kind: str, accelerator: str) -> Iterator[Reading]:
    """The shares of the time of the latest 5 % of wake-ups; nothing of a trial without a trace.

    `program`: the workload's; `kind`: "guest" or "native"; `accelerator`: "kvm" or "tcg". Raises
    BrokenError when a file of labctl's own isn't whole.
    """
    if traces.host is None and traces.guest is None:
        return
    try:
        timeline = timeline_of_files(traces, program)
    except UsageError as error:
        yield from (Unavailable(metric=metric, reason=f"{error.message}.") for metric in SHARES)
        return
    late = round(timeline.figures.get("late_wakeups", 0))
    impossible = _IMPOSSIBLE.get("native" if kind == "native" else accelerator, {})
    for metric in SHARES:
        if metric in impossible:
            yield Unavailable(metric=metric, reason=impossible[metric])
        elif 0 < late < SAMPLES_BEYOND:
            reason = f"{late} late wake-ups are fewer than {SAMPLES_BEYOND} (METHOD rule 16)."
            yield Unavailable(metric=metric, reason=reason)
        elif metric in timeline.figures:
            yield Sample(
                metric=metric,
                value=timeline.figures[metric],
                unit=Unit.FRACTION,
                better=Better.NEITHER,
                source=files.HOST if kind == "native" else files.GUEST,
            )
        else:
            reason = " ".join(timeline.problems) or "no wake-up of the workload was recorded."
            yield Unavailable(metric=metric, reason=reason)
