"""Restore one saved guest repeatedly, each time as another guest that runs beside the others.

libvirt restores a guest only under the identity in its save file, so a copy of that file gets the
name, UUID and MAC of one clone after the other (`domain.save_image`). One copy serves any number of
clones, because libvirt returns when QEMU has read it to its end. Each clone has sockets, a console,
overlays of the frozen disks and empty data disks of its own.

Clones are one guest at one moment: their random numbers would be the same, and their timers would
tick at once. So each is resumed at a different time, drawn from a seed, and its kernel's random
numbers are seeded anew.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.cpus import CpuSet
from labctl.base.errors import BrokenError, HostError
from labctl.base.paths import MOST_NEIGHBOURS, neighbour_seat
from labctl.base.process import last_words
from labctl.base.tuning import Tuning
from labctl.domain.asked import EMULATOR, IOTHREAD, VCPU, ExpectedThread, mismatches, urged
from labctl.domain.pinning.pin_plan import vhost_cpus
from labctl.domain.readback import read_threads
from labctl.domain.save_image import (
    Identity,
    copy_saved,
    give_identity,
    identity_of,
    with_usb_addresses,
)
from labctl.domain.session import RunningGuest, confined_to
from labctl.host.cgroups import Layout
from labctl.host.guest_memory import MIB, memory_problem
from labctl.host.link import tap
from labctl.run.guests.bench import pin_vhost, urge, weigh, weight_problems
from labctl.run.guests.boots import SavedBoot, empty_data_disks
from labctl.run.guests.lab import Lab, Pins
from labctl.run.guests.started import RESTORE_S, answering, guest_xml, hand_over
from labctl.run.resources.disks import make_overlays, remove_disks
from labctl.run.resources.huge_pages import huge_pages, pages_of

# Give a clone what it cannot share with the others: its seat, disks and network card, and the XML
# that names them.


@dataclass(frozen=True, slots=True)
class CloneParts:
    """Hold the lab with a clone's seat, and the clone's XML."""

    lab: Lab
    xml: str


@contextmanager
def clone_parts(
    lab: Lab, saved: SavedBoot, tuning: Tuning, cpus: CpuSet | None, number: int
) -> Iterator[CloneParts]:
    """Make the files and devices of clone `number`, from 0; remove them at the end. `cpus`: those
    of all its threads; None if its tuning places each thread."""
    lab = replace(lab, seat=neighbour_seat(number))
    with ExitStack() as stack:
        if lab.link is not None:
            # Left unplugged: a restored card only needs a device of the kind that it was saved
            # with.
            unplugged = lab.link.unplugged(number)
            many = (tuning.network.queues or 1) > 1
            stack.enter_context(tap(lab.journal, unplugged, many_queues=many))
            lab = replace(lab, link=unplugged)
        lab = replace(lab, data=empty_data_disks(lab, tuning))
        stack.callback(shutil.rmtree, lab.data.folder, ignore_errors=True)
        disks = make_overlays(saved.disks, lab.work, lab.domain_name)
        stack.callback(remove_disks, disks)
        stack.callback(lab.console_log.unlink, missing_ok=True)
        for disk in disks.values():
            hand_over(lab, disk.path)
        asked = guest_xml(lab, tuning, disks)
        if cpus is not None:
            asked = confined_to(asked, cpus)
        xml = with_usb_addresses(asked, saved.live)
        stack.enter_context(huge_pages(pages_of(xml), lab.journal))
        yield CloneParts(lab, xml)


# Check a clone, and make its state differ from the other clones'.


_RESEED_S = 60.0

# RNDADDENTROPY and RNDRESEEDCRNG (random(4), linux/random.h): data written only to /dev/urandom is
# used when the kernel next reseeds, up to a minute later.
_RESEED = """\
import fcntl, os, struct
seed = bytes.fromhex(os.environ["SEED"])
device = os.open("/dev/urandom", os.O_RDWR)
fcntl.ioctl(device, 0x40085203, struct.pack("ii", 8 * len(seed), len(seed)) + seed)
fcntl.ioctl(device, 0x5207)
"""


def confined_threads(running: RunningGuest, cpus: CpuSet) -> list[ExpectedThread]:
    """Return a guest's expected threads: all with these CPUs and the usual policy."""
    vcpus, iothreads = running.vcpu_threads(), running.iothread_threads()
    return [
        ExpectedThread(role=role, index=index, cpus=cpus, policy="other", priority=0)
        for role, indices in ((EMULATOR, (0,)), (VCPU, vcpus), (IOTHREAD, iothreads))
        for index in indices
    ]


def check_place(
    layout: Layout,
    running: RunningGuest,
    expected: Sequence[ExpectedThread],
    weight: int | None = None,
) -> None:
    """Raise BrokenError unless a guest's threads are as expected, and compete as a measured guest's
    do. `weight`: the guest's, None for the default."""
    vcpus, iothreads = running.vcpu_threads(), running.iothread_threads()
    problems = [
        *mismatches(expected, read_threads(running.pid, vcpus, iothreads)),
        *weight_problems(layout, running, weight),
    ]
    if problems:
        raise BrokenError(
            f"the guest {running.name} differs from its tuning: {'; '.join(problems)}"
        )


def reseed(channel: Channel, seed: bytes) -> None:
    """Reseed the guest's random numbers, which would be the same in all clones. Raises BrokenError
    with the guest's message if it cannot."""
    command = Command(argv=("python3", "-c", _RESEED), env={"SEED": seed.hex()})
    result = channel.run(command, seconds=_RESEED_S)
    if result.returncode != 0:
        said = last_words(result.stderr)
        raise BrokenError(f"{channel.name}: cannot reseed its random numbers: {said}")


def cpu_ns(running: RunningGuest) -> int:
    """Return the CPU time of a guest's QEMU with all threads that it has had, in ns. Raises
    BrokenError if it is gone.

    The id of a process's clock is computed as in the kernel (include/linux/posix-timers.h,
    CPUCLOCK_SCHED)."""
    try:
        return time.clock_gettime_ns((~running.pid << 3) | 2)
    except OSError as error:
        raise BrokenError(f"the guest {running.name} is gone") from error


TICK_S = 0.01
"""Longest period of a guest's timer tick (CONFIG_HZ=100): resumes differ by a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """Hold a clone that answers. `waited_s`: time from its restore to its resume."""

    identity: Identity
    running: RunningGuest
    channel: Channel
    waited_s: float
    resumed_ns: int
    """CLOCK_MONOTONIC of this host at its resume."""
    threads: tuple[ExpectedThread, ...] = ()
    """Threads as requested, and as found."""

    @property
    def pid(self) -> int:
        """Return QEMU's process id."""
        return self.running.pid

    def to_json(self) -> dict[str, object]:
        """Return its entry in the files of a trial."""
        return {
            "name": self.identity.name,
            "uuid": self.identity.uuid,
            "macs": list(self.identity.macs),
            "pid": self.pid,
            "waited_s": self.waited_s,
            "resumed_ns": self.resumed_ns,
        }


@dataclass(kw_only=True)
class CloneRoom:
    """Make clones of a saved boot, each while the earlier ones run. Use `clone_room` to make one.

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

        Raises HostError with the numbers if the host has no memory left for it, BrokenError if it
        does not answer or is not placed as requested.
        """
        number = len(self.clones)
        if number >= MOST_NEIGHBOURS:
            raise HostError(f"labctl starts at most {number} clones of a guest")
        end = self.stack.enter_context(ExitStack())
        clone = end.enter_context(self._clone(number, where))
        self.clones.append(clone)
        self._ends.append(end)
        return clone

    def remove_last(self) -> None:
        """End the newest clone, and remove its files."""
        self.clones.pop()
        self._ends.pop().close()

    def check_memory(self, more: int) -> None:
        """Raise HostError if the host's memory does not suffice for so many more clones."""
        if pages_of(guest_xml(self.lab, self.tuning, self.saved.disks)):
            return  # huge pages are reserved one by one, or refused
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
            weight = self.tuning.cpu_weight if cpus is None else None
            weigh(lab.layout, running, weight)
            if cpus is None:
                urge(self.tuning, running.pid, running.vcpu_threads().values())
                asked = lab.source.expected_threads(lab, self.tuning, parts.xml)
                plan = lab.pin_plan_for(self.tuning)
                pin_vhost(running.pid, vhost_cpus(self.tuning, plan))
                expected = urged(asked, self.tuning, plan)
            else:
                expected = confined_threads(running, cpus)
            check_place(lab.layout, running, expected, weight)
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


@contextmanager
def clone_room(lab: Lab, saved: SavedBoot, tuning: Tuning, seed: str) -> Iterator[CloneRoom]:
    """Provide a room without clones; the clones that it then contains are ended at the end, and
    their files removed."""
    with ExitStack() as stack:
        yield CloneRoom(lab=lab, saved=saved, tuning=tuning, seed=seed, stack=stack)
