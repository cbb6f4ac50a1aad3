"""Draw the states of QEMU's threads on their host, from its scheduler's and KVM's events. Pure.

A thread's events cut its time into spans, and each event determines the state after it. If events
were lost, the span is known up to the loss; the state after the loss is known as far as the next
event leaves only one possibility (a thread that is switched out was on a CPU).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from labctl.trace.exit_names import HALTS, VMX, exit_name, qemu_exit_name
from labctl.trace.model import (
    ENDED,
    ENTRY,
    EXIT,
    MIGRATE,
    STOPPED,
    SWITCH,
    TO_QEMU,
    UNTOLD,
    WAKEUP,
    WAKEUP_NEW,
    WAKEUPS,
    Events,
    Nanoseconds,
    Numbers,
    Trace,
)
from labctl.trace.timeline.lanes import (
    NUMBER_OF,
    Flags,
    Holes,
    Lane,
    LaneSpans,
    State,
    among,
    ranges,
    stacked,
)

# Find which thread had a CPU while another waited for it, as far as switches show. Pure.


_Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Waits:
    """Hold spans of waiting, each part of one with the thread that ran meanwhile: `first`, and at
    its end `then`. They differ if switches between others were not recorded; -1 is unknown. `row`:
    the wait that it is a part of."""

    row: _Rows
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    first: Numbers
    then: Numbers


@dataclass(frozen=True, slots=True)
class _Cpu:
    time_ns: Nanoseconds
    left: Numbers
    came: Numbers


@dataclass(frozen=True, slots=True)
class Runners:
    """Hold each CPU's switches, in order of time."""

    cpus: Mapping[int, _Cpu]

    @classmethod
    def of(cls, switches: Events | None) -> Runners:
        if switches is None:
            return cls({})
        found = {}
        for cpu in np.unique(switches.cpu):
            own = switches.cpu == cpu
            found[int(cpu)] = _Cpu(
                switches.time_ns[own],
                switches.fields["prev_pid"][own],
                switches.fields["next_pid"][own],
            )
        return cls(found)

    def during(self, start_ns: Nanoseconds, end_ns: Nanoseconds, cpu: NDArray[np.int32]) -> Waits:
        """Return waits for CPUs, cut wherever another thread was seen to take the CPU."""
        rows = np.arange(len(start_ns))
        parts = []
        for number in np.unique(cpu):
            own = rows[cpu == number]
            switches = self.cpus.get(int(number))
            if switches is None:
                nobody = np.full(len(own), -1)
                parts.append(Waits(own, start_ns[own], end_ns[own], nobody, nobody))
            else:
                parts.append(_during(switches, own, start_ns[own], end_ns[own]))
        if not parts:
            return Waits(rows, start_ns, end_ns, rows, rows)
        return Waits(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("row", "start_ns", "end_ns", "first", "then")
            )
        )


def _during(cpu: _Cpu, rows: _Rows, start_ns: Nanoseconds, end_ns: Nanoseconds) -> Waits:
    after = np.searchsorted(cpu.time_ns, start_ns, "right")
    before = np.searchsorted(cpu.time_ns, end_ns, "left")
    counts = np.maximum(before - after, 0) + 1
    # The switch at the start of each part, and whether it is the first of its wait.
    at = ranges(after - 1, counts)
    wait = np.repeat(np.arange(len(rows)), counts)
    is_first = np.concatenate(([True], wait[1:] != wait[:-1]))
    is_last = np.append(is_first[1:], True)
    last = len(cpu.time_ns) - 1
    begins, ends = np.maximum(at, 0), np.minimum(at + 1, last)
    start = np.where(is_first, start_ns[wait], cpu.time_ns[begins])
    end = np.where(is_last, end_ns[wait], cpu.time_ns[ends])
    came = np.where(at >= 0, cpu.came[begins], -1)
    left = np.where(at < last, cpu.left[ends], came)
    # A switch long before the wait shows who ran at its start only if the next one agrees.
    is_near = (at >= 0) & (cpu.time_ns[begins] >= start)
    # And one after the wait shows nothing about it if others ran in between.
    is_in = (at < last) & (cpu.time_ns[ends] <= end)
    agreed = came == left
    first = np.where(agreed | is_near, came, np.where(is_in, left, -1))
    then = np.where(agreed | ~is_in, first, left)
    return Waits(rows[wait], start, end, first, then)


_VCPU = re.compile(r"CPU \d+/(KVM|TCG)")
"""Names that QEMU gives its vCPUs' threads (kvm_start_vcpu_thread in accel/kvm/kvm-accel-ops.c)."""
_NO_REASON = 0xFFFFFFFF
_VMX_REASON = 0xFFFF  # above it: flags such as FAILED_VMENTRY

_Keys = NDArray[np.int64]


class _What(IntEnum):
    """Name a thread's events, in the order in which those of the same time happen."""

    BEGIN = 0
    """Begin of the trace: nothing is known yet."""
    EXITED = 1
    TO_QEMU = 2
    PREEMPTED = 3
    SLEPT = 4
    ENDED = 5
    BORN = 6
    WOKEN = 7
    MOVED = 8
    """Moved to another CPU's run queue, where it still waits."""
    IN = 9
    ENTERED = 10


_KVM = (_What.EXITED, _What.TO_QEMU, _What.ENTERED)
_WAITS = (_What.PREEMPTED, _What.WOKEN, _What.MOVED)
_ON = (_What.IN, *_KVM)
"""Events after which a thread is on a CPU."""
_LEAVES = (_What.PREEMPTED, _What.SLEPT, _What.ENDED, *_KVM)
"""Events before which it was on a CPU."""


class _Says(IntEnum):
    """Name the meaning of a detail's number, stored in the bits above two numbers of 32 and 24
    bits."""

    EXIT = 1
    ASLEEP = 2
    ENDED = 3
    RUNNERS = 4


@dataclass(frozen=True, slots=True)
class _Moments:
    """Hold the events of a lane's threads in order. `number`: the exit's reason, or why QEMU got
    it; 1 for an end without an exit."""

    time_ns: Nanoseconds
    what: NDArray[np.int8]
    cpu: NDArray[np.int32]
    number: _Keys

    def __len__(self) -> int:
        return len(self.time_ns)

    def take(self, chosen: Flags | NDArray[np.int64]) -> _Moments:
        return _Moments(
            self.time_ns[chosen], self.what[chosen], self.cpu[chosen], self.number[chosen]
        )

    def has(self, *what: _What) -> bool:
        return bool(among(self.what, what).any())


ASLEEP = ", asleep"
"""End of an exit's detail while the vCPU's thread sleeps in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSide:
    """Hold the common data of one trace's lanes. `isa`: of the exits' reasons, 0 if unknown.
    `window_ns`: the part to show."""

    trace: Trace
    names: Mapping[int, str]
    runners: Runners
    holes: Holes
    holes_of: Mapping[int, Holes]
    isa: int
    window_ns: tuple[int, int]

    @classmethod
    def of(
        cls, trace: Trace, names: Mapping[int, str], window_ns: tuple[int, int] | None = None
    ) -> HostSide:
        """Make the host's side. `names`: of threads that labctl knows better than the trace.
        Without a window the whole trace is shown."""
        exits = trace.events.get(EXIT)
        isa = exits.fields.get("isa") if exits is not None else None
        return cls(
            trace=trace,
            names={**trace.names, **names},
            runners=Runners.of(trace.events.get(SWITCH)),
            holes=Holes.of(trace.gaps),
            holes_of={cpu: Holes.of(trace.gaps, cpu) for cpu in {gap.cpu for gap in trace.gaps}},
            isa=int(isa[0]) if isa is not None and len(isa) else 0,
            window_ns=window_ns or (trace.start_ns, trace.end_ns),
        )

    @property
    def has_exits(self) -> bool:
        """Return whether KVM reported entries and exits: under emulation there are none, and
        software-only KVM reports only those that go on to QEMU."""
        return any(len(self.trace.events.get(name, ())) for name in (ENTRY, EXIT))

    def name(self, tid: int) -> str:
        """Name a thread; a vCPU of another guest is marked, because its name looks like this
        guest's."""
        if tid == 0:
            return "idle CPU"
        name = self.names.get(tid, f"thread {tid}")
        return f"another guest's {name}" if _VCPU.fullmatch(name) else name

    def vcpu_lane(self, tids: Sequence[int], vcpu: int) -> tuple[Lane, int]:
        """Draw the lane of the thread of a vCPU, or its threads one after the other; and count the
        contradictions between its events.

        If KVM traces its entries and exits: GUEST, EXIT (in the kernel or in QEMU, on a CPU or
        asleep for another reason than the guest's halt), PREEMPTED, HALTED. Otherwise GUEST for all
        its time on a CPU, and HALTED for all its sleep.
        """
        moments = self._moments(tids)
        if not moments.has(_What.EXITED, _What.ENTERED):  # software-only KVM traces only TO_QEMU
            moments = moments.take(moments.what != _What.TO_QEMU)
        return self._lane(moments, f"vCPU {vcpu}", vcpu, State.GUEST, State.HALTED)

    def thread_lane(self, tid: int, title: str) -> Lane | None:
        """Draw the lane of another thread of QEMU's: HOST on a CPU, PREEMPTED, or IDLE. None
        without events."""
        moments = self._moments([tid])
        moments = moments.take(~among(moments.what, _KVM))
        if len(moments) < 2:
            return None
        return self._lane(moments, title, -1, State.HOST, State.IDLE)[0]

    def _moments(self, tids: Sequence[int]) -> _Moments:
        events = self.trace.events
        begin = np.array([self.trace.start_ns])
        parts = [_part(begin, _What.BEGIN, np.array([-1]))]
        for name, what, field in (
            (EXIT, _What.EXITED, "exit_reason"),
            (TO_QEMU, _What.TO_QEMU, "reason"),
            (ENTRY, _What.ENTERED, ""),
        ):
            if name in events:
                found = events[name]
                own = np.isin(found.tid, tids)
                number = np.zeros(int(own.sum()), dtype=np.int64)
                if field in found.fields:
                    mask = _VMX_REASON if name == EXIT and self.isa == VMX else _NO_REASON
                    number = found.fields[field][own].astype(np.int64) & mask
                parts.append(_part(found.time_ns[own], what, found.cpu[own], number))
        if SWITCH in events:
            found = events[SWITCH]
            out = np.isin(found.fields["prev_pid"], tids)
            state = found.fields["prev_state"][out] & STOPPED
            why = np.where(state & ENDED, _What.ENDED, _What.SLEPT)
            why = np.where(state == 0, _What.PREEMPTED, why)
            is_untold = found.fields["prev_state"][out] == UNTOLD
            parts.append(_part(found.time_ns[out], why, found.cpu[out], is_untold))
        for name in WAKEUPS:
            if name in events:
                found = events[name]
                own = np.isin(found.fields["pid"], tids)
                cpu = found.fields.get("target_cpu", found.cpu)[own]
                if name == WAKEUP_NEW:
                    parts.append(_part(found.time_ns[own], _What.BORN, cpu))
                parts.append(_part(found.time_ns[own], _What.WOKEN, cpu))
        if MIGRATE in events:
            found = events[MIGRATE]
            own = np.isin(found.fields["pid"], tids)
            parts.append(_part(found.time_ns[own], _What.MOVED, found.fields["dest_cpu"][own]))
        if SWITCH in events:
            found = events[SWITCH]
            into = np.isin(found.fields["next_pid"], tids)
            parts.append(_part(found.time_ns[into], _What.IN, found.cpu[into]))
        return _in_order(parts)

    def _lane(
        self, moments: _Moments, title: str, vcpu: int, on_cpu: State, asleep: State
    ) -> tuple[Lane, int]:
        start, what = moments.time_ns, moments.what
        then = np.append(what[1:], np.int8(-1))
        last = max(self.trace.end_ns, int(start[-1]))
        end = np.append(start[1:], last)
        denied = _denied(moments, then)
        if WAKEUP in self.trace.events:
            # A thread that comes without a wake-up was woken at an unknown time.
            denied |= (what == _What.SLEPT) & (then == _What.IN)
        until, again = self._known(moments, end)
        until, again = np.where(denied, start, until), np.where(denied, end, again)
        is_told = moments.has(_What.EXITED, _What.ENTERED)
        after = _after(moments, until < end, self.isa, is_told, on_cpu, asleep)
        before = _before(then, is_told, on_cpu, asleep)
        waits = among(what, _WAITS)
        nothing = np.zeros(len(start), dtype=np.int64)
        unknown = np.full(len(start), NUMBER_OF[State.UNKNOWN])
        spans = stacked(
            [
                LaneSpans(start[~waits], until[~waits], after[0][~waits], after[1][~waits]),
                self._waiting(moments, until, waits),
                LaneSpans(until, again, unknown, nothing),
                LaneSpans(again, end, before, nothing),
            ]
        )
        spans = spans.within(*self.window_ns)
        return spans.lane(title, "host", vcpu, self._text), int(denied.sum())

    def _known(self, moments: _Moments, end: Nanoseconds) -> tuple[Nanoseconds, Nanoseconds]:
        """Return until when each span is known, and from when on no more events are lost.

        A running thread's CPU records its events; a sleeping or waiting thread may run anywhere.
        """
        start = moments.time_ns
        until, again = self.holes.of_spans(start, end)
        runs = among(moments.what, _ON)
        until = np.where(runs, end, until)
        for cpu, holes in self.holes_of.items():
            own = runs & (moments.cpu == cpu)
            until[own] = holes.of_spans(start[own], end[own])[0]
        again = np.where(until < end, again, end)
        begins = moments.what == _What.BEGIN
        # Recording began there, so everything is known from then on, or from the end of a loss.
        again = np.where(begins & (until == end), start, again)
        return np.where(begins, start, until), again

    def _waiting(self, moments: _Moments, until: Nanoseconds, waits: Flags) -> LaneSpans:
        chosen = waits & (until > moments.time_ns)
        found = self.runners.during(moments.time_ns[chosen], until[chosen], moments.cpu[chosen])
        is_known = found.first >= 0
        key = np.where(is_known, _key(_Says.RUNNERS, found.first, found.then), 0)
        state = np.full(len(key), NUMBER_OF[State.PREEMPTED])
        return LaneSpans(found.start_ns, found.end_ns, state, key)

    def _text(self, key: int) -> str:
        says, first, then = key >> 56, key >> 24 & 0xFFFFFFFF, key & 0xFFFFFF
        if says == _Says.ENDED:
            return "the thread ended"
        if says == _Says.RUNNERS:
            names = self.name(first), self.name(then)
            return names[0] if names[0] == names[1] else f"{names[0]}, then {names[1]}"
        text = "unknown exit" if first == _NO_REASON else exit_name(self.isa, first)
        if then:
            text += f", in QEMU ({qemu_exit_name(then - 1)})"
        return text + ASLEEP if says == _Says.ASLEEP else text


def _part(time_ns: Nanoseconds, what: object, cpu: object, number: object = 0) -> _Moments:
    count = len(time_ns)
    return _Moments(
        time_ns,
        np.broadcast_to(np.asarray(what, dtype=np.int8), count),
        np.asarray(cpu, dtype=np.int32),
        np.broadcast_to(np.asarray(number, dtype=np.int64), count),
    )


def _in_order(parts: Sequence[_Moments]) -> _Moments:
    joined = _Moments(
        np.concatenate([part.time_ns for part in parts]),
        np.concatenate([part.what for part in parts]),
        np.concatenate([part.cpu for part in parts]),
        np.concatenate([part.number for part in parts]),
    )
    moments = joined.take(np.lexsort((joined.what, joined.time_ns)))
    # Wake-ups of running or runnable threads interrupt their going to sleep, or come twice. A woken
    # thread may be moved before it is queued.
    woken, moved = moments.what == _What.WOKEN, moments.what == _What.MOVED
    before = _last(~woken & ~moved)
    count = np.cumsum(woken)
    asleep = (_What.SLEPT, _What.ENDED, _What.BEGIN, _What.BORN)
    wakes = among(moments.what[before], asleep)
    moments = moments.take(~woken | (wakes & (count == count[before] + 1)))
    # A thread moved then was not waiting.
    moved = moments.what == _What.MOVED
    waits = among(moments.what[_last(~moved)], (_What.PREEMPTED, _What.WOKEN))
    return moments.take(~moved | waits)


def _last(such: Flags) -> NDArray[np.int64]:
    """Return for each row the last matching one up to it."""
    found: NDArray[np.int64] = np.maximum.accumulate(np.where(such, np.arange(len(such)), -1))
    return found


def _denied(moments: _Moments, then: NDArray[np.int8]) -> Flags:
    """Return which rows contradict the next event: one in between is missing, and was not
    counted."""
    runs, leaves = among(moments.what, _ON), among(then, _LEAVES)
    elsewhere = np.append(moments.cpu[1:] != moments.cpu[:-1], False)
    waits = among(moments.what, _WAITS)
    denied: Flags = (
        (runs & ((then == _What.IN) | (leaves & elsewhere)))
        | (waits & ~(among(then, (_What.IN, _What.MOVED)) | (then < 0)))
        | ((moments.what == _What.SLEPT) & leaves)
    )
    return denied


def _after(
    moments: _Moments, broken: Flags, isa: int, is_told: bool, on_cpu: State, asleep: State
) -> tuple[NDArray[np.int8], _Keys]:
    """Return the thread's state after each event, and its detail."""
    what = moments.what
    state = np.full(len(moments), NUMBER_OF[State.UNKNOWN])
    key = np.zeros(len(moments), dtype=np.int64)
    runs, sleeps = among(what, _ON), what == _What.SLEPT
    state[sleeps] = NUMBER_OF[asleep]
    key[(what == _What.ENDED) & (moments.number == 0)] = _key(_Says.ENDED, 0, 0)
    if not is_told:
        state[runs] = NUMBER_OF[on_cpu]
        return state, key
    # KVM's latest event on the thread's state, unless something in between is unknown.
    rows = np.arange(len(moments))
    word = np.maximum.accumulate(np.where(among(what, _KVM), rows, -1))
    lost = np.concatenate(([0], np.cumsum(broken)))
    holds = (word >= 0) & (lost[rows] == lost[np.maximum(word, 0)])
    is_guest = holds & (what[word] == _What.ENTERED)
    is_exit = holds & ~is_guest
    exited = np.maximum.accumulate(np.where(what == _What.EXITED, rows, -1))
    known = is_exit & (exited >= 0) & (lost[rows] == lost[np.maximum(exited, 0)])
    reason = np.where(known, moments.number[exited], _NO_REASON)
    to_qemu = np.where(what[word] == _What.TO_QEMU, moments.number[word] + 1, 0)
    state[runs & is_guest] = NUMBER_OF[on_cpu]
    state[runs & is_exit] = NUMBER_OF[State.EXIT]
    busy = sleeps & known & ~np.isin(reason, HALTS.get(isa, ()))
    state[busy] = NUMBER_OF[State.EXIT]
    told = runs & is_exit & (known | (to_qemu > 0))
    key[told] = _key(_Says.EXIT, reason, to_qemu)[told]
    key[busy] = _key(_Says.ASLEEP, reason, to_qemu)[busy]
    return state, key


def _before(
    then: NDArray[np.int8], is_told: bool, on_cpu: State, asleep: State
) -> NDArray[np.int8]:
    """Return the thread's state before each next event, whatever came earlier."""
    state = np.full(len(then), NUMBER_OF[State.UNKNOWN])
    state[then == _What.WOKEN] = NUMBER_OF[asleep]
    if is_told:
        state[then == _What.EXITED] = NUMBER_OF[on_cpu]
        state[among(then, (_What.ENTERED, _What.TO_QEMU))] = NUMBER_OF[State.EXIT]
    else:
        state[among(then, _LEAVES)] = NUMBER_OF[on_cpu]
    return state


def _key(says: _Says, first: object, then: object) -> _Keys:
    keys: _Keys = (
        np.int64(says) << 56
        | np.asarray(first, dtype=np.int64) << 24
        | np.asarray(then, dtype=np.int64)
    )
    return keys


# Show which task each CPU of a machine ran, from its own scheduler's events. Pure.


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

    UNKNOWN where events were lost, and where the task that leaves is not the one that came, because
    switches in between were not recorded. `mapped`: function for the trace's times. `window_ns`:
    the part to show, by the time line's clock.
    """
    switches = trace.events[SWITCH]
    own = switches.cpu == cpu
    time = switches.time_ns[own]
    left, came = switches.fields["prev_pid"][own], switches.fields["next_pid"][own]
    # Before the first switch and after the last one: the task that leaves, and the one that came.
    start = np.concatenate(([trace.start_ns], time))
    end = np.append(time, max(trace.end_ns, int(time[-1])))
    ran = np.concatenate((left[:1], came)).astype(np.int64)
    leaves = np.concatenate((left, came[-1:])).astype(np.int64)
    until, again = Holes.of(trace.gaps, cpu).of_spans(start, end)
    broken = until < end
    lost = ~broken & (ran != leaves)
    # Before the first switch no task was seen coming; a loss there leaves only the one that leaves.
    until[0] = start[0] if broken[0] else end[0]
    until = np.where(lost, start, until)
    again = np.where(lost, end, again)
    # The state after a loss that no switch follows is unknown.
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
