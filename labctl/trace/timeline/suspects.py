"""Find moments in which two schedulers interfered. Pure.

Each describes only what was seen: a lock is in no trace, nor is what a task would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from labctl.trace.exit_names import SPINS
from labctl.trace.model import EXIT, WAKEUPS, Nanoseconds
from labctl.trace.timeline.host_lanes import ASLEEP, HostSide
from labctl.trace.timeline.lanes import Flags, Lane, State, Suspect, in_states, meter, overlaps

DOUBLE = "double scheduling", "double_scheduling"
BLOCKED = "blocked vCPU", "blocked_vcpu"
LOCK_HOLDER = "lock holder preempted", "lock_holder"
CHAIN = "wake-up chain", "wake_up_chain"
"""Names of suspects and of their figures."""

DOUBLE_NS = 1_000_000
BLOCKED_NS = 1_000_000
CHAIN_NS = 1_000_000
"""Shortest reported time."""
MOST = 2_000
"""Limit on each kind: the longest ones."""

_Rows = NDArray[np.int64]
_Text = Callable[[int, int, int, str, int], str]
"""Function from a vCPU, start, end, the task on it, and further evidence to a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Hold the longest suspects of a kind, in order of time; how many there were, and their
    time."""

    kind: str
    name: str
    """Name in figures."""
    kept: tuple[Suspect, ...]
    count: int
    total_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Hold lanes by vCPU on the host and in the guest, and a bound on the guest's error. `threads`:
    each vCPU's on the host."""

    host: HostSide
    hosts: Mapping[int, Lane]
    guests: Mapping[int, Lane]
    threads: Mapping[int, Sequence[int]]
    error_ns: int

    @property
    def both(self) -> list[int]:
        return sorted(self.hosts.keys() & self.guests.keys())


@dataclass(frozen=True, slots=True)
class _Seen:
    """Candidates on one vCPU, as columns. `task`: spans of the guest's lane. `more`: further data
    for their sentence."""

    vcpu: int
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    task: _Rows
    more: _Rows

    def take(self, chosen: Flags | _Rows) -> _Seen:
        return _Seen(
            self.vcpu,
            self.start_ns[chosen],
            self.end_ns[chosen],
            self.task[chosen],
            self.more[chosen],
        )


def double_scheduling(sides: Sides) -> Found:
    """Find steal in the guest: its CPU runs a task for 1 ms or more while that vCPU waits for a CPU
    itself, so the task does not run, and the guest does not know. Times within the clocks' error
    are left out."""
    least = max(DOUBLE_NS, sides.error_ns)
    seen = [_waiting_with_task(sides, vcpu) for vcpu in sides.both]
    long = [one.take(one.end_ns - one.start_ns >= least) for one in seen]

    def text(vcpu: int, start: int, end: int, task: str, _: int) -> str:
        behind = _behind(sides.hosts[vcpu], start, end)
        return (
            f"the guest runs '{task}', but vCPU {vcpu} waits {_ms(end - start)} for a CPU{behind}"
        )

    return _found(DOUBLE, sides, long, text)


def blocked_vcpus(sides: Sides) -> Found:
    """Find vCPUs that sleep for 1 ms or more with a task on them: for QEMU's lock, its memory, a
    disk, or a spinlock of the guest's (kvm_wait() in arch/x86/kernel/kvm.c). Times within the
    clocks' error are left out.

    The waker is named, and its own wait for a CPU meanwhile: a real-time vCPU that waits for an
    ordinary thread waits for all that this thread waits behind (priority inversion).
    """
    least = max(BLOCKED_NS, sides.error_ns)
    seen = []
    for vcpu in sides.both:
        start, end = _sleeps(sides.hosts[vcpu])
        one = _with_task(sides, vcpu, start, end)
        seen.append(one.take(one.end_ns - one.start_ns >= least))
    lanes: dict[int, Lane | None] = {}

    def text(vcpu: int, start: int, end: int, task: str, _: int) -> str:
        begins = f"the guest runs '{task}', but vCPU {vcpu} sleeps {_ms(end - start)} in the host"
        waker = _waker(sides, vcpu, end)
        if not waker:
            return begins
        if waker not in lanes:
            lanes[waker] = sides.host.thread_lane(waker, "")
        lane = lanes[waker]
        waited = 0
        if lane is not None:
            wait = meter(lane, State.PREEMPTED).between(np.array([start]), np.array([end]))
            waited = int(wait[0])
        its = f", which waits {_ms(waited)} of it for a CPU" if waited else ""
        behind = _behind(lane, start, end) if lane is not None and waited else ""
        return f"{begins}, until it is woken by '{sides.host.name(waker)}'{its}{behind}"

    return _found(BLOCKED, sides, seen, text)


def lock_holders(sides: Sides) -> Found:
    """Find lock-holder preemption: a vCPU with a task waits while other vCPUs exit for PAUSE.
    Whether they spin for a lock of that task is in no trace."""
    exits = sides.host.trace.events.get(EXIT)
    seen = []
    if exits is not None and "exit_reason" in exits.fields:
        spins = np.isin(exits.fields["exit_reason"], SPINS.get(sides.host.isa, ()))
        time, tid = exits.time_ns[spins], exits.tid[spins]
        for vcpu in sides.both:
            peers = [tid for other, tids in sides.threads.items() if other != vcpu for tid in tids]
            others = time[np.isin(tid, peers)]
            one = _waiting_with_task(sides, vcpu)
            spun = np.searchsorted(others, one.end_ns) - np.searchsorted(others, one.start_ns)
            seen.append(replace(one, more=spun).take(spun > 0))

    def text(vcpu: int, start: int, end: int, task: str, spun: int) -> str:
        behind = _behind(sides.hosts[vcpu], start, end)
        return (
            f"vCPU {vcpu} waits {_ms(end - start)} for a CPU{behind} with '{task}' on it, while "
            f"other vCPUs exit {spun} times for spinning"
        )

    return _found(LOCK_HOLDER, sides, seen, text)


def wake_up_chains(sides: Sides) -> Found:
    """Find late wake-ups: a halted vCPU is woken, waits for a CPU, runs, and its guest, idle until
    then, switches a task in: 1 ms or more from the wake-up of the one to the switch-in of the
    other. Times within the clocks' error are left out."""
    least = max(CHAIN_NS, sides.error_ns)
    seen = []
    for vcpu in sides.both:
        host, guest = sides.hosts[vcpu], sides.guests[vcpu]
        tasks = np.flatnonzero(in_states(guest, State.TASK))
        if not len(tasks):
            continue
        start, in_ns, first = _waits(host)
        halted = in_states(host, State.HALTED)
        before = np.maximum(first - 1, 0)
        woken = (first > 0) & halted[before] & (host.end_ns[before] == start)
        start, in_ns = start[woken], in_ns[woken]
        halts = np.append(host.start_ns[halted], sides.host.window_ns[1])
        again = halts[np.searchsorted(halts[:-1], in_ns)]
        # The guest cannot switch while its vCPU waits, so a task that came after the wake-up came
        # after the wait.
        place = np.searchsorted(guest.start_ns[tasks], start)
        task = tasks[np.minimum(place, len(tasks) - 1)]
        begun = guest.start_ns[task]
        # A vCPU sleeps with a task on it, too: for QEMU's lock, or for a spinlock of the guest's
        # (kvm_wait() in arch/x86/kernel/kvm.c). Then that task continues.
        was_idle = (task > 0) & in_states(guest, State.IDLE)[task - 1]
        was_idle &= guest.start_ns[task - 1] - start <= sides.error_ns
        fits = was_idle & (place < len(tasks)) & (begun < again) & (begun - start >= least)
        seen.append(_Seen(vcpu, start, begun, task, in_ns).take(fits))

    def text(vcpu: int, start: int, end: int, task: str, ran: int) -> str:
        host = sides.hosts[vcpu]
        by, behind = _by(sides, vcpu, start), _behind(host, start, ran)
        waits = meter(host, State.PREEMPTED)
        again = int(waits.between(np.array([ran]), np.array([end]))[0]) if end > ran else 0
        who = _behind(host, ran, end) if again else ""
        more = f" ({_ms(again)} of them without a CPU again{who})" if again else ""
        return (
            f"vCPU {vcpu}, woken{by}, waits {_ms(ran - start)} for a CPU{behind}; "
            f"{_ms(max(0, end - ran))} later{more} the guest runs '{task}'"
        )

    return _found(CHAIN, sides, seen, text)


def _waits(lane: Lane) -> tuple[Nanoseconds, Nanoseconds, _Rows]:
    """Return waits for a CPU, however often it changed hands meanwhile, and the span at each one's
    start."""
    own = np.flatnonzero(in_states(lane, State.PREEMPTED))
    if not len(own):
        return lane.start_ns[own], lane.end_ns[own], own
    apart = lane.start_ns[own[1:]] != lane.end_ns[own[:-1]]
    first, last = own[np.concatenate(([True], apart))], own[np.append(apart, True)]
    return lane.start_ns[first], lane.end_ns[last], first


def _sleeps(lane: Lane) -> tuple[Nanoseconds, Nanoseconds]:
    """Return sleeps of a vCPU's thread: in the guest's halt, and in other exits."""
    asleep = np.array([detail.endswith(ASLEEP) for detail in lane.details])
    own = in_states(lane, State.HALTED) | (in_states(lane, State.EXIT) & asleep[lane.detail])
    return lane.start_ns[own], lane.end_ns[own]


def _waiting_with_task(sides: Sides, vcpu: int) -> _Seen:
    """Return where a vCPU waits while its guest has a task on it."""
    start, end, _ = _waits(sides.hosts[vcpu])
    return _with_task(sides, vcpu, start, end)


def _with_task(sides: Sides, vcpu: int, start: Nanoseconds, end: Nanoseconds) -> _Seen:
    """Return the parts of these spans in which a vCPU's guest has a task on it."""
    guest = sides.guests[vcpu]
    tasks = np.flatnonzero(in_states(guest, State.TASK))
    wait, task = overlaps(start, end, guest.start_ns[tasks], guest.end_ns[tasks])
    task = tasks[task]
    return _Seen(
        vcpu,
        np.maximum(start[wait], guest.start_ns[task]),
        np.minimum(end[wait], guest.end_ns[task]),
        task,
        np.zeros(len(task), dtype=np.int64),
    )


def _found(
    called: tuple[str, str],
    sides: Sides,
    seen: Sequence[_Seen],
    text: Callable[[int, int, int, str, int], str],
) -> Found:
    kind, name = called
    lengths = [one.end_ns - one.start_ns for one in seen]
    every = np.concatenate([*lengths, np.zeros(0, dtype=np.int64)])
    least = np.sort(every)[-MOST] if len(every) > MOST else 0
    kept = []
    for one, length in zip(seen, lengths, strict=True):
        guest = sides.guests[one.vcpu]
        few = one.take(length >= least)
        columns = (few.start_ns, few.end_ns, few.task, few.more)
        for start, end, task, more in zip(*(column.tolist() for column in columns), strict=True):
            on_it = guest.details[guest.detail[task]]
            sentence = text(one.vcpu, start, end, on_it, more)
            kept.append(
                Suspect(kind=kind, vcpu=one.vcpu, start_ns=start, end_ns=end, text=sentence)
            )
    # Several may be as long as the shortest that is kept.
    kept.sort(key=lambda suspect: suspect.start_ns - suspect.end_ns)
    kept = sorted(kept[:MOST], key=lambda suspect: suspect.start_ns)
    return Found(
        kind=kind, name=name, kept=tuple(kept), count=len(every), total_ns=int(every.sum())
    )


def _behind(lane: Lane, start_ns: int, end_ns: int) -> str:
    """Return the thread that had the CPU for most of a lane's wait in this interval."""
    first = int(np.searchsorted(lane.end_ns, start_ns, "right"))
    after = int(np.searchsorted(lane.start_ns, end_ns, "left"))
    waits = in_states(lane, State.PREEMPTED)
    length: dict[str, int] = {}
    for row in range(first, after):
        if waits[row]:
            name = lane.details[lane.detail[row]]
            shared = min(end_ns, int(lane.end_ns[row])) - max(start_ns, int(lane.start_ns[row]))
            length[name] = length.get(name, 0) + shared
    name = max(length, key=length.__getitem__, default="")
    return f" behind '{name}'" if name else ""


def _by(sides: Sides, vcpu: int, at_ns: int) -> str:
    """Return what woke a vCPU's thread then."""
    waker = _waker(sides, vcpu, at_ns)
    if waker is None:
        return ""
    # The idle task wakes nobody by itself: an interrupt on an idle CPU does.
    return f" by '{sides.host.name(waker)}'" if waker else " by an interrupt"


def _waker(sides: Sides, vcpu: int, at_ns: int) -> int | None:
    """Return the thread that woke a vCPU's then; None if the trace does not say."""
    for name in WAKEUPS:
        events = sides.host.trace.events.get(name)
        if events is not None:
            row = int(np.searchsorted(events.time_ns, at_ns))
            while row < len(events) and events.time_ns[row] == at_ns:
                if events.fields["pid"][row] in sides.threads[vcpu]:
                    return int(events.tid[row])
                row += 1
    return None


def _ms(length_ns: int) -> str:
    return f"{length_ns / 1e6:.3f} ms"
