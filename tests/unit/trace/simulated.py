"""A machine's scheduler played by dice: what really happened, and a perf.data that tells of it."""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from labctl.trace.model import FORK, MIGRATE, SWITCH, WAKEUP, WAKEUP_NEW, WAKING
from tests.unit.trace.perfdata_writer import FLAGS, Event, lost, perfdata, record, switched

ABSENT, RUNS, WAITS, SLEEPS = range(4)
SLEEPING, DEAD = 1, 0x10
_FIELDS = {
    SWITCH: ("prev_pid", "prev_state", "next_pid"),
    WAKEUP: ("pid", "target_cpu"),
    WAKEUP_NEW: ("pid", "target_cpu"),
    WAKING: ("pid", "target_cpu"),
    MIGRATE: ("pid", "orig_cpu", "dest_cpu"),
    FORK: ("parent_pid", "child_pid"),
}
_NUMBERS = {name: 300 + index for index, name in enumerate(_FIELDS)}
_EVENTS: list[Event] = [
    (
        name.partition(":")[2],
        _NUMBERS[name],
        "".join(
            f"\tfield:int {field};\toffset:{8 + 4 * at};\tsize:4;\tsigned:1;\n"
            for at, field in enumerate(fields)
        ),
        (_NUMBERS[name],),
    )
    for name, fields in _FIELDS.items()
]
_NEAR_NS = 4
"""Two things that a CPU or a thread does are at least so far apart."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a CPU wrote into its buffer; `by`: the thread that ran there."""

    time_ns: int
    cpu: int
    by: int
    data: bytes


@dataclass(slots=True)
class Machine:
    """`truth`: by thread what it did from when on, and on which CPU's account."""

    dice: random.Random
    cpus: int
    now: int = 1000
    running: list[int] = field(default_factory=list)
    queues: list[list[int]] = field(default_factory=list)
    asleep: dict[int, int] = field(default_factory=dict)
    truth: dict[int, list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    ran: list[list[tuple[int, int]]] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    newest: int = 100
    moves: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _busy: dict[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def started(cls, seed: int, *, cpus: int = 3, threads: int = 6) -> Machine:
        """Some threads run, and the others sleep."""
        made = cls(random.Random(seed), cpus, queues=[[] for _ in range(cpus)])
        for number in range(threads):
            tid = made.newest = made.newest + 1
            if number < cpus - 1:
                made.running.append(tid)
                made._does(tid, RUNS, number)
            else:
                made.asleep[tid] = made.dice.randrange(cpus)
                made._does(tid, SLEEPS, made.asleep[tid])
        made.running.append(0)
        made.ran = [[(made.now, tid)] for tid in made.running]
        return made

    def play(self, steps: int) -> None:
        acts = (self._switch, self._switch, self._wake, self._wake, self._move, self._fork)
        for _ in range(steps):
            self.dice.choice(acts)()

    def _at(self, *things: tuple[str, int]) -> int:
        """A moment at which these are free: often one that others share."""
        if self.dice.random() < 0.7:
            self.now += self.dice.randrange(60)
        self.now = max([self.now, *(self._busy.get(thing, 0) for thing in things)])
        for thing in things:
            self._busy[thing] = self.now + _NEAR_NS
        return self.now

    def _does(self, tid: int, what: int, cpu: int) -> None:
        self.truth[tid].append((self.now, what, cpu))

    def _tell(self, name: str, cpu: int, *values: int, late_ns: int = 0) -> None:
        time_ns, by = self.now + late_ns, self.running[cpu]
        self.told.append(Told(time_ns, cpu, by, event_sample(name, time_ns, cpu, by, values)))

    def _switch(self) -> None:
        cpu = self.dice.randrange(self.cpus)
        left, queue = self.running[cpu], self.queues[cpu]
        came = queue.pop(self.dice.randrange(len(queue))) if queue else 0
        if left == came == 0:
            return
        self._at(("cpu", cpu), ("thread", left), ("thread", came))
        state = self.dice.choice((0, 0x100, SLEEPING, SLEEPING, SLEEPING))
        if left and self.dice.random() < 0.05:
            state = DEAD
        state = state if left else 0
        self._tell(SWITCH, cpu, left, state, came)
        is_runnable = not state & 0xFF
        record = switched(
            own=left, other=came, time=self.now + 1, cpu=cpu, is_out=True, runnable=is_runnable
        )
        self.told.append(Told(self.now + 1, cpu, left, record))
        record = switched(own=came, other=left, time=self.now + 2, cpu=cpu)
        self.told.append(Told(self.now + 2, cpu, came, record))
        self.running[cpu] = came
        self.ran[cpu].append((self.now, came))
        if left:
            self._does(left, WAITS if is_runnable else ABSENT if state == DEAD else SLEEPS, cpu)
        if left and is_runnable:
            queue.append(left)
        elif left and state != DEAD:
            self.asleep[left] = cpu
        if came:
            self._does(came, RUNS, cpu)

    def _wake(self) -> None:
        if not self.asleep:
            return
        tid = self.dice.choice(sorted(self.asleep))
        waker, cpu = self.dice.randrange(self.cpus), self.dice.randrange(self.cpus)
        self._at(("cpu", waker), ("cpu", cpu), ("thread", tid))
        self._tell(WAKING, waker, tid, self.asleep[tid])
        if self.asleep.pop(tid) != cpu:
            self._tell(MIGRATE, waker, tid, 0, cpu)
            self.moves[tid] += 1
        # The other CPU may be the one that queues it.
        self._tell(WAKEUP, self.dice.choice((waker, cpu)), tid, cpu, late_ns=1)
        self.truth[tid].append((self.now + 1, WAITS, cpu))
        self.queues[cpu].append(tid)

    def _move(self) -> None:
        cpu, to, by = (self.dice.randrange(self.cpus) for _ in range(3))
        if cpu == to or not self.queues[cpu]:
            return
        tid = self.dice.choice(self.queues[cpu])
        self._at(("cpu", by), ("thread", tid))
        self.queues[cpu].remove(tid)
        self.queues[to].append(tid)
        self._tell(MIGRATE, by, tid, cpu, to)
        self.moves[tid] += 1
        self._does(tid, WAITS, to)

    def _fork(self) -> None:
        cpu = self.dice.randrange(self.cpus)
        if not self.running[cpu] or self.dice.random() < 0.7:
            return
        self.newest += 1
        self._at(("cpu", cpu), ("thread", self.newest))
        self._tell(FORK, cpu, self.running[cpu], self.newest)
        self._tell(WAKEUP_NEW, cpu, self.newest, cpu)
        self.queues[cpu].append(self.newest)
        self._does(self.newest, WAITS, cpu)

    def file(self, *, silent: Collection[int] = (), losing: bool = False) -> bytes:
        """perf.data of it. `silent`: threads of which the kernel tells nothing. `losing`: a few
        times a CPU's buffer was full."""
        records = []
        for cpu in range(self.cpus):
            own = [one for one in self.told if one.cpu == cpu and one.by not in silent]
            own.sort(key=lambda one: one.time_ns)
            at = 0
            while at < len(own):
                missing = self.dice.randrange(1, 8)
                if losing and self.dice.random() < 0.02 and 0 < at < len(own) - missing:
                    at += missing
                    records.append(lost(cpu, missing, time=own[at - 1].time_ns))
                else:
                    records.append(own[at].data)
                    at += 1
        return sched_perfdata(records)

    def raster(self, tid: int, start_ns: int, end_ns: int) -> np.ndarray:
        """What the thread does in each nanosecond."""
        found = np.full(end_ns - start_ns, ABSENT)
        for at_ns, what, _ in self.truth[tid]:
            found[max(0, at_ns - start_ns) :] = what
        return found

    def waits(self, tid: int, end_ns: int) -> list[tuple[int, int]]:
        """Beginnings and lengths of its waits that ended by then."""
        found, since = [], None
        for at_ns, what, _ in self.truth[tid]:
            if what == WAITS and since is None:
                since = at_ns
            elif what != WAITS and since is not None:
                if at_ns <= end_ns:
                    found.append((since, at_ns - since))
                since = None
        return found

    def preemptors(self, tid: int, end_ns: int) -> dict[int, int]:
        """Who ran on the CPU of its queue while it waited, in waits that ended by then."""
        found: dict[int, int] = defaultdict(int)
        for start_ns, length_ns in self.waits(tid, end_ns):
            places = [(at, cpu) for at, what, cpu in self.truth[tid] if what == WAITS]
            for moment in range(start_ns, start_ns + length_ns):
                cpu = [cpu for at, cpu in places if at <= moment][-1]
                who = [who for at, who in self.ran[cpu] if at <= moment][-1]
                found[who] += 1
        return dict(found)


def sched_perfdata(records: list[bytes]) -> bytes:
    """perf.data of samples of scheduler events, and of perf's own records of switches."""
    return perfdata(records, system="sched", events=_EVENTS, flags=FLAGS | 1 << 26)


def event_sample(name: str, time_ns: int, cpu: int, by: int, values: tuple[int, ...]) -> bytes:
    number = _NUMBERS[name]
    raw = struct.pack("<HBBi", number, 0, 0, by) + struct.pack(f"<{len(values)}i", *values)
    raw += bytes(-(4 + len(raw)) % 8)
    head = struct.pack("<QQiiQIIQ", number, 0xFF, by, by, time_ns, cpu, 0, 1)
    return record(9, head + struct.pack("<I", len(raw)) + raw, misc=1)
