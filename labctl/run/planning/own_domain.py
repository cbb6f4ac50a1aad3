"""Fit the administrator's own domain into a study: find it, check it, read it."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from labctl.base.cpus import format_cpus
from labctl.base.errors import HostError, UsageError
from labctl.base.json import parse_json
from labctl.base.process import Deadline, ProcessError, run
from labctl.base.trust import doubt
from labctl.base.tuning import Kind, Strategy, Tuning
from labctl.domain.foreign.draft import STAND_INS
from labctl.domain.foreign.foreign_domain import (
    MOST_BYTES,
    OwnDisk,
    OwnDomain,
    check_copyable,
    domain_of_file,
    named_places,
    own_domain,
)
from labctl.domain.foreign.graft import compared, durability, is_changed, problems
from labctl.domain.foreign.platform_file import FORMATS, SUFFIXES
from labctl.domain.pinning.pin_plan import PinPlan
from labctl.domain.session import Session
from labctl.host.topology import Topology
from labctl.run.planning.host import rt_runtime_us
from labctl.run.planning.requirements import Unmet
from labctl.store.jsonfile import canonical
from labctl.store.records.run_record import DomainUsed
from labctl.store.run_folder import RunFolder
from labctl.study.changes import Key, changes, dotted, word
from labctl.study.study import Study

# Check files that the administrator's own domain names before a copy opens them. Disks must be at
# rest, with every backing file; firmware and a kernel must be writable by root of this host alone.


FIRMWARE_FOLDERS: Final = tuple(
    Path("/usr/share", name)
    for name in ("OVMF", "ovmf", "AAVMF", "edk2", "edk2-ovmf", "qemu", "seabios")
)
"""Folders in which distributions put the firmware of guests."""

MOST_LAYERS: Final = 64
"""Longest chain of backing files."""

_LOCKED = "lock"
"""Part of qemu-img's message about a file that another QEMU writes to."""


def check_files(domain: OwnDomain) -> tuple[Path, ...]:
    """Return the files that a copy opens in place, including the disks' backing files.

    Raises UsageError for a file that no copy may open, HostError for a disk in use.
    """
    opened = [*domain.firmware, *domain.boot_files]
    for path in domain.firmware:
        _check_firmware(domain, path)
    for path in domain.boot_files:
        if why := doubt(path) or _why_no_file(path):
            raise UsageError(
                f"'{domain.name}' boots {path}, but {why}",
                hint="Use a kernel and an initrd in folders that only you or root can write to.",
            )
    if domain.nvram is not None and os.path.lexists(domain.nvram):
        _check_kind(domain, "the variables", domain.nvram)  # labctl copies them
    for disk in domain.disks:
        opened += _check_at_rest(domain, disk)
    for disk in domain.read_only:
        if os.path.lexists(disk.path):
            _check_kind(domain, f"disk {disk.name}", disk.path)
        opened += [disk.path] if disk.format == "raw" else _check_chain(domain, disk)
    return tuple(dict.fromkeys(opened))


def _check_firmware(domain: OwnDomain, path: Path) -> None:
    real = Path(os.path.realpath(path))
    why = doubt(path) or _why_no_file(path)
    if why is None and real.stat().st_uid != 0:
        why = f"{real} is not owned by root"
    if why is None and not any(real.is_relative_to(folder) for folder in FIRMWARE_FOLDERS):
        why = f"{real} is in none of {', '.join(map(str, FIRMWARE_FOLDERS))}"
    if why is not None:
        raise UsageError(
            f"'{domain.name}' starts the firmware {path}, but {why}",
            hint="In a copy of its XML, set <loader> to firmware from this host's packages.",
        )


def _why_no_file(path: Path) -> str | None:
    return None if path.is_file() else f"{path} is not a file"


def _check_at_rest(domain: OwnDomain, disk: OwnDisk) -> list[Path]:
    """Return the disk's files, as `_check_chain` does.

    Raises HostError while another process writes to the disk: QEMU's own locks show other QEMUs,
    also on other hosts of a shared file system; O_EXCL shows mounts (open(2)). Raises UsageError
    for a disk that does not match the XML, or that lacks a part.
    """
    try:
        exclusive = os.O_EXCL if _check_kind(domain, f"disk {disk.name}", disk.path) else 0
        os.close(os.open(disk.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | exclusive))
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise _in_use(domain, disk) from error
        raise _cannot_open(domain, f"disk {disk.name}", disk.path, error) from error
    return _check_chain(domain, disk)


def _check_chain(domain: OwnDomain, disk: OwnDisk) -> list[Path]:
    """Return the disk's file and each of its backing files. One is opened only if its name is that
    of a file: a header could name a host of the network, or QEMU's options."""
    path, kind = str(disk.path), disk.format
    layers: list[Path] = []
    for _ in range(MOST_LAYERS):
        layers.append(Path(path))
        layer = _told(domain, disk, path, kind)
        base = layer.get("full-backing-filename", layer.get("backing-filename"))
        if outside := _outside_file(layer):
            raise UsageError(
                f"{path}, of disk {disk.name} of '{domain.name}', keeps its data in {outside}",
                hint="Give a copy of it: qemu-img convert -O qcow2 DISK COPY",
            )
        if base is None:
            return layers
        # libvirt opens no file whose format it would have to guess: a guest could have written a
        # header into a raw one.
        if (kind := str(layer.get("backing-filename-format", ""))) not in FORMATS:
            said = f"says that it is '{kind}'" if kind else "does not state its format"
            raise UsageError(
                f"{path}, of disk {disk.name} of '{domain.name}', is based on {base} and "
                f"{said}: expected {' or '.join(FORMATS)}",
                hint=f"State it: qemu-img rebase -u -F FORMAT -b {base} {path}",
            )
        if re.match("[A-Za-z0-9+_-]*:", str(base)) or not str(base).startswith("/"):
            raise UsageError(
                f"{path}, of disk {disk.name} of '{domain.name}', is based on {base}, which "
                "is not an absolute path of a file",
                hint="Give a copy of it: qemu-img convert -O qcow2 DISK COPY",
            )
        path = str(base)
    raise UsageError(
        f"disk {disk.name} of '{domain.name}' is based on more than {MOST_LAYERS} files",
        hint="Give a copy of it: qemu-img convert -O qcow2 DISK COPY",
    )


def _check_kind(domain: OwnDomain, what: str, path: Path) -> bool:
    """Return whether the file of a disk or of variables is a block device. Raises UsageError for
    other special files: opening a pipe may wait for ever, opening another device do anything."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _cannot_open(domain, what, path, error) from error
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        raise UsageError(
            f"{what} of '{domain.name}', {path}: neither a file nor a block device",
            hint="Correct <source> in a copy of its XML.",
        )
    return stat.S_ISBLK(mode)


def _cannot_open(domain: OwnDomain, what: str, path: Path, error: OSError) -> UsageError:
    hint = "The disks must be on this host; otherwise correct <source> in a copy of its XML."
    if path.is_relative_to(STAND_INS):
        hint = f"Put a copy of the disk there: qemu-img convert -O qcow2 DISK {path}"
    return UsageError(f"cannot open {what} of '{domain.name}', {path}: {error.strerror}", hint=hint)


def _told(domain: OwnDomain, disk: OwnDisk, path: str, kind: str) -> Mapping[str, object]:
    _check_kind(domain, f"disk {disk.name}", Path(path))
    try:
        told: Mapping[str, object] = parse_json(
            run(
                ["qemu-img", "info", "--output=json", "-f", kind, path],
                deadline=Deadline.after(30, f"reading {path}"),
            ).stdout
        )
    except ProcessError as error:
        if _LOCKED in error.completed.stderr:
            raise _in_use(domain, disk) from error
        raise UsageError(
            f"disk {disk.name} of '{domain.name}', {path}, is not a readable {kind}: "
            f"{error.completed.stderr.strip()}",
            hint="Set its format in the domain's XML (<driver type=…/>), and do not move its "
            "backing files.",
        ) from error
    return told


def _outside_file(layer: Mapping[str, object]) -> str | None:
    specific = layer.get("format-specific")
    data = specific.get("data") if isinstance(specific, Mapping) else None
    return data.get("data-file") if isinstance(data, Mapping) else None


def _in_use(domain: OwnDomain, disk: OwnDisk) -> HostError:
    return HostError(
        f"disk {disk.name} of '{domain.name}' is in use: {disk.path}",
        hint="Shut the domain down ('virsh shutdown'), or unmount it.",
    )


XML = "domain.xml"
"""Owner's XML in the run's folder: a resumed run takes the domain from there."""

_OF_XML = frozenset(
    ("pin", "vcpu_sched", "emulator_sched", "iothread_sched", "iothreads")
    + ("cpu", "kvm", "hyperv", "timers", "memory", "disk", "network")
)
"""Keys of a tuning that are set in the domain's XML, except `_OUTSIDE_XML`."""
_OUTSIDE_XML = (("pin", "vhost"), ("pin", "partition"))
"""Pins that libvirt has no element for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnGuest:
    """Describe a domain that a run copies. `asked`: the given name or file."""

    asked: str
    domain: OwnDomain
    keep_network: bool
    disks_as_found: Mapping[str, tuple[int, int]]
    """Disk to its size and time of last change in ns (0 for block devices, which have none)."""
    files_as_found: Mapping[Path, tuple[int, ...]] = field(default_factory=dict)
    """File that a copy opens in place, to its identity when it was checked: backing files are
    nowhere else in the plan."""

    def check(self) -> None:
        """Raise HostError if a disk was changed or a checked file was replaced since: the copies'
        guests would then not all read the same disk."""
        now = _looks(self.domain)
        changed = [name for name, look in self.disks_as_found.items() if now.get(name) != look]
        if changed:
            raise HostError(
                f"disk {', '.join(changed)} of '{self.domain.name}' changed during the run",
                hint="Leave the domain shut off while labctl measures its copy; start a new run.",
            )
        for path, found in self.files_as_found.items():
            if _identity(path) != found:
                raise HostError(
                    f"{path}, which a copy of '{self.domain.name}' opens, was replaced or "
                    "changed during the run",
                    hint="Do not change the files of the domain while labctl measures its copy.",
                )

    @property
    def record(self) -> DomainUsed:
        """Return its entry in run.json."""
        content = {"xml": self.domain.xml, "disks": dict(self.disks_as_found)}
        return DomainUsed(
            name=self.domain.name,
            asked=self.asked,
            keep_network=self.keep_network,
            digest=hashlib.sha256(canonical(content).encode()).hexdigest(),
        )


def domain_asked_for(asked: str, connect: str | None) -> OwnDomain:
    """Return the domain in a file, or of that name at the connection `connect`; raises
    UsageError."""
    if is_file(asked):
        try:
            first, comma, second = asked.rpartition(",")
            flavor = _content(Path(first)) if comma and not os.path.exists(asked) else None
            data = _content(Path(second if flavor is not None else asked))
            is_xml, what = asked.endswith(".xml"), f"the file '{asked}'"
            return domain_of_file(data, what, is_xml=is_xml, flavor=flavor)
        except OSError as error:
            raise UsageError(
                f"cannot read {asked}: {error.strerror}",
                hint="Make it with: virsh dumpxml --inactive NAME > NAME.xml"
                if asked.endswith(".xml")
                else "Give the path of a VM's file; docs/own-vm.md has the forms.",
            ) from error
    if connect is None:
        raise UsageError(
            f"labctl's embedded libvirt has no domain '{asked}'",
            hint="Add '--connect qemu:///system', or pass a file with the suffix .xml.",
        )
    with Session.connected(connect) as session:
        return own_domain(session.domain_xml(asked), f"domain '{asked}'")


def _content(path: Path) -> bytes:
    """Read just enough of the file to see whether it is too large."""
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


def is_file(asked: str) -> bool:
    """Return whether a user means a file, not the name of a domain."""
    return asked.endswith(SUFFIXES) or "/" in asked


def read_own(asked: str, *, connect: str | None, keep_network: bool) -> OwnGuest:
    """Return the domain to copy. Only reads.

    Raises UsageError if it does not exist or cannot be copied; HostError if it is not shut off or a
    disk of it is in use.
    """
    domain = domain_asked_for(asked, connect)
    if keep_network and connect is None and "network" in domain.networks:
        raise UsageError(
            f"'{domain.name}' is on a libvirt network, which the embedded driver does not support",
            hint="Add '--connect qemu:///system', or leave out --keep-network.",
        )
    if connect is not None and not is_file(asked):
        with Session.connected(connect) as session:
            session.check_shut_off(asked)
    return _own_guest(asked, domain, keep_network)


def own_of_run(folder: RunFolder, recorded: DomainUsed | None) -> OwnGuest | None:
    """Return the domain that a run was started with; None if it measures an image."""
    if recorded is None:
        return None
    domain = own_domain(_content(folder.path / XML), f"domain '{recorded.asked}'")
    return _own_guest(recorded.asked, domain, recorded.keep_network)


def check_room(domain: OwnDomain, topology: Topology, remedy: str | None = None) -> None:
    """Raise UsageError if the domain has more vCPUs than labctl may pin to CPUs of its own.
    `remedy`: an alternative, in words."""
    if domain.vcpus > len(topology.pinnable):
        other = f", {remedy}" if remedy else ""
        raise UsageError(
            f"'{domain.name}' has {domain.vcpus} vCPUs, but labctl may use only CPUs "
            f"{format_cpus(topology.pinnable)} here",
            hint=f"Use a host with as many CPUs{other}, or pass a copy of its XML with fewer "
            "vCPUs in <vcpu>.",
        )


def check_places(domain: OwnDomain, topology: Topology) -> None:
    """Raise UsageError if the domain's own pins name CPUs or nodes that labctl cannot use here:
    libvirt would start no guest."""
    cpus, nodes = named_places(domain)
    for what, absent, here in (
        ("CPU", cpus - topology.pinnable, topology.pinnable),
        ("NUMA node", nodes - topology.memory_nodes, topology.memory_nodes),
    ):
        if absent:
            raise UsageError(
                f"'{domain.name}' is bound to {what} {format_cpus(absent)}, but labctl may "
                f"use only {format_cpus(here)} here",
                hint="Use its host, or a copy of its XML with other sets in <vcpu>, <cputune> "
                "and <numatune>.",
            )


def own_study(study: Study, own: OwnGuest, vcpus: int | None, memory_mib: int | None) -> Study:
    """Return the study for the domain: with its vCPUs and its memory, and without the native role.
    Raises UsageError if the command line asks for others."""
    if vcpus is not None or memory_mib is not None:
        raise UsageError(
            f"'{own.domain.name}' has its own vCPUs and memory ({own.domain.vcpus} vCPUs, "
            f"{own.domain.memory_mib} MiB)",
            hint="Leave out --vcpus and --memory, or edit a copy of its XML.",
        )
    # labctl adds one data disk to the copy.
    shape = replace(
        study.guest, vcpus=own.domain.vcpus, memory_mib=own.domain.memory_mib, data_disks=1
    )
    return replace(study, guest=shape, roles=replace(study.roles, native=None))


def misfits(
    domain: OwnDomain,
    tunings: Mapping[str, Tuning],
    baseline: Tuning,
    pin_plans: Mapping[Strategy, PinPlan],
    accelerator: str,
) -> dict[str, list[Unmet]]:
    """Return tunings that the domain cannot be measured with, and why."""
    found = {}
    for name, tuning in tunings.items():
        if reasons := list(_misfit(domain, tuning, baseline, pin_plans, accelerator)):
            found[name] = reasons
    return found


def refuse_misfit(domain: OwnDomain, tuning: Tuning, reasons: Sequence[Unmet]) -> None:
    """Raise UsageError for a tuning that was requested by name and does not fit; do nothing if
    `reasons` is empty."""
    if reasons:
        raise UsageError(
            f"'{domain.name}' can't be measured with '{tuning.name}': "
            + "; ".join(reason.text for reason in reasons),
            hint=" ".join(dict.fromkeys(reason.remedy for reason in reasons)),
        )


def _misfit(
    domain: OwnDomain,
    tuning: Tuning,
    baseline: Tuning,
    pin_plans: Mapping[Strategy, PinPlan],
    accelerator: str,
) -> Iterator[Unmet]:
    if tuning.kind is Kind.NATIVE:
        yield Unmet(
            text=f"the file system of '{domain.name}' is not available natively",
            remedy="Compare with its own baseline.",
        )
        return
    if tuning.guest.command_line and not domain.has_command_line:
        words = " ".join(tuning.guest.command_line)
        yield Unmet(
            text=f"the boot loader of '{domain.name}' says its kernel's command line",
            remedy=f"Add '{words}' in the guest, and measure it as one more domain.",
        )
    plan = pin_plans.get(tuning.pin.strategy)
    changed = changes(tuning, baseline)
    if plan is None or not changed or not all(map(_is_of_xml, changed)):
        return  # changes of the host, the guest or the boot need nothing of the XML
    if not is_changed(domain, tuning, plan, baseline, accelerator):
        yield Unmet(
            text=f"'{domain.name}' has all of it already, or nothing that it would change",
            remedy=f"'labctl tuning diff {baseline.name} {tuning.name}' shows what it is about.",
        )
    xml = compared(domain, tuning, plan, baseline, accelerator)
    for problem in problems(xml, plan, rt_runtime_us(tuning)):
        if problem.refused:
            yield Unmet(text=problem.text, remedy=problem.hint)


def durabilities(
    domain: OwnDomain,
    tunings: Mapping[str, Tuning],
    baseline: Tuning,
    pin_plans: Mapping[Strategy, PinPlan],
    accelerator: str,
) -> dict[str, str]:
    """Return the durability of the domain's disks under each tuning that fits it (METHOD 10): the
    cache mode is that of its own XML unless the tuning sets it."""
    return {
        name: durability(
            compared(domain, tuning, pin_plans[tuning.pin.strategy], baseline, accelerator)
        )
        for name, tuning in tunings.items()
        if tuning.kind is Kind.GUEST
    }


def outside_xml(tuning: Tuning, baseline: Tuning) -> list[str]:
    """Return what a tuning changes on the host or in the guest rather than in the domain's XML, one
    `key: value` each."""
    changed = changes(tuning, baseline).items()
    return [f"{dotted(key)}: {word(value)}" for key, value in changed if not _is_of_xml(key)]


def _is_of_xml(key: Key) -> bool:
    """Return whether it is set in the domain's XML."""
    return key[0] in _OF_XML and key not in _OUTSIDE_XML


def _own_guest(asked: str, domain: OwnDomain, keep_network: bool) -> OwnGuest:
    check_copyable(domain)
    return OwnGuest(
        asked=asked,
        domain=domain,
        keep_network=keep_network,
        files_as_found={path: _identity(path) for path in check_files(domain)},
        disks_as_found=_looks(domain),
    )


def _identity(path: Path) -> tuple[int, ...]:
    """Return the identity and state of the file at a path; () if there is none."""
    try:
        seen = path.stat()
    except OSError:
        return ()
    if stat.S_ISBLK(seen.st_mode):
        return (seen.st_rdev,)
    return (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)


def _looks(domain: OwnDomain) -> dict[str, tuple[int, int]]:
    found = {}
    for disk in domain.disks:
        try:
            seen = disk.path.stat()
        except OSError:
            continue  # a missing file is a change
        found[disk.name] = (
            (0, 0) if stat.S_ISBLK(seen.st_mode) else (seen.st_size, seen.st_mtime_ns)
        )
    return found
