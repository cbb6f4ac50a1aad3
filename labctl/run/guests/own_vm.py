"""Provide guests that are copies of the administrator's own domain (docs/own-vm.md)."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.base.channel import Channel, runner_program
from labctl.base.command import Command
from labctl.base.deadline import Deadline
from labctl.base.errors import HostError
from labctl.base.events import Note
from labctl.base.tuning import Tuning
from labctl.base.xmldiff import parse
from labctl.domain.agent import GuestAgent
from labctl.domain.asked import ExpectedThread
from labctl.domain.calls import ConnectionLostError
from labctl.domain.foreign import foreign_domain
from labctl.domain.foreign.copied import Copied, CopyRequest, confirmed, copied
from labctl.domain.foreign.graft import grafted, with_data_disk
from labctl.domain.schema import validate
from labctl.domain.session import RunningGuest
from labctl.run.guests.guest_logs import console_end
from labctl.run.guests.lab import Lab
from labctl.run.guests.started import image_xml
from labctl.run.planning.own_domain import OwnGuest
from labctl.run.resources.disks import FLASH, DiskFile, Disks

_NVRAM = "nvram"

_QUIET = (
    "*.timer",
    *("chrony.service", "chronyd.service", "ntp.service", "ntpd.service", "ntpsec.service"),
    "systemd-timesyncd.service",
)
"""Units of a guest that would run beside a workload, or set its clock (METHOD rule 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnVm:
    """Provide copies of the administrator's domain. `paths`: the programs that the study's
    workloads run in the guest.
    """

    own: OwnGuest
    baseline: Tuning
    paths: tuple[str, ...]

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
            disks[_NVRAM] = DiskFile(domain.nvram or lab.work / "no-nvram.fd", FLASH)
        for note in self._copied(lab, disks).notes:
            lab.listener(Note(text=f"In labctl's copy of '{domain.name}', {note}."))
        return disks

    def check(self) -> None:
        self.own.check()

    def xml(self, lab: Lab, tuning: Tuning, disks: Disks) -> str:
        root = lab.work / "root.qcow2"  # of labctl's own domain, which says what a tuning means
        plain, rendered = (image_xml(lab, t, root) for t in (self.baseline, tuning))
        xml = grafted(self._copied(lab, disks).xml, tuning, plain, rendered)
        xml = with_data_disk(xml, rendered)
        what = f"labctl's copy of '{self.own.domain.name}'"
        xml = confirmed(xml, self._paths(lab, disks, rendered), _label(lab), what)
        validate(xml, what=what)
        return xml

    def expected_threads(self, lab: Lab, tuning: Tuning, xml: str) -> list[ExpectedThread]:
        # The domain's own pins and policies hold where the tuning says nothing.
        return foreign_domain.expected_threads(xml, lab.vcpus, lab.topology.usable)

    def greet(self, lab: Lab, running: RunningGuest, deadline: Deadline) -> None:
        agent = GuestAgent(running.agent)
        try:
            agent.wait(deadline)
        except ConnectionLostError:
            raise  # the guest's console has nothing to say of that
        except HostError as error:
            message = f"{error.message}{console_end(lab.console_log)}"
            raise HostError(message, hint=error.hint) from error
        agent.start_runner(runner_program(), self.paths)

    def quieten(self, channel: Channel) -> None:
        # It ends with an error when one of them is not there.
        channel.run(Command(argv=("systemctl", "stop", *_QUIET)), seconds=120)

    def hint(self, lab: Lab) -> str:
        return (
            f"Does '{self.own.domain.name}' boot by itself? A study's 'limits.boot_s' says how "
            "long it may take."
        )

    def _paths(self, lab: Lab, disks: Disks, rendered: str) -> frozenset[str]:
        """Return every file that the copy may name."""
        own = self.own.domain
        labctls = parse(rendered).iterfind("devices/disk/source")
        return frozenset(
            (
                *(str(disk.path) for disk in disks.values()),
                *(str(disk.path) for disk in own.read_only),
                *map(str, (*own.firmware, *own.boot_files)),
                *map(str, (lab.console_log, lab.runner_socket, lab.sockets / "agent.sock")),
                *(source.get("file", "") for source in labctls),
            )
        )

    def _copied(self, lab: Lab, disks: Disks) -> Copied:
        confined = lab.pin_plan_for(self.baseline)
        return copied(
            self.own.domain,
            CopyRequest(
                name=lab.domain_name,
                uuid=lab.domain_uuid,
                accelerator=lab.accelerator.name,
                disabled_features=lab.accelerator.disabled_features,
                disks={name: disk.path for name, disk in disks.items()},
                nvram=disks[_NVRAM].path if _NVRAM in disks else None,
                console_log=lab.console_log,
                runner_socket=lab.runner_socket,
                agent_socket=lab.agent_socket,
                label=_label(lab),
                keep_network=self.own.keep_network,
                confined_to=confined.usable if confined.usable != confined.online else None,
            ),
        )


def _label(lab: Lab) -> str:
    """Return whom a copy's QEMU runs as. A daemon's QEMU user reads the original's disks only where
    libvirt gives them to it; root reads them as they are."""
    user, group = lab.qemu_ids if lab.qemu_user else (0, 0)
    return f"+{user}:+{group}"
