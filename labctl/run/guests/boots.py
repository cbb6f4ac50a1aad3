"""Save each boot once and restore it for each tuning (METHOD rules 6 and 7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from labctl.base.channel import Channel
from labctl.base.errors import BrokenError, HostError
from labctl.base.events import Note, Warned
from labctl.base.tuning import Tuning
from labctl.domain.render import guest_data_paths
from labctl.domain.save_image import with_usb_addresses
from labctl.domain.session import RunningGuest
from labctl.host.cgroups import libvirt_setting, placement, placement_problems
from labctl.host.preflight import HEADROOM_BYTES, memory_available
from labctl.run.contained import foreseen
from labctl.run.guests import nic
from labctl.run.guests.lab import Lab
from labctl.run.guests.started import RESTORE_S, answering, finish_boot, guest_xml, hand_over
from labctl.run.resources.disks import DataDisks, Disks, make_empty, make_overlays, remove_disks
from labctl.run.resources.huge_pages import huge_pages, pages_of

MIB = 1024 * 1024


class BootError(BrokenError):
    """Report a failed boot, from which every tuning of its blocks would have been restored."""


class _NoSecondError(BrokenError):
    """Report that a second guest did not start beside the first."""


SetUp = Callable[[Channel, tuple[str, ...], Tuning], None]
"""Function that sets up a booted guest before it is saved; it gets the guest's data disks and the
tuning that it booted with. Two guests may be in it at once, each in a thread of its own."""


@dataclass(frozen=True, slots=True)
class SavedBoot:
    """Hold a booted guest's memory, and its disks at that moment. `lab`: with the seat that it
    booted in; `live`: its XML as libvirt showed it then."""

    planned: int
    number: int
    memory: Path
    disks: Disks
    lab: Lab
    live: str

    @property
    def copy(self) -> Path:
        """Return the path for a copy of the memory, for guests of other names (`guests.clones`)."""
        return self.memory.with_suffix(".copy")


@dataclass(frozen=True, slots=True)
class _Booting:
    """Hold a guest that was started at that time and has not answered yet."""

    planned: int
    number: int
    lab: Lab
    disks: Disks
    running: RunningGuest
    started: float


class Boots:
    """Make the boots of a run, each when a block first needs it: two at once if the host has room,
    because a booting guest uses one CPU (docs/decisions/boots-and-blocks.md).

    `to_come`: the plan's boots with work left, in order."""

    def __init__(
        self,
        lab: Lab,
        disks: Disks,
        baseline: Tuning,
        set_up: SetUp,
        *,
        boots_before: int = 0,
        to_come: Sequence[int] = (),
    ) -> None:
        self._lab = lab
        self._disks = disks
        self._baseline = baseline
        self._set_up = set_up
        self._to_come = to_come
        self._saved: dict[int, SavedBoot] = {}
        self.last = boots_before
        """Number of the last boot that was made, including those of an interrupted run: a plan's
        boot that a resumed run makes anew is another one."""
        self.seconds: dict[int, float] = {}
        """Boot number to the seconds from its start to the first answer; for two that booted at
        once, half of the total each."""

    def saved(self, planned: int) -> SavedBoot:
        """Return the plan's boot `planned`, saved. It is booted now unless it was booted beside the
        one before."""
        if planned not in self._saved:
            self.drop()
            self._saved = {boot.planned: boot for boot in self._boot_and_save(planned)}
        for past in [number for number in self._saved if number < planned]:
            self._drop(self._saved.pop(past))
        return self._saved[planned]

    def drop(self) -> None:
        """Remove the saved state: it contains guests' memory."""
        for boot in self._saved.values():
            self._drop(boot)
        self._saved = {}

    def _drop(self, boot: SavedBoot) -> None:
        boot.memory.unlink(missing_ok=True)
        boot.copy.unlink(missing_ok=True)
        remove_disks(boot.disks)

    @contextmanager
    def restored(self, planned: int, tuning: Tuning) -> Iterator[PausedGuest]:
        """Restore the plan's boot `planned` with the tuning's XML, paused."""
        saved = self.saved(planned)
        lab = saved.lab
        disks = self._overlays(saved.disks, "restored")
        xml = with_usb_addresses(guest_xml(lab, tuning, disks), saved.live)
        with self._memory_for(xml), nic.with_guest_nic(lab, tuning) as plug:
            running = lab.session.restore(saved.memory, xml, lab.domain_name)
            plug(running)
            paused = PausedGuest(lab, running, xml, RESTORE_S, is_booting=False, boot=saved.number)
            yield from self._paused(paused, disks)

    @contextmanager
    def booted(self, tuning: Tuning) -> Iterator[PausedGuest]:
        """Start a boot of the tuning's own, paused before its first instruction."""
        self.last += 1
        lab = self._lab.for_arm(tuning)
        base = self._disks if lab is self._lab else lab.source.disks(lab, tuning)
        disks = self._overlays(base, "booted")
        xml = guest_xml(lab, tuning, disks)
        with self._memory_for(xml), nic.with_guest_nic(lab, tuning) as plug:
            running = lab.session.start(xml)
            plug(running)
            paused = PausedGuest(lab, running, xml, lab.boot_s, is_booting=True, boot=self.last)
            yield from self._paused(paused, disks)

    def _memory_for(self, xml: str) -> AbstractContextManager[None]:
        return huge_pages(pages_of(xml), self._lab.journal)

    def _overlays(self, disks: Disks, stem: str) -> Disks:
        self._lab.source.check()
        made = make_overlays(disks, self._lab.work, stem)
        for disk in made.values():
            if disk.path.exists():  # libvirt creates a missing file of UEFI variables
                hand_over(self._lab, disk.path)
        return made

    def _paused(self, guest: PausedGuest, disks: Disks) -> Iterator[PausedGuest]:
        try:
            yield guest
        finally:
            guest.running.end()
            remove_disks(disks)

    def set_up(self, channel: Channel, tuning: Tuning) -> None:
        """Bring a guest that booted with that tuning to the state of a saved one."""
        finish_boot(channel, self._lab.boot_s)
        self._lab.source.quieten(channel)
        nic.configure(self._lab, channel)
        self._set_up(channel, guest_data_paths(tuning.disk, self._lab.data.count), tuning)

    def _boot_and_save(self, planned: int) -> list[SavedBoot]:
        """Boot and save that boot of the plan, and the next one if two may boot at once."""
        try:
            try:
                return self._booted_and_saved(planned, self._beside(planned))
            except _NoSecondError as error:
                self._to_come = ()
                text = f"cannot boot two guests at once, so one boots at a time: {error.message}"
                self._lab.listener(Warned(text=text))
                return self._booted_and_saved(planned, None)
        except BrokenError as error:
            raise BootError(error.message, hint=error.hint) from error

    def _beside(self, planned: int) -> int | None:
        """Return the plan's boot that may boot beside this one."""
        after = next((boot for boot in self._to_come if boot > planned), None)
        if after is None or not may_boot_two(self._lab):
            return None
        # Available huge pages are reserved for one guest.
        return None if pages_of(guest_xml(self._lab, self._baseline, self._disks)) else after

    def _booted_and_saved(self, planned: int, beside: int | None) -> list[SavedBoot]:
        which = f"Booting a guest ({self.last + 1})."
        if beside is not None:
            which = f"Booting two guests ({self.last + 1}, {self.last + 2})."
        self._lab.listener(Note(text=which))
        with ExitStack() as stack:
            first = stack.enter_context(self._booting(planned, self._lab))
            if beside is None:
                return [self._settled_and_saved(first)]
            lab = replace(self._lab, seat=1)
            lab = replace(lab, data=empty_data_disks(lab, self._baseline))
            try:
                second = stack.enter_context(self._booting(beside, lab))
            except BrokenError as error:  # libvirt's refusal has ended the first one, too
                raise _NoSecondError(error.message) from error
            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(self._settled_and_saved, second)
                try:
                    saved = [self._settled_and_saved(first)]
                    saved += self._second_of(first, second, other)
                except BaseException:
                    second.running.end()  # its thread waits for it
                    raise
            return saved

    def _second_of(
        self, first: _Booting, second: _Booting, other: Future[SavedBoot]
    ) -> list[SavedBoot]:
        """Return the boot beside the first one, or nothing if it failed: it is made anew when a
        block needs it."""
        try:
            saved = other.result()
        except BrokenError as error:
            text = f"boot {second.number} failed beside boot {first.number}: {error.message}"
            self._lab.listener(Warned(text=text))
            return []
        taken = max(self.seconds[boot.number] for boot in (first, second)) / 2
        self.seconds |= {first.number: taken, second.number: taken}
        return [saved]

    @contextmanager
    def _booting(self, planned: int, lab: Lab) -> Iterator[_Booting]:
        """Start a guest that boots; end it afterwards unless it was saved."""
        self.last += 1
        number = self.last
        disks = self._overlays(self._disks, f"boot-{number}")
        started = time.monotonic()
        xml = guest_xml(lab, self._baseline, disks)
        with self._memory_for(xml), nic.with_guest_nic(lab, self._baseline) as plug:
            running = lab.session.start(xml)
            try:
                _check_place(lab, running)
                plug(running)
                running.resume()
                yield _Booting(planned, number, lab, disks, running, started)
            finally:
                running.end()

    def _settled_and_saved(self, boot: _Booting) -> SavedBoot:
        lab, number = boot.lab, boot.number
        memory = lab.work / f"boot-{number}.save"
        with (
            foreseen(f"the guest of boot {number} was ready"),
            answering(lab, boot.running, lab.boot_s, is_booting=True, is_paused=False) as channel,
        ):
            self.seconds[number] = time.monotonic() - boot.started
            self.set_up(channel, self._baseline)
            live = boot.running.live_xml()
            boot.running.save(memory)
        restored_in = replace(lab, data=self._lab.data)
        return SavedBoot(boot.planned, number, memory, boot.disks, restored_in, live)


def may_boot_two(lab: Lab) -> bool:
    """Return whether a second guest may boot beside the first: there is one link, and each takes a
    CPU and its memory. A daemon's guests boot one at a time, because it sets the owners of its
    files itself."""
    needed = 2 * (lab.memory_mib * MIB + HEADROOM_BYTES)
    return (
        lab.source.may_boot_two
        and lab.session.is_embedded
        and lab.link is None
        and len(lab.topology.usable) > 1
        and (memory_available() or 0) >= needed
    )


def empty_data_disks(lab: Lab, tuning: Tuning) -> DataDisks:
    """Return data disks for the guest in the lab's seat while another has the real ones open:
    empty, with the same size and format."""
    disks = DataDisks(lab.work / f"data-of-{lab.domain_name}", count=lab.data.count)
    disks.folder.mkdir(mode=0o711, exist_ok=True)
    for file in disks.paths_in(tuning.disk.format):
        make_empty(file, tuning.disk.format)
        hand_over(lab, file)
    return disks


def _check_place(lab: Lab, running: RunningGuest) -> None:
    """Raise HostError if a daemon puts guests into cgroups in which every trial would be invalid:
    its qemu.conf is the administrator's to change."""
    problems = placement_problems(lab.layout, placement(running.pid))
    if problems and not lab.session.is_embedded:
        raise HostError(
            f"the guests of {lab.session.uri} would not share the CPU fairly with other cgroups: "
            f"{'; '.join(problems)}",
            hint=f"Add '{libvirt_setting(lab.layout)}' to /etc/libvirt/qemu.conf and restart the "
            "daemon, or leave out --connect.",
        )


@dataclass(frozen=True, slots=True)
class PausedGuest:
    """Hold a guest whose threads exist and are placed, but that has not run yet."""

    lab: Lab
    running: RunningGuest
    asked_xml: str
    answer_s: float
    is_booting: bool
    boot: int
    """Number of the boot that it comes from."""

    @contextmanager
    def answering(self) -> Iterator[Channel]:
        with answering(
            self.lab, self.running, self.answer_s, is_booting=self.is_booting
        ) as channel:
            yield channel
