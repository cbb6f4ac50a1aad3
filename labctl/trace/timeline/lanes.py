"""Describe a time line: the states of threads and tasks on both sides, by one clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from labctl.trace.coverage import Bounds, Coverage
from labctl.trace.model import Gap, Nanoseconds


class State(StrEnum):
    """Name a state of a vCPU: GUEST to HALTED on its host, TASK to IDLE as its guest sees it."""

    GUEST = "running the guest"
    HOST = "running in the host"
    EXIT = "handling an exit"
    PREEMPTED = "waiting for a CPU"
    HALTED = "halted"
    TASK = "running a task"
    IDLE = "idle"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Hold spans of one vCPU (or native CPU) as columns of one length, in order, not overlapping.

    `side`: "host" or "guest". `state`: indices into `list(State)`. `detail`: indices into
    `details`, which names the preemptor, the exit's reason or the task that runs ("" for none).
    """

    title: str
    side: str
    vcpu: int
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    state: NDArray[np.int8]
    detail: NDArray[np.int32]
    details: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Describe one late wake-up and its time by cause, in nanoseconds. Parts add up to
    `latency_ns`: `host_ns` with QEMU's threads in the host's run queue, `exit_ns` in exits,
    `queue_ns` behind other tasks of the guest, `other_ns` the rest. `at_ns`: when it was due."""

    at_ns: int
    vcpu: int
    task: str
    latency_ns: int
    host_ns: int
    exit_ns: int
    queue_ns: int
    other_ns: int
    culprit: str = ""
    """Thread that had the CPU for most of it."""
    behind_ns: Mapping[str, int] = field(default_factory=dict)
    """Share of `host_ns` by the thread that had the CPU, as far as known, the longest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Describe a moment worth inspecting. `kind`: "double scheduling" (the guest gave a task a CPU
    that had none itself), "blocked vCPU", "lock holder preempted" or "wake-up chain"."""

    kind: str
    vcpu: int
    start_ns: int
    end_ns: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Hold a time line. Times are the host's CLOCK_MONOTONIC. `clock_error_ns`: bound on the guest
    side's error; None without a guest. `figures`: totals of the trial by name, in seconds or
    shares, for the head of the page. `coverage`: of the wake-ups that late ones are taken from;
    None if none are searched for. `late_bounds`: on the share of each part in late wake-ups' time;
    parts that cannot be determined are missing."""

    start_ns: int
    end_ns: int
    lanes: tuple[Lane, ...]
    late: tuple[Late, ...] = ()
    coverage: Coverage | None = None
    late_bounds: Mapping[str, Bounds] = field(default_factory=dict)
    suspects: tuple[Suspect, ...] = ()
    gaps: tuple[Gap, ...] = ()
    """Gaps of the host's recorder, and of the guest's (`guest_gaps`, of the guest's CPUs)."""
    guest_gaps: tuple[Gap, ...] = ()
    clock_error_ns: int | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


# Hold spans of time as columns: cut them, label them, and add up their lengths.


STATES = list(State)
NUMBER_OF = {state: np.int8(number) for number, state in enumerate(STATES)}
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LaneSpans:
    """Hold columns of one length, in order, not overlapping. `key`: a number for each text of a
    detail; 0 for none."""

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    state: NDArray[np.int8]
    key: NDArray[np.int64]

    def filled(self) -> LaneSpans:
        """Return the spans that are not empty."""
        kept = np.flatnonzero(self.start_ns < self.end_ns)
        return LaneSpans(self.start_ns[kept], self.end_ns[kept], self.state[kept], self.key[kept])

    def within(self, start_ns: int, end_ns: int) -> LaneSpans:
        """Cut to a window, without empty spans, and with equal neighbours merged."""
        start, end = np.maximum(self.start_ns, start_ns), np.minimum(self.end_ns, end_ns)
        kept = end > start
        start, end, state, key = start[kept], end[kept], self.state[kept], self.key[kept]
        if not len(start):
            return LaneSpans(start, end, state, key)
        same = (start[1:] == end[:-1]) & (state[1:] == state[:-1]) & (key[1:] == key[:-1])
        first = np.concatenate(([True], ~same))
        last = np.concatenate((~same, [True]))
        return LaneSpans(start[first], end[last], state[first], key[first])

    def lane(self, title: str, side: str, vcpu: int, text: Callable[[int], str]) -> Lane:
        """Return the lane. `text`: the detail of a key other than 0."""
        keys, inverse = np.unique(self.key, return_inverse=True)
        texts = [text(int(key)) if key else "" for key in keys]
        details = tuple(dict.fromkeys(texts))  # two keys may have the same text
        place = {detail: number for number, detail in enumerate(details)}
        numbers = np.array([place[one] for one in texts], dtype=np.int32)
        return Lane(
            title=title,
            side=side,
            vcpu=vcpu,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            state=self.state,
            detail=numbers[inverse] if len(keys) else np.zeros(0, dtype=np.int32),
            details=details,
        )


def stacked(parts: Sequence[LaneSpans]) -> LaneSpans:
    """Return spans that don't overlap, in order of time, without those that are empty."""
    parts = [part.filled() for part in parts]
    start = np.concatenate([part.start_ns for part in parts])
    order = np.argsort(start, kind="stable")
    return LaneSpans(
        start[order],
        np.concatenate([part.end_ns for part in parts])[order],
        np.concatenate([part.state for part in parts])[order],
        np.concatenate([part.key for part in parts])[order],
    )


@dataclass(frozen=True, slots=True)
class Holes:
    """Hold when events were lost, in order, not overlapping."""

    start_ns: Nanoseconds
    end_ns: Nanoseconds

    @classmethod
    def of(cls, gaps: Iterable[Gap], cpu: int | None = None) -> Holes:
        """Return the gaps of one CPU, or of any. A gap of no length lasts a nanosecond."""
        ends: list[tuple[int, int]] = []
        found = [gap for gap in gaps if cpu is None or gap.cpu == cpu]
        for gap in sorted(found, key=lambda gap: gap.start_ns):
            start, end = gap.start_ns, max(gap.end_ns, gap.start_ns + 1)
            if ends and start <= ends[-1][1]:
                start, end = ends[-1][0], max(ends.pop()[1], end)
            ends.append((start, end))
        pairs = np.array(ends, dtype=np.int64).reshape(-1, 2)
        return cls(pairs[:, 0], pairs[:, 1])

    def of_spans(self, start_ns: Nanoseconds, end_ns: Nanoseconds) -> tuple[Nanoseconds, ...]:
        """Return for each span until when and from when on none of it was lost; both are its end if
        it has no hole."""
        if not len(self.start_ns):
            return end_ns, end_ns
        first = np.searchsorted(self.end_ns, start_ns, "right")
        last = np.searchsorted(self.start_ns, end_ns, "left") - 1
        broken = first <= last
        until = np.maximum(self.start_ns[np.minimum(first, len(self.start_ns) - 1)], start_ns)
        again = np.minimum(self.end_ns[np.maximum(last, 0)], end_ns)
        return np.where(broken, until, end_ns), np.where(broken, again, end_ns)


@dataclass(frozen=True, slots=True)
class Meter:
    """Measure how long a state lasted up to any time. Exact: whole nanoseconds."""

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    before_ns: Nanoseconds

    @classmethod
    def of(cls, start_ns: Nanoseconds, end_ns: Nanoseconds) -> Meter:
        """Make a meter of ordered spans that do not overlap, during which the state holds."""
        return cls(start_ns, end_ns, np.concatenate(([0], np.cumsum(end_ns - start_ns))))

    @property
    def total_ns(self) -> int:
        return int(self.before_ns[-1])

    def between(self, start_ns: Nanoseconds, end_ns: Nanoseconds) -> Nanoseconds:
        return self._until(end_ns) - self._until(start_ns)

    def _until(self, moment_ns: Nanoseconds) -> Nanoseconds:
        # Spans that began by then; the last of them may continue.
        begun = np.searchsorted(self.start_ns, moment_ns, "right")
        if not len(self.start_ns):
            return np.zeros_like(moment_ns)
        beyond = np.maximum(self.end_ns[np.maximum(begun - 1, 0)] - moment_ns, 0)
        return self.before_ns[begun] - np.where(begun > 0, beyond, 0)


def meter(lane: Lane, *states: State) -> Meter:
    chosen = in_states(lane, *states)
    return Meter.of(lane.start_ns[chosen], lane.end_ns[chosen])


def in_states(lane: Lane, *states: State) -> Flags:
    return among(lane.state, [int(NUMBER_OF[state]) for state in states])


def among(values: NDArray[np.int8], chosen: Sequence[int]) -> Flags:
    """Return which of these small numbers are among others; -1 never is. np.isin() takes ten times
    as long."""
    is_chosen = np.zeros(128, dtype=bool)
    is_chosen[list(chosen)] = True
    found: Flags = is_chosen[values]
    return found


def overlaps(
    start_ns: Nanoseconds, end_ns: Nanoseconds, of_start_ns: Nanoseconds, of_end_ns: Nanoseconds
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return every pair of a span and one of others that overlap, as indices. The others are in
    order and don't overlap each other."""
    first = np.searchsorted(of_end_ns, start_ns, "right")
    after = np.searchsorted(of_start_ns, end_ns, "left")
    counts = np.maximum(after - first, 0)
    return np.repeat(np.arange(len(start_ns)), counts), ranges(first, counts)


def ranges(first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return first[0], first[0] + 1, ... (counts[0] of them), first[1], ...: all in one row."""
    before = np.cumsum(counts) - counts
    found: NDArray[np.int64] = np.arange(int(counts.sum())) + np.repeat(first - before, counts)
    return found
