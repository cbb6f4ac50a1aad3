"""Describe a time line: what threads and tasks did when, on both sides, by one clock."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Describe one late wake-up and where its time went, in nanoseconds. Parts add up to
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
    """Thread that had the CPU for the longest of it."""
    behind_ns: Mapping[str, int] = field(default_factory=dict)
    """Share of `host_ns` by the thread that had the CPU, as far as known, the longest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Describe a moment that deserves a look. `kind`: "double scheduling" (the guest gave a task a
    CPU that had none itself), "lock holder preempted" or "wake-up chain"."""

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
    None where none are looked for. `late_bounds`: of the share of each part in late wake-ups' time;
    none of parts that can't be told of."""

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
