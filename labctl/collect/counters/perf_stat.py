"""Read hardware counters with perf stat on the host: of a guest's vCPU threads, or natively of the
workload's process tree.

Compare like with like (METHOD rule 12): user instructions of the guest (`:uG` on the vCPU threads)
with native user instructions (`:u`), kernel with kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial

from labctl.base.errors import BrokenError
from labctl.base.tuning import Kind, Level
from labctl.collect.collector import Attaching, Collector, Here, RawTrial, Target
from labctl.collect.counters.perf import (
    Countable,
    counting,
    counts,
    pmu_countable,
    read_counters,
    totals,
)
from labctl.store.samples import Reading, Unavailable, sample, sample_key
from labctl.store.trial import TrialFolder

RAW = "perf-stat.txt"
LEFT_OUT = "perf-stat-left-out.json"
"""Events that this host cannot count beside the others, and why."""

PROBLEM = "perf-stat-problem.txt"
_NO_GUEST_CODE = (
    "guests are emulated here, so guest-only events count nothing: to the host a guest is user "
    "code."
)

_IPC = "ipc{source=pmu}"
_SUFFIX = {"guest": "G", "native": ""}

MISSES = {
    "llc": (("LLC-load-misses", "LLC-loads"), ("cache-misses", "cache-references")),
    "branch": (("branch-misses", "branches"),),
}
"""Miss metrics: events of misses and of all accesses, the first pair that the PMU has. The generic
pair is the last-level cache on Intel, and L2 on AMD (arch/x86/events/amd/core.c); the label `event`
shows which."""
_STALLS = {"frontend": "stalled-cycles-frontend", "backend": "stalled-cycles-backend"}


def user_events(kind: str) -> tuple[str, ...]:
    """Return cycles and instructions; perf stat does not run without them."""
    return _in_mode(kind, "u", "cycles", "instructions")


def wanted_events(kind: str) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Return the events to count beside `user_events` as far as the PMU has counters, most wanted
    first, each with its choices."""
    kernel = _in_mode(kind, "k", "cycles", "instructions")
    return (
        ((*kernel, *(("cycles:H",) if kind == "guest" else ())),),
        *(
            tuple(
                _in_mode(kind, "u", *events)
                for pair in pairs
                for events in (pair, pair[:1])  # AMD's six counters cannot hold the pairs
            )
            for pairs in MISSES.values()
        ),
        *((_in_mode(kind, "u", event),) for event in _STALLS.values()),
    )


@cache
def countable(kind: str) -> Countable:
    """Return what this host can count on a machine of a `kind` ("guest" or "native"). Probed once
    per process: the answer is the host's."""
    return pmu_countable(user_events(kind), wanted_events(kind))


def _in_mode(kind: str, mode: str, *events: str) -> tuple[str, ...]:
    return tuple(f"{event}:{mode}{_SUFFIX[kind]}" for event in events)


def command(
    kind: str, ids: Sequence[int], events: Sequence[str], output: Sequence[str]
) -> tuple[str, ...]:
    """Return the command of perf stat on a guest's vCPU threads, or natively on a process that
    waits to become the workload, with all its children. It runs until SIGINT; RAW is its standard
    error.

    `output`: the options for machine-readable output (`perf.output_options`).
    """
    which = "--tid" if kind == "guest" else "--pid"
    # No group: one unsupported event would fail them all, without naming it.
    counting = ("perf", "stat", *output, "--event", ",".join(events))
    return (*counting, which, ",".join(str(number) for number in ids))


def parse(raw: TrialFolder, *, kind: str) -> Iterator[Reading]:
    """Return ipc{source=pmu} (user), ipc{level=kernel,source=pmu}, user_cycles, a guest's
    host_share; llc_misses and branch_misses, their share and number per 1000 user instructions;
    stalled_cycles.

    Events that perf did not count, or counted only part of the time, make their metrics
    unavailable. Raises BrokenError if the raw file is not perf's.
    """
    if not raw.has(RAW):
        reason = raw.read_text(PROBLEM) if raw.has(PROBLEM) else "perf stat was not run."
        for metric in (_IPC, "user_cycles", *(f"{what}_misses" for what in MISSES)):
            yield Unavailable(metric=metric, reason=reason)
        return
    yield from _Counts(raw, kind).readings()


class _Counts:
    """Hold perf's counts of one trial, and compute metrics from them."""

    def __init__(self, raw: TrialFolder, kind: str) -> None:
        self._kind = kind
        self._left_out = _left_out(raw)
        self._totals = totals(read_counters(raw.read_text(RAW), str(raw.path / RAW)))

    def readings(self) -> Iterator[Reading]:
        cycles, instructions = user_events(self._kind)
        kernel, kernel_instructions = _in_mode(self._kind, "k", "cycles", "instructions")
        yield self._ratio(
            "ipc",
            instructions,
            (cycles,),
            {"source": "pmu"},
        )
        yield self._ratio(
            "ipc",
            kernel_instructions,
            (kernel,),
            {"source": "pmu", "level": "kernel"},
        )
        if self._kind == "guest":
            # Share of the vCPU threads' cycles spent in the host (QEMU, KVM): H / (G + H).
            whole = ("cycles:H", cycles, kernel)
            yield self._ratio("host_share", "cycles:H", whole)
        yield self._count("user_cycles", cycles)
        for what, pairs in MISSES.items():
            yield from self._missed(what, pairs, instructions)
        for where, event in _STALLS.items():
            (stalled,) = _in_mode(self._kind, "u", event)
            labels = {"where": where}
            yield self._ratio("stalled_cycles", stalled, (cycles,), labels)

    def _missed(
        self, what: str, pairs: Sequence[tuple[str, str]], instructions: str
    ) -> Iterator[Reading]:
        named = [(pair[0], *_in_mode(self._kind, "u", *pair)) for pair in pairs]
        counted = [found for found in named if found[1] in self._totals]
        event, misses, tries = (counted or named)[0]
        labels = {"event": event} if counted else {}
        yield self._count(f"{what}_misses", misses, labels, may_be_none=True)
        yield self._ratio(f"{what}_miss_share", misses, (tries,), labels)
        yield self._ratio(
            f"{what}_mpki",
            misses,
            (instructions,),
            labels,
            times=1000,
        )

    def _ratio(
        self,
        metric: str,
        above: str,
        below: Sequence[str],
        labels: Mapping[str, str] | None = None,
        *,
        times: float = 1,
    ) -> Reading:
        """Return `times` one event's count over the sum of others'."""
        labels = labels or {}
        found = self._counts((above, *below))
        if isinstance(found, str):
            return Unavailable(metric=sample_key(metric, labels), reason=found)
        if sum(found[1:]) == 0:
            return Unavailable(metric=sample_key(metric, labels), reason=_none_of(below[-1]))
        value = times * found[0] / sum(found[1:])
        return sample(metric, value, source=RAW, labels=labels)

    def _count(
        self,
        metric: str,
        event: str,
        labels: Mapping[str, str] | None = None,
        *,
        may_be_none: bool = False,
    ) -> Reading:
        labels = labels or {}
        found = self._counts((event,))
        if not isinstance(found, str) and found[0] == 0 and not may_be_none:
            found = _none_of(event)
        if isinstance(found, str):
            return Unavailable(metric=sample_key(metric, labels), reason=found)
        return sample(metric, found[0], source=RAW, labels=labels)

    def _counts(self, events: Sequence[str]) -> list[float] | str:
        for event in events:
            if event not in self._totals and event in self._left_out:
                return str(self._left_out[event])
        return counts(self._totals, events)


def _left_out(raw: TrialFolder) -> dict[str, object]:
    found = raw.read_json(LEFT_OUT) if raw.has(LEFT_OUT) else {}
    if not isinstance(found, dict):
        raise BrokenError(f"{raw.path / LEFT_OUT}: expected a reason by event")
    return found


def _none_of(event: str) -> str:
    why = ": without KVM a guest is user code to the host" if event.endswith("G") else ""
    return f"perf counted no {event} at all{why}."


@contextmanager
def _attached(target: Target) -> Iterator[None]:
    """Run perf stat on the vCPU threads, natively on the waiting command; or store why it
    cannot."""
    kind = str(target.kind)
    can = countable(kind)
    if can.problem is None:
        target.folder.write_raw_json(LEFT_OUT, dict(can.left_out))
    ids = target.vcpu_tids if target.pid is None else (target.pid,)
    asked = command(kind, ids, can.events, can.output)
    with counting(target.folder, can, asked, raw=RAW, problem=PROBLEM):
        yield


def _why_unavailable(kind: Kind, at: Here) -> str | None:
    if problem := countable(str(kind)).problem:
        return problem
    return _NO_GUEST_CODE if kind is Kind.GUEST and at.accelerator == "tcg" else None


def _parsed(kind: Kind, trial: RawTrial) -> Iterator[Reading]:
    if trial.kind == str(kind):
        yield from parse(trial.folder, kind=trial.kind)


def _of(kind: Kind) -> Collector:
    return Collector(
        name=f"perf-stat ({kind})",
        order=130,
        level=Level.COUNTERS,
        gives="IPC, cache and branch misses, stalls",
        sides=(kind,),
        why_unavailable=partial(_why_unavailable, kind),
        attaching=Attaching.COUNTERS,
        attached=_attached,
        raw=(RAW, LEFT_OUT, PROBLEM),
        recorders=("perf",),
        parse=partial(_parsed, kind),
    )


GUEST, NATIVE = _of(Kind.GUEST), _of(Kind.NATIVE)
