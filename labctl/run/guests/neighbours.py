"""Run neighbours that are guests of their own: clones of the saved guest, each with a workload.

They are controlled as other neighbours are (`run.trials.beside`): they wait until `start`, and have
an `outcome` after `stop`. Nothing is sent to them in between.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from labctl.base.channel import Channel, Serving
from labctl.base.command import Command
from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import BrokenError
from labctl.base.process import Deadline
from labctl.domain.asked import EMULATOR, VCPU
from labctl.domain.render import guest_data_paths
from labctl.run.guests import tuned
from labctl.run.guests.bench import handicapped
from labctl.run.guests.clones import Clone, CloneRoom, check_place, cpu_ns
from labctl.run.guests.lab import Pins
from labctl.run.planning.conditions import beside_of
from labctl.study.conditions import Neighbour
from labctl.workloads.beside import LEFT, START, Beside, Left, copies_of, left_by

_GRACE_S = 30.0
"""Time for the last runs to end, in guests that share the host's CPUs."""
_ANSWER_S = 60.0
_POLL_S = 0.01
_BUSY_S = 0.05
"""CPU time after which a guest is working, not only preparing."""
_SETTLED_S = 1.0
"""Time after which it counts as working in any case: a program may sleep most of the time."""

_NOTHING = Left(status=-9, seconds=0.0, stdout="", stderr="")


@dataclass
class _Guest:
    """Hold one neighbour, and its programs that wait. Closing `stack` ends the programs."""

    clone: Clone
    serving: Serving
    stack: ExitStack
    begun_ns: int = 0

    def used_ns(self) -> int:
        return cpu_ns(self.clone.running)


@dataclass
class NeighbourGuests:
    """Control guests of one kind beside a trial, each of which runs `count` programs."""

    kind: int
    beside: Beside
    cpus: CpuSet
    count: int
    guests: list[_Guest] = field(default_factory=list)
    outcome: list[dict[str, object]] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        """Return QEMU's process ids."""
        return [guest.clone.pid for guest in self.guests]

    def used(self) -> list[dict[str, object]]:
        """Return the CPU time of QEMU's processes so far, in the form of host.json."""
        total = sum(guest.used_ns() for guest in self.guests)
        name = self.beside.program.name
        return [{"workload": name, "cpus": format_cpus(self.cpus), "cpu_ns": total}]

    def start(self) -> None:
        """Let them go; return when all are busy. Raises BrokenError if one is gone."""
        for guest in self.guests:
            kill = Command(argv=("kill", f"-{START.name[3:]}", str(guest.serving.pids[-1])))
            if guest.clone.channel.run(kill, seconds=_ANSWER_S).returncode != 0:
                raise BrokenError(f"{self._name(guest)} ended before it was started")
            guest.begun_ns = guest.used_ns()
        settled = time.monotonic() + _SETTLED_S
        for guest in self.guests:
            while time.monotonic() < settled and not self._is_busy(guest):
                time.sleep(_POLL_S)

    def stop(self) -> None:
        """End their programs and keep the results. Raises BrokenError if one had ended before."""
        for guest in self.guests:
            self.outcome += self._ended(guest)

    def _name(self, guest: _Guest) -> str:
        return f"the neighbour {self.beside.program.name} in {guest.clone.identity.name}"

    def _is_busy(self, guest: _Guest) -> bool:
        return guest.used_ns() - guest.begun_ns > _BUSY_S * 1e9

    def _ended(self, guest: _Guest) -> list[dict[str, object]]:
        guest.stack.close()
        cpu_s = (guest.used_ns() - guest.begun_ns) / 1e9
        name = self._name(guest)
        if not guest.serving.ended:
            raise BrokenError(f"{name} no longer answers")
        ended = guest.serving.ended[-1]
        if ended.too_early:
            said = ended.output.decode(errors="replace").strip().splitlines()[-1:]
            raise BrokenError(f"{name} ended unexpectedly with {''.join(said)}")
        was_killed = ended.status != 0
        left = [_NOTHING] * self.count if was_killed else self._left(guest, name)
        return [
            {
                "kind": self.kind,
                "workload": self.beside.program.name,
                "guest": guest.clone.to_json(),
                "was_killed": was_killed,
                "status": one.status,
                "seconds": one.seconds,
                # QEMU's time, which the programs of one guest share.
                "cpu_s": cpu_s / self.count,
                "stdout": one.stdout,
                "stderr": one.stderr,
                "files": dict(one.files),
            }
            for one in left
        ]

    def _left(self, guest: _Guest, name: str) -> list[Left]:
        deadline = Deadline.after(_ANSWER_S, f"{name}: its output")
        texts = guest.clone.channel.read([LEFT], deadline)
        return left_by(texts[LEFT], self.count, name)


@contextmanager
def neighbour_guests(
    room: CloneRoom, kind: int, declared: Neighbour, cpus: CpuSet
) -> Iterator[NeighbourGuests]:
    """Provide the guests of a condition's neighbours, whose programs wait: one on each vCPU unless
    a `count` is declared. `kind`: its number among the condition's; `cpus`: those of the guests'
    threads.

    The room ends the guests. Raises HostError if the host has no memory for them all.
    """
    beside = beside_of(declared)
    vcpus = frozenset(range(room.lab.vcpus))
    guests = declared.guests or 1
    count = declared.count or len(vcpus)
    copies = copies_of(
        beside.command(vcpus),
        count,
        beside.stop_signal,
        to_group=not beside.is_repeated,
        grace_s=_GRACE_S,
    )
    found = NeighbourGuests(kind, beside, cpus, count)
    room.check_memory(guests)
    with ExitStack() as stack:
        for _ in range(guests):
            clone = room.add(cpus)
            programs = stack.enter_context(ExitStack())
            servers = (*beside.servers(vcpus), copies)
            serving = programs.enter_context(clone.channel.serving(servers))
            found.guests.append(_Guest(clone, serving, programs))
        yield found


# Provide a clone of the saved guest with a tuning in force: one of many that do the same work.


@dataclass(frozen=True, slots=True)
class TunedGuest:
    """Hold a guest that answers. `number`: from 1."""

    number: int
    clone: Clone
    data_paths: tuple[str, ...]

    @property
    def channel(self) -> Channel:
        return self.clone.channel

    @property
    def cpus(self) -> str:
        """Return the CPUs of its threads, in words: "vCPU 0: CPU 1, emulator: CPU 0"."""
        named = [
            (f"vCPU {thread.index}" if thread.role == VCPU else EMULATOR, thread.cpus)
            for thread in self.clone.threads
            if thread.role in (VCPU, EMULATOR)
        ]
        places = {cpus for _, cpus in named}
        if len(places) == 1:
            return f"CPU {format_cpus(places.pop())}"
        return ", ".join(f"{what}: CPU {format_cpus(cpus)}" for what, cpus in named)


@dataclass
class TunedGuests:
    """Hold the guests of a room with its tuning in force. More can be added, and the newest
    ended."""

    room: CloneRoom
    guests: list[TunedGuest] = field(default_factory=list)
    _ends: list[ExitStack] = field(default_factory=list)

    def add(self, pins: Pins) -> TunedGuest:
        """Add one more. Raises HostError if the host has no memory left for it, BrokenError if it
        does not match its tuning."""
        tuning, lab = self.room.tuning, self.room.lab
        with ExitStack() as stack:
            clone = self.room.add(pins)
            stack.callback(self.room.remove_last)
            data_paths = guest_data_paths(tuning.disk, lab.data.count)
            inside = tuned.set_up(clone.channel, tuning.guest, data_paths)
            if inside.problems:
                raise BrokenError("; ".join(inside.problems))
            stack.enter_context(handicapped(clone.pid, tuning.handicap_percent))
            guest = TunedGuest(len(self.guests) + 1, clone, data_paths)
            self.guests.append(guest)
            self._ends.append(stack.pop_all())
        return guest

    def check_places(self) -> None:
        """Raise BrokenError if a guest's threads are no longer as requested."""
        for guest in self.guests:
            clone = guest.clone
            check_place(self.room.lab.layout, clone.running, clone.threads)

    def remove_last(self) -> None:
        """End the newest one."""
        self.guests.pop()
        self._ends.pop().close()

    def close(self) -> None:
        """End all of them."""
        while self.guests:
            self.remove_last()


@contextmanager
def tuned_guests(room: CloneRoom) -> Iterator[TunedGuests]:
    """Provide the room's guests, none at first; those that exist at the end are ended."""
    found = TunedGuests(room)
    try:
        yield found
    finally:
        found.close()
