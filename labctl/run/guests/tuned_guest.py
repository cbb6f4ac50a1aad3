"""Provide a clone of the saved guest with a tuning in force: one of many that do the same work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from labctl.base.channel import Channel
from labctl.base.cpus import format_cpus
from labctl.base.errors import BrokenError
from labctl.domain.asked import EMULATOR, VCPU
from labctl.domain.render import guest_data_paths
from labctl.run.guests import guest_side
from labctl.run.guests.clone_state import check_place
from labctl.run.guests.clones import Clone, CloneRoom
from labctl.run.guests.guest_bench import handicapped
from labctl.run.guests.lab import Pins


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
        """Return where its threads run, in words: "vCPU 0: CPU 1, emulator: CPU 0"."""
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
    """Hold the guests of a room with its tuning in force, of which more are made and the last ones
    ended."""

    room: CloneRoom
    guests: list[TunedGuest] = field(default_factory=list)
    _ends: list[ExitStack] = field(default_factory=list)

    def add(self, pins: Pins) -> TunedGuest:
        """Add one more. Raises HostError where the host has no memory left for it, BrokenError
        where it isn't as its tuning asks."""
        tuning, lab = self.room.tuning, self.room.lab
        with ExitStack() as stack:
            clone = self.room.add(pins)
            stack.callback(self.room.remove_last)
            data_paths = guest_data_paths(tuning.disk, lab.data.count)
            inside = guest_side.set_up(clone.channel, tuning.guest, data_paths)
            if inside.problems:
                raise BrokenError("; ".join(inside.problems))
            stack.enter_context(handicapped(clone.pid, tuning.handicap_percent))
            guest = TunedGuest(len(self.guests) + 1, clone, data_paths)
            self.guests.append(guest)
            self._ends.append(stack.pop_all())
        return guest

    def check_places(self) -> None:
        """Raise BrokenError where a guest's threads are no longer what they were asked to be."""
        for guest in self.guests:
            clone = guest.clone
            check_place(self.room.lab.layout, clone.running, clone.threads)

    def remove_last(self) -> None:
        """End the one that came last."""
        self.guests.pop()
        self._ends.pop().close()

    def close(self) -> None:
        """End all of them."""
        while self.guests:
            self.remove_last()


@contextmanager
def tuned_guests(room: CloneRoom) -> Iterator[TunedGuests]:
    """Provide the room's guests, none at first; those that are there at the end are ended."""
    found = TunedGuests(room)
    try:
        yield found
    finally:
        found.close()
