"""Provide guests that are copies of the administrator's own domain (docs/own-vm.md)."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.deadline import Deadline
from labctl.base.events import Note
from labctl.base.runner_archive import runner_archive
from labctl.base.tuning import Tuning
from labctl.domain.asked import ExpectedThread
from labctl.domain.foreign import foreign_domain
from labctl.domain.session import RunningGuest
from labctl.run.guests import own_copy
from labctl.run.guests.agent_start import start_runner
from labctl.run.guests.lab import Lab
from labctl.run.planning.own_domain import OwnGuest
from labctl.run.resources.disks import FLASH, DiskFile, Disks

_QUIET = (
    "*.timer",
    *("chrony.service", "chronyd.service", "ntp.service", "ntpd.service", "ntpsec.service"),
    "systemd-timesyncd.service",
)
"""Units of a guest that would run beside a workload, or set its clock (METHOD rule 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnVm:
    """Provide copies of the administrator's domain. `paths`: the programs that the study's
    workloads run in the guest; `packages`: those of Debian's that they name.
    """

    own: OwnGuest
    baseline: Tuning
    paths: tuple[str, ...]
    packages: tuple[str, ...] = ()

    @property
    def has_native_side(self) -> bool:
        return False

    @property
    def says_everything(self) -> bool:
        return False

    @property
    def may_boot_two(self) -> bool:
        return False  # nobody has said that this host has the memory for two of them

    def disks(self, lab: Lab, baseline: Tuning) -> Disks:
        domain = self.own.domain
        disks = {disk.name: DiskFile(disk.path, disk.format) for disk in domain.disks}
        if domain.is_uefi:
            disks[own_copy.NVRAM] = DiskFile(domain.nvram or lab.work / "no-nvram.fd", FLASH)
        for note in own_copy.made(self.own, self.baseline, lab, disks).notes:
            lab.listener(Note(text=f"In labctl's copy of '{domain.name}', {note}."))
        return disks

    def check(self) -> None:
        self.own.check()

    def xml(self, lab: Lab, tuning: Tuning, disks: Disks) -> str:
        return own_copy.xml_of(self.own, self.baseline, lab, tuning, disks)

    def expected_threads(self, lab: Lab, tuning: Tuning, xml: str) -> list[ExpectedThread]:
        # The domain's own pins and policies hold where the tuning says nothing.
        return foreign_domain.expected_threads(xml, lab.vcpus, lab.topology.usable)

    def greet(self, lab: Lab, running: RunningGuest, deadline: Deadline) -> None:
        start_runner(
            running, runner_archive(), self.paths, self.packages, lab.console_log, deadline
        )

    def quieten(self, channel: Channel) -> None:
        # It ends with an error when one of them is not there.
        channel.run(Command(argv=("systemctl", "stop", *_QUIET)), seconds=120)

    def hint(self, lab: Lab) -> str:
        return (
            f"Does '{self.own.domain.name}' boot by itself? A study's 'limits.boot_s' says how "
            "long it may take."
        )
