"""The guest's own scheduler: what its perf recorded inside of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labctl.base.errors import BrokenError
from labctl.base.units import Better, Unit
from labctl.collect.side import RAW as SIDE
from labctl.collect.side import read_side
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.clocks import stored_clock_map
from labctl.trace.family import FORK, family
from labctl.trace.model import Trace
from labctl.trace.numbering import SWITCH, WAKEUPS
from labctl.trace.perfdata import read_trace
from labctl.trace.problems import noted_problem
from labctl.trace.sched import Delays, ThreadSchedule, schedule
from labctl.trace.spans import MIGRATE

COLLECTOR = "guest_trace"
EVENTS = (
    SWITCH,
    "sched:sched_waking",
    *WAKEUPS,
    MIGRATE,
    FORK,
    "timer:hrtimer_start",
    "timer:hrtimer_expire_entry",
)
"""What perf records there: who runs, who waits, whose child that is, and when a timer was due."""

_WANTED = {
    SWITCH: ("prev_pid", "prev_state", "next_pid"),
    **dict.fromkeys(WAKEUPS, ("pid", "target_cpu")),
    MIGRATE: ("pid", "dest_cpu"),
    FORK: ("parent_pid", "child_pid"),
}
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_LABELS = {"of": "workload"}
"""As natively, where the host's trace tells of the workload's threads: what waits for a CPU here
waited there."""

_WAITING = ("sched_delay", *(f"sched_delay_{name}" for name in (*_PERCENTILES, "max")))
_OF_WORKLOAD = tuple(f"{name}{{of=workload}}" for name in (*_WAITING, "preemptions", "migrations"))
_OF_TRACE = (*_OF_WORKLOAD, "ctx_switches{of=guest}", "lost_events{of=guest}")

_MOST_UNKNOWN = 0.01
"""Share of the threads' time; with more of it unknown there are no figures of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """The workload's first process, and when it ran, by the guest's CLOCK_MONOTONIC."""

    pid: int
    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


def parse(raw: TrialFolder, *, kind: str) -> Iterator[Reading]:
    """clock_error, the workload's waits for a CPU of the guest's (sched_delay, its percentiles,
    preemptions, migrations; `of=workload`), ctx_switches{of=guest} and lost_events{of=guest} of a
    guest's trial at level `trace`; nothing of another one.

    `kind`: "guest" or "native". Raises BrokenError when a file of labctl's own isn't whole.
    """
    problem = noted_problem(raw, COLLECTOR)
    if kind == "native":
        if raw.has(files.HOST):
            reason = "natively there is no guest."
            yield from _unavailable(reason, "clock_error", *_OF_TRACE[len(_OF_WORKLOAD) :])
        return
    if problem is None and not raw.has(files.GUEST) and not raw.has(files.CLOCKS):
        return
    yield _clock_error(raw)
    if problem is not None:
        yield from _unavailable(f"{problem}.", *_OF_TRACE)
        return
    if not raw.has(files.GUEST):
        yield from _unavailable("there is no trace of the guest.", *_OF_TRACE)
        return
    window = _window(raw)
    try:
        # What a guest wrote: it may be anything.
        trace = read_trace(raw.path / files.GUEST, _WANTED)
    except BrokenError as error:
        yield from _unavailable(f"{error.message}.", *_OF_TRACE)
        return
    if window.start_ns < trace.start_ns or trace.end_ns < window.end_ns:
        covered_ns = min(trace.end_ns, window.end_ns) - max(trace.start_ns, window.start_ns)
        reason = (
            f"the guest's trace covers {max(0, covered_ns) / 1e9:.1f} s of the workload's "
            f"{window.seconds:.1f} s. {' '.join(trace.problems)}"
        )
        yield from _unavailable(reason.strip(), *_OF_TRACE)
        return
    yield from _readings(trace, window)


def _readings(trace: Trace, window: _Window) -> Iterator[Reading]:
    inside = (window.start_ns, window.end_ns)
    found = schedule(trace, family(trace, window.pid), window=inside, rivals=False)
    threads = list(found.threads.values())
    if not threads:
        reason = f"the guest's trace shows no switch of process {window.pid} or its children."
        yield from _unavailable(reason, *_OF_WORKLOAD)
    elif _unknown_share(threads, window) > _MOST_UNKNOWN:
        reason = (
            f"perf in the guest lost {trace.lost} events, and what the workload's threads did is "
            f"unknown for {_unknown_share(threads, window):.0%} of the time."
        )
        yield from _unavailable(reason, *_OF_WORKLOAD)
    else:
        yield from _waiting(threads, window)
    times = trace.events[SWITCH].time_ns
    switches = int(np.count_nonzero((times >= window.start_ns) & (times <= window.end_ns)))
    of_guest = {"of": "guest"}
    yield _sample("ctx_switches", switches / window.seconds, Unit.PER_SECOND, of_guest)
    yield _sample("lost_events", trace.lost, Unit.COUNT, of_guest)


def _unknown_share(threads: Sequence[ThreadSchedule], window: _Window) -> float:
    return sum(thread.unknown_ns for thread in threads) / 1e9 / window.seconds / len(threads)


def _waiting(threads: Sequence[ThreadSchedule], window: _Window) -> Iterator[Reading]:
    """Of all threads together: a workload that starts many has few waits of each."""
    waits = [thread.delays for thread in threads]
    delays = Delays(
        start_ns=np.concatenate([each.start_ns for each in waits]),
        length_ns=np.concatenate([each.length_ns for each in waits]),
        was_preempted=np.concatenate([each.was_preempted for each in waits]),
    )
    yield _sample("sched_delay", delays.total_ns / 1e9 / window.seconds, Unit.FRACTION)
    for metric, total in (
        ("preemptions", sum(thread.preemptions for thread in threads)),
        ("migrations", sum(thread.migrations for thread in threads)),
    ):
        yield _sample(metric, total / window.seconds, Unit.PER_SECOND)
    count = len(delays.length_ns)
    yield _sample("sched_delays", count, Unit.COUNT)
    for name, q in _PERCENTILES.items():
        length_ns = delays.percentile(q)
        if length_ns is None:
            reason = f"{count} waits are too few: fewer than 20 lie beyond it (METHOD rule 16)."
            yield from _unavailable(reason, f"sched_delay_{name}{{of=workload}}")
        else:
            yield _sample(f"sched_delay_{name}", length_ns / 1e9, Unit.SECONDS)
    if count:
        yield _sample("sched_delay_max", int(delays.length_ns.max()) / 1e9, Unit.SECONDS)
    else:
        reason = "none of the workload's threads waited for a CPU of the guest's."
        yield from _unavailable(reason, "sched_delay_max{of=workload}")


def _window(raw: TrialFolder) -> _Window:
    duration_ns = round(read_side(raw).duration_s * 1e9)
    data = raw.read_json(SIDE)
    try:
        # Its counters are read when the workload has ended; before, it waits for others to attach.
        end_ns = int(data["after"]["monotonic_ns"])
        return _Window(pid=int(data["pid"]), start_ns=end_ns - duration_ns, end_ns=end_ns)
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenError(
            f"{raw.path / SIDE}: expected the workload's pid and the guest's clock from the "
            f"runner, found something else ({error!r})"
        ) from error


def _clock_error(raw: TrialFolder) -> Reading:
    found = stored_clock_map(raw)
    if isinstance(found, str):
        return Unavailable(metric="clock_error", reason=f"{found}.")
    return Sample(
        metric="clock_error",
        value=found.error_ns / 1e9,
        unit=Unit.SECONDS,
        better=Better.NEITHER,
        source=files.CLOCKS,
    )


def _sample(metric: str, value: float, unit: Unit, labels: Mapping[str, str] = _LABELS) -> Sample:
    return Sample(
        metric=metric,
        value=value,
        unit=unit,
        better=Better.NEITHER if unit is Unit.COUNT else Better.LOWER,
        labels=labels,
        source=files.GUEST,
    )


def _unavailable(reason: str, *metrics: str) -> Iterator[Unavailable]:
    for metric in metrics:
        yield Unavailable(metric=metric, reason=reason)
