"""A time line made up: a task that wakes every millisecond in a guest whose host is busy."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from labctl.trace.model import Gap
from labctl.trace.timeline.lanes import Lane, Late, State, Suspect, Timeline

PERIOD_NS = 1_000_000
STATES = list(State)
Row = tuple[int, int, State, str]

_EXITS = ("MSR_WRITE", "EXTERNAL_INTERRUPT", "EPT_VIOLATION", "IO_INSTRUCTION", "HLT")
_HOGS = ("stress-ng-cpu", "stress-ng-cpu", "kworker/1:2")


def lane(title: str, side: str, vcpu: int, rows: Sequence[Row]) -> Lane:
    """Return a lane of spans given as (start, end, state, detail)."""
    details = tuple(dict.fromkeys(row[3] for row in rows))
    number = {detail: at for at, detail in enumerate(details)}
    return Lane(
        title=title,
        side=side,
        vcpu=vcpu,
        start_ns=np.array([row[0] for row in rows], dtype=np.int64),
        end_ns=np.array([row[1] for row in rows], dtype=np.int64),
        state=np.array([STATES.index(row[2]) for row in rows], dtype=np.int8),
        detail=np.array([number[row[3]] for row in rows], dtype=np.int32),
        details=details,
    )


def made_up(
    *,
    seconds: float = 10.0,
    vcpus: int = 2,
    exits: int = 14,
    task: str = "cyclictest",
    start_ns: int = 5_000_000_000_000,
    seed: int = 1,
) -> Timeline:
    """Return a time line of some 4,000 + 2,000 × `exits` spans a second and vCPU, 1 in 30 wake-ups
    of which waits for a host CPU."""
    rng = random.Random(seed)
    end_ns = start_ns + round(seconds * 1e9)
    lanes: list[Lane] = []
    late: list[Late] = []
    suspects: list[Suspect] = []
    for vcpu in range(vcpus):
        host: list[Row] = []
        guest: list[Row] = []
        for due in range(start_ns, end_ns - PERIOD_NS + 1, PERIOD_NS):
            late.append(_period(rng, due, vcpu, exits, task, host, guest, suspects))
        lanes.append(lane(f"vCPU {vcpu}", "host", vcpu, host))
        lanes.append(lane(f"CPU {vcpu}", "guest", vcpu, guest))
    late.sort(key=lambda one: -one.latency_ns)
    worst = tuple(late[: len(late) // 20])
    waited = sum(one.latency_ns for one in worst)
    third = start_ns + (end_ns - start_ns) // 3
    return Timeline(
        start_ns=start_ns,
        end_ns=end_ns,
        lanes=tuple(lanes),
        late=worst,
        suspects=tuple(suspects),
        gaps=(Gap(cpu=1, start_ns=third, end_ns=third + 40 * PERIOD_NS, count=1234),),
        clock_error_ns=18_000,
        figures={
            "wakeups": len(late),
            "late_wakeups": len(worst),
            "late_threshold_s": min(one.latency_ns for one in worst) / 1e9,
            **{
                f"late_{part}_share": sum(getattr(one, f"{part}_ns") for one in worst) / waited
                for part in ("host", "exit", "queue", "other")
            },
            "vcpu0_guest_share": 0.13,
            "vcpu0_exit_share": 0.03,
            "vcpu0_preempted_share": 0.005,
            "vcpu0_halted_share": 0.835,
        },
        problems=("trace/guest.perf.data ends in the middle of a record",),
    )


def _period(
    rng: random.Random,
    due: int,
    vcpu: int,
    exits: int,
    task: str,
    host: list[Row],
    guest: list[Row],
    suspects: list[Suspect],
) -> Late:
    """Return one wake-up and its work; the vCPU halts afterwards."""
    waits = round(min(600_000, rng.expovariate(1 / 150_000))) if rng.random() < 1 / 30 else 0
    hog = rng.choice(_HOGS)
    woken = due + rng.randint(2_000, 9_000)
    running = woken + waits
    host.append((due, woken, State.EXIT, "HLT"))
    if waits:
        host.append((woken, running, State.PREEMPTED, hog))
    queue = rng.randint(20_000, 90_000) if rng.random() < 1 / 40 else 0
    at = running
    in_exits = 0
    for number in range(exits):
        inside, outside = rng.randint(2_000, 14_000), rng.randint(900, 3_500)
        host.append((at, at + inside, State.GUEST, ""))
        host.append((at + inside, at + inside + outside, State.EXIT, rng.choice(_EXITS)))
        at += inside + outside
        in_exits += outside if number < 2 else 0
    end = due + PERIOD_NS
    host.append((at, end, State.HALTED, ""))
    runs = running + 4_000 + queue
    guest.append((due, runs - queue, State.IDLE, ""))
    if queue:
        guest.append((runs - queue, runs, State.TASK, f"kworker/{vcpu}:1"))
    guest.append((runs, at + queue, State.TASK, task))
    guest.append((at + queue, end, State.IDLE, ""))
    if waits > 300_000:
        text = f"{task} was given vCPU {vcpu} while {hog} had its CPU"
        suspects.append(
            Suspect(kind="double scheduling", vcpu=vcpu, start_ns=woken, end_ns=running, text=text)
        )
    latency = runs - due
    other = latency - waits - in_exits - queue
    in_exits += min(0, other)
    return Late(
        at_ns=due,
        vcpu=vcpu,
        task=task,
        latency_ns=latency,
        host_ns=waits,
        exit_ns=in_exits,
        queue_ns=queue,
        other_ns=max(0, other),
        culprit=_culprit(waits, queue, hog, vcpu),
    )


def _culprit(waits: int, queue: int, hog: str, vcpu: int) -> str:
    """Return the culprit as the time lines of real traces name it."""
    if queue > waits:
        return f"kworker/{vcpu}:1 (guest)"
    return f"{hog} (host)" if waits else "MSR_WRITE (exit)"
