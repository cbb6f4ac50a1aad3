"""Restore one saved guest again and again, each time as another guest that runs beside the others.

libvirt restores a guest only under the identity that its save file names, so a copy of that file is
given one clone's name, UUID and MAC after the other's (`domain.save_image`): one copy serves any
number of them, since libvirt returns when QEMU has read it to its end. Each clone has sockets, a
console, overlays of the frozen disks and empty data disks of its own.

Clones are one guest at one moment: the same random numbers would follow, and their timers would
tick at once. So each is resumed at a moment of its own, drawn from a seed, and its kernel's random
numbers begin anew.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from labctl.base.channel import Channel
from labctl.base.cpus import CpuSet
from labctl.base.errors import HostError
from labctl.base.own_guests import MOST_NEIGHBOURS
from labctl.base.tuning import Tuning
from labctl.domain.asked import ExpectedThread, sliced
from labctl.domain.save_image import Identity, copy_saved, give_identity, identity_of
from labctl.domain.session import RunningGuest
from labctl.host.guest_memory import MIB, memory_problem
from labctl.run.guests.boots import SavedBoot
from labctl.run.guests.clone_parts import CloneParts, clone_parts
from labctl.run.guests.clone_state import check_place, confined_threads, reseed
from labctl.run.guests.lab import Lab, Pins
from labctl.run.guests.started import RESTORE_S, answering, guest_xml
from labctl.run.guests.threads import set_slices
from labctl.run.resources.huge_pages import pages_of

TICK_S = 0.01
"""Longest period of a guest's timer tick (CONFIG_HZ=100): resumes differ by a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """Hold a clone that answers. `waited_s`: how long after it was restored it was resumed."""

    identity: Identity
    running: RunningGuest
    channel: Channel
    waited_s: float
    resumed_ns: int
    """CLOCK_MONOTONIC of this host when it was told to resume."""
    threads: tuple[ExpectedThread, ...] = ()
    """Threads as they were asked for, and found."""

    @property
    def pid(self) -> int:
        """Return QEMU's process id."""
        return self.running.pid

    def to_json(self) -> dict[str, Any]:
        """Return who it was, as files of a trial keep it."""
        return {
            "name": self.identity.name,
            "uuid": self.identity.uuid,
            "macs": list(self.identity.macs),
            "pid": self.pid,
            "waited_s": self.waited_s,
            "resumed_ns": self.resumed_ns,
        }


OpenRoom = Callable[[], AbstractContextManager["CloneRoom"]]
"""Opens the room in which a trial's neighbours are made."""


@dataclass(kw_only=True)
class CloneRoom:
    """Make clones of a saved boot, each while the ones before it run. Make one with `clone_room`.

    `tuning`: the one with which they are restored."""

    lab: Lab
    saved: SavedBoot
    tuning: Tuning
    seed: str
    stack: ExitStack
    clones: list[Clone] = field(default_factory=list)
    _ends: list[ExitStack] = field(default_factory=list)

    def add(self, where: CpuSet | Pins) -> Clone:
        """Restore one more; it answers when this returns. `where`: the CPUs of all its threads, or
        the pin plans by which its tuning places each of them.

        Raises HostError with the numbers where the host has no memory left for it, BrokenError
        when it doesn't answer or isn't where it was asked to be.
        """
        number = len(self.clones)
        if number >= MOST_NEIGHBOURS:
            raise HostError(f"{number} clones of a guest are the most that labctl starts")
        end = self.stack.enter_context(ExitStack())
        clone = end.enter_context(self._clone(number, where))
        self.clones.append(clone)
        self._ends.append(end)
        return clone

    def remove_last(self) -> None:
        """End the clone that came last, with what it has on disk."""
        self.clones.pop()
        self._ends.pop().close()

    def check_memory(self, more: int) -> None:
        """Raise HostError where the host's memory doesn't suffice for so many more of them."""
        if pages_of(guest_xml(self.lab, self.tuning, self.saved.disks)):
            return  # huge pages are set aside one by one, or refused
        problem = memory_problem(more, self.lab.memory_mib * MIB)
        if problem is not None:
            raise problem

    @contextmanager
    def _clone(self, number: int, where: CpuSet | Pins) -> Iterator[Clone]:
        self.check_memory(1)
        draw = random.Random(f"{self.seed}:{number}")
        cpus = where if isinstance(where, frozenset) else None
        lab = self.lab if isinstance(where, frozenset) else replace(self.lab, pin_plans=where)
        with ExitStack() as stack:
            parts = stack.enter_context(clone_parts(lab, self.saved, self.tuning, cpus, number))
            identity = identity_of(parts.xml)
            running = self._restored(parts, identity)
            stack.callback(running.end)
            if cpus is None:
                slice_ns = self.tuning.vcpu_slice_ns
                set_slices(running.vcpu_threads().values(), slice_ns)
                asked = lab.source.expected_threads(lab, self.tuning, parts.xml)
                expected = sliced(asked, slice_ns)
            else:
                expected = confined_threads(running, cpus)
            check_place(lab.layout, running, expected)
            waited_s = draw.uniform(0, TICK_S)
            time.sleep(waited_s)
            resumed_ns = time.monotonic_ns()
            what = f"the guest {identity.name}"
            channel = stack.enter_context(
                answering(parts.lab, running, RESTORE_S, is_booting=False, what=what)
            )
            reseed(channel, draw.randbytes(32))
            yield Clone(
                identity=identity,
                running=running,
                channel=channel,
                waited_s=waited_s,
                resumed_ns=resumed_ns,
                threads=tuple(expected),
            )

    def _restored(self, parts: CloneParts, identity: Identity) -> RunningGuest:
        copy = self.saved.copy
        try:
            if not copy.exists():
                copy_saved(self.saved.memory, copy)
            give_identity(copy, self.saved.memory, identity)
        except OSError as error:
            copy.unlink(missing_ok=True)
            raise HostError(
                f"cannot write {copy}: {error.strerror}",
                hint="Free some space, or name another folder with --state-dir.",
            ) from error
        return self.lab.session.restore(copy, parts.xml, identity.name)


def no_room() -> AbstractContextManager[CloneRoom]:
    """Refuse what only a run that has saved a boot can have; raises HostError."""
    raise HostError("guests as neighbours are copies of a saved guest, and there is none")


@contextmanager
def clone_room(lab: Lab, saved: SavedBoot, tuning: Tuning, seed: str) -> Iterator[CloneRoom]:
    """Provide a room without clones; every clone that it has got by then is ended at the end, with
    what it has on disk."""
    with ExitStack() as stack:
        yield CloneRoom(lab=lab, saved=saved, tuning=tuning, seed=seed, stack=stack)
