"""Traces whose truth is known, because a test wrote down what happened."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from labctl.trace.model import Events, Gap, Trace
from labctl.trace.timeline.lanes import Lane, State

RUNNABLE, PREEMPTED, SLEEPING, DEAD = 0, 0x100, 1, 0x10
VMX = 1
HLT, PAUSE, MSR_WRITE, IO, INTERRUPT = 12, 40, 32, 30, 1


class Recorded:
    """Events as they happen; times in microseconds."""

    def __init__(self, end_us: int, names: dict[int, str] | None = None) -> None:
        self.end_us = end_us
        self.names = {**(names or {})}
        self.processes: dict[int, int] = {}
        self.gaps: list[Gap] = []
        self._events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._fields: dict[str, tuple[str, ...]] = {}

    def add(self, name: str, at_us: float, cpu: int, tid: int, **fields: int) -> None:
        self._fields[name] = tuple(fields)
        self._events[name].append(
            {"at": round(at_us * 1000), "cpu": cpu, "tid": tid, "fields": fields}
        )

    def switch(self, at_us: float, cpu: int, prev: int, then: int, state: int = SLEEPING) -> None:
        fields = {"prev_pid": prev, "prev_state": state, "next_pid": then}
        self.add("sched:sched_switch", at_us, cpu, prev, **fields)

    def wake(self, at_us: float, cpu: int, pid: int, by: int = 0, to: int | None = None) -> None:
        """`waking` and `wakeup` at once."""
        for name in ("sched:sched_waking", "sched:sched_wakeup"):
            self.add(name, at_us, cpu, by, pid=pid, target_cpu=cpu if to is None else to)

    def entry(self, at_us: float, cpu: int, tid: int) -> None:
        self.add("kvm:kvm_entry", at_us, cpu, tid, vcpu_id=0)

    def exit(self, at_us: float, cpu: int, tid: int, reason: int) -> None:
        self.add("kvm:kvm_exit", at_us, cpu, tid, exit_reason=reason, isa=VMX, vcpu_id=0)

    def to_qemu(self, at_us: float, cpu: int, tid: int, reason: int) -> None:
        self.add("kvm:kvm_userspace_exit", at_us, cpu, tid, reason=reason, errno=0)

    def timer(self, at_us: float, cpu: int, tid: int, timer: int, due_us: float) -> None:
        expires = round(due_us * 1000)
        self.add("timer:hrtimer_start", at_us, cpu, tid, hrtimer=timer, expires=expires)

    def expire(self, at_us: float, cpu: int, tid: int, timer: int) -> None:
        now = round(at_us * 1000)
        self.add("timer:hrtimer_expire_entry", at_us, cpu, tid, hrtimer=timer, now=now)

    def lose(self, start_us: float, end_us: float, cpu: int, count: int = 3) -> None:
        """Drop the CPU's events in between, as a full buffer does."""
        begin, end = round(start_us * 1000), round(end_us * 1000)
        self.gaps.append(Gap(cpu=cpu, start_ns=begin, end_ns=end, count=count))
        for events in self._events.values():
            events[:] = [e for e in events if e["cpu"] != cpu or not begin < e["at"] < end]

    def trace(self) -> Trace:
        return Trace(
            where="made up",
            start_ns=0,
            end_ns=self.end_us * 1000,
            events={name: self._columns(name) for name in self._events},
            names=self.names,
            processes=self.processes,
            gaps=tuple(self.gaps),
        )

    def _columns(self, name: str) -> Events:
        events = sorted(self._events[name], key=lambda event: event["at"])
        return Events(
            time_ns=np.array([event["at"] for event in events], dtype=np.int64),
            cpu=np.array([event["cpu"] for event in events], dtype=np.int32),
            tid=np.array([event["tid"] for event in events], dtype=np.int32),
            fields={
                field: np.array([event["fields"][field] for event in events], dtype=np.int64)
                for field in self._fields[name]
            },
        )


def spans(lane: Lane) -> list[tuple[float, float, str, str]]:
    """(start, end, state, detail), in microseconds."""
    states = list(State)
    columns = (lane.start_ns, lane.end_ns, lane.state, lane.detail)
    return [
        (start / 1000, end / 1000, states[state].name, lane.details[detail])
        for start, end, state, detail in zip(*(c.tolist() for c in columns), strict=True)
    ]
