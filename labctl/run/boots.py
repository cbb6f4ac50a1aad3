"""Boots, saved once and restored for each tuning (METHOD rules 6 and 7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, HostError
from labctl.base.events import Note
from labctl.base.tuning import Tuning
from labctl.domain.render import guest_data_path
from labctl.domain.session import RunningGuest
from labctl.host.cgroups import libvirt_controllers, placement, placement_problems
from labctl.run import cable
from labctl.run.disks import Disks, make_overlays, remove_disks
from labctl.run.guests import RESTORE_S, answering, guest_xml, hand_over
from labctl.run.huge_pages import huge_pages, pages_of
from labctl.run.lab import DOMAIN_NAME, Lab


class BootError(BrokenError):
    """A boot that every tuning of its blocks would have been restored from has failed."""


Settle = Callable[[Channel, str], None]
"""What is done in a booted guest before it is saved; it is told the guest's data disk."""


@dataclass(frozen=True, slots=True)
class SavedBoot:
    """A booted guest's memory, and its disks as they were then."""

    planned: int
    number: int
    memory: Path
    disks: Disks


class Boots:
    """The boots of a run: one saved at a time, made when a block first needs it."""

    def __init__(
        self, lab: Lab, disks: Disks, baseline: Tuning, settle: Settle, *, boots_before: int = 0
    ) -> None:
        self._lab = lab
        self._disks = disks
        self._baseline = baseline
        self._settle = settle
        self._saved: SavedBoot | None = None
        self.last = boots_before
        """Number of the last boot that was made, those of an interrupted run included: a plan's
        boot that a resumed run makes anew is another one."""
        self.seconds: dict[int, float] = {}
        """Boot number to the seconds from its start to the first answer."""

    def saved(self, planned: int) -> SavedBoot:
        """The plan's boot `planned`, saved; booted now unless it is the present one."""
        if self._saved is None or self._saved.planned != planned:
            self.drop()
            self._saved = self._boot_and_save(planned)
        return self._saved

    def drop(self) -> None:
        """Remove the saved boot: it holds a guest's memory."""
        if self._saved is not None:
            self._saved.memory.unlink(missing_ok=True)
            remove_disks(self._saved.disks)
            self._saved = None

    @contextmanager
    def restored(self, planned: int, tuning: Tuning) -> Iterator[PausedGuest]:
        """The boot that the plan calls `planned`, restored with the tuning's XML, paused."""
        saved = self.saved(planned)
        disks = self._overlays(saved.disks, "restored")
        xml = guest_xml(self._lab, tuning, disks)
        with self._memory_for(xml), cable.cabled(self._lab, tuning) as plug:
            running = self._lab.session.restore(saved.memory, xml, DOMAIN_NAME)
            plug(running)
            yield from self._paused(running, xml, disks, RESTORE_S, is_booting=False)

    @contextmanager
    def booted(self, tuning: Tuning) -> Iterator[PausedGuest]:
        """A boot of the tuning's own, paused before its first instruction."""
        self.last += 1
        disks = self._overlays(self._disks, "booted")
        xml = guest_xml(self._lab, tuning, disks)
        with self._memory_for(xml), cable.cabled(self._lab, tuning) as plug:
            running = self._lab.session.start(xml)
            plug(running)
            yield from self._paused(running, xml, disks, self._lab.boot_s, is_booting=True)

    def _memory_for(self, xml: str) -> AbstractContextManager[None]:
        return huge_pages(pages_of(xml), self._lab.journal)

    def _overlays(self, disks: Disks, stem: str) -> Disks:
        self._lab.source.check()
        made = make_overlays(disks, self._lab.work, stem)
        for disk in made.values():
            if disk.path.exists():  # libvirt makes a file of UEFI variables that isn't there
                hand_over(self._lab, disk.path)
        return made

    def _paused(
        self, running: RunningGuest, xml: str, disks: Disks, seconds: float, *, is_booting: bool
    ) -> Iterator[PausedGuest]:
        try:
            yield PausedGuest(self._lab, running, xml, seconds, is_booting)
        finally:
            running.end()
            remove_disks(disks)

    def settle(self, channel: Channel, tuning: Tuning) -> None:
        """Bring a guest that booted with that tuning to where a saved one is."""
        settle_boot(channel, self._lab.boot_s)
        self._lab.source.quieten(channel)
        cable.configure(self._lab, channel)
        self._settle(channel, guest_data_path(tuning.disk))

    def _boot_and_save(self, planned: int) -> SavedBoot:
        try:
            return self._booted_and_saved(planned)
        except BrokenError as error:
            raise BootError(error.message, hint=error.hint) from error

    def _booted_and_saved(self, planned: int) -> SavedBoot:
        self.last += 1
        number = self.last
        self._lab.listener(Note(text=f"Boot {number}: the guest starts and settles."))
        memory = self._lab.work / f"boot-{number}.save"
        disks = self._overlays(self._disks, f"boot-{number}")
        started = time.monotonic()
        baseline = self._baseline
        xml = guest_xml(self._lab, baseline, disks)
        with self._memory_for(xml), cable.cabled(self._lab, baseline) as plug:
            running = self._lab.session.start(xml)
            _check_place(self._lab, running)
            plug(running)
            with answering(self._lab, running, self._lab.boot_s, is_booting=True) as channel:
                seconds = time.monotonic() - started
                self.seconds[number] = seconds
                self.settle(channel, self._baseline)
                running.save(memory)
        return SavedBoot(planned, number, memory, disks)


def _check_place(lab: Lab, running: RunningGuest) -> None:
    """Raises HostError where a daemon puts guests in cgroups in which each of their trials would
    be invalid: its qemu.conf is the administrator's."""
    problems = placement_problems(lab.layout, placement(running.pid))
    if problems and not lab.session.is_embedded:
        named = ", ".join(f'"{name}"' for name in libvirt_controllers(lab.layout))
        raise HostError(
            f"the guests of {lab.session.uri} would not weigh what others do: "
            f"{'; '.join(problems)}",
            hint=f"Add 'cgroup_controllers = [{named}]' to /etc/libvirt/qemu.conf and restart the "
            "daemon, or leave out --connect.",
        )


@dataclass(frozen=True, slots=True)
class PausedGuest:
    """A guest whose threads exist and are placed, and that has not run yet."""

    lab: Lab
    running: RunningGuest
    asked_xml: str
    answer_s: float
    is_booting: bool

    @contextmanager
    def answering(self) -> Iterator[Channel]:
        with answering(
            self.lab, self.running, self.answer_s, is_booting=self.is_booting
        ) as channel:
            yield channel


def settle_boot(channel: Channel, seconds: float) -> None:
    """Wait until systemd has nothing left to start, and the disk has what was written."""
    wait = Command(argv=("systemctl", "is-system-running", "--wait"))
    waited = channel.run(wait, seconds=seconds)
    state = waited.stdout.decode(errors="replace").strip()
    if state not in ("running", "degraded"):
        raise BrokenError(f"the guest's systemd says '{state}' after the boot")
    result = channel.run(Command(argv=("sync",)), seconds=60)
    if result.returncode != 0:
        raise BrokenError("'sync' failed in the guest")
    channel.wait_ready(Deadline.after(10, "the settled guest's answer"))
