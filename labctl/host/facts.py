"""Read the host's facts: kernel, CPUs, settings, the file system of the state folder, versions."""

from __future__ import annotations

import grp
import gzip
import os
import pwd
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from labctl.base import process
from labctl.base.errors import LabctlError
from labctl.base.paths import StatePaths
from labctl.base.process import Deadline
from labctl.host import cgroups
from labctl.host.machines import Facts, Texts, machine_facts, running_machines, unavailable
from labctl.host.settings.tunables import selected

QEMU = "qemu-system-x86_64"


def host_facts(places: StatePaths) -> Facts:
    """Return every fact of `machine_facts` about this host, and the facts that only a host has.

    No host name, address or serial number is among them, because reports are passed on.
    """
    layout = cgroups.detect()
    facts = machine_facts(read_host_files)
    facts["cgroups"] = {
        "layout": layout.name,
        "controllers": {name: h.version for name, h in sorted(layout.controllers.items())},
        "cpu_sharing": cgroups.cpu_sharing(layout, cgroups.autogroup_enabled()).sentence,
    }
    facts["state_folder"] = folder_facts(places.root)
    facts["other_guests"] = sum(not machine.is_ours for machine in running_machines())
    facts["cpus_allowed"] = len(os.sched_getaffinity(0))
    facts["hypervisor_vendor"] = hypervisor_vendor()
    facts["qemu"] = tool_version([QEMU, "--version"])
    facts["perf"] = tool_version(["perf", "--version"])
    facts["libvirt"] = libvirt_version()
    return dict(sorted(facts.items()))


def read_host_files(paths: Sequence[str]) -> Texts:
    """Return the texts of files of this host, None for one that can't be read; .gz is unpacked."""
    return {path: _read(path) for path in paths}


def folder_facts(folder: Path) -> dict[str, object]:
    """Return file system, disk and I/O scheduler below a folder, or below its nearest parent."""
    while not folder.exists():
        folder = folder.parent
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    file_system: Any = unavailable(f"device {number} is not in /proc/self/mountinfo")
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == number:
            file_system = right.split()[0]
    block = Path(f"/sys/dev/block/{number}")
    if not block.exists():
        reason = unavailable("the file system lies on no single block device")
        return {"file_system": file_system, "disk": reason, "scheduler": reason}
    disk = block.resolve()
    if (disk / "partition").exists():
        disk = disk.parent
    scheduler = _read(str(disk / "queue/scheduler"))
    return {
        "file_system": file_system,
        "disk": disk.name,
        "scheduler": selected(scheduler) if scheduler else unavailable("the disk has no queue"),
    }


def hypervisor_vendor() -> Any:
    """Return the vendor of the hypervisor that this host itself runs under ("none": no hypervisor),
    as far as the host shows it."""
    try:
        done = process.run(
            ["systemd-detect-virt", "--vm"], deadline=Deadline.after(10, "asking"), check=False
        )
    except LabctlError as error:
        return unavailable(error.message)
    return done.stdout.strip() or unavailable("systemd-detect-virt printed nothing")


def tool_version(argv: Sequence[str]) -> Any:
    """Return the version number in the first line that a tool prints."""
    try:
        printed = process.run(argv, deadline=Deadline.after(20, f"'{argv[0]}'")).stdout
    except LabctlError as error:
        return unavailable(error.message)
    found = re.search(r"\d+(\.\d+)+", printed)
    return found.group(0) if found else unavailable(f"'{' '.join(argv)}' printed no version")


def libvirt_version() -> Any:
    """Return the version of the libvirt library in use (libvirt-python's may differ)."""
    try:
        import libvirt
    except ImportError as error:
        return unavailable(f"libvirt-python can't be loaded: {error}")
    number = int(libvirt.getVersion())
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


def _read(path: str) -> str | None:
    try:
        data = Path(path).read_bytes()
        return (gzip.decompress(data) if path.endswith(".gz") else data).decode(errors="replace")
    except (OSError, EOFError):
        return None


# Find what identifies this host, to leave it out of what is passed on.


HOST_NAME, MACHINE_ID, SERIAL, ADDRESS = "host-name", "machine-id", "serial", "address"
USER, GROUP, MAC, INTERFACE = "user", "group", "mac", "interface"

_SERIALS = (
    *("sys/class/dmi/id/*_serial", "sys/class/dmi/id/*_asset_tag"),
    *("sys/block/*/serial", "sys/block/*/device/serial", "sys/block/*/device/wwid"),
    "sys/block/*/wwid",
)
"""Files from Documentation/ABI/testing/sysfs-firmware-dmi-entries and sysfs-block; only root can
read most."""

_COMMONPLACE = frozenset(
    (
        *("(none)", "debian", "fedora", "guest", "host", "kvm", "labctl", "linux", "localhost"),
        *("machine", "qemu", "root", "server", "test", "ubuntu", "virtual", "vm", "workstation"),
    )
)
"""Host names that identify no host, or are words that tools print."""

_NO_NAMES = _COMMONPLACE | {
    *("admin", "administrator", "build", "builder", "centos", "cloud-user", "daemon", "dev"),
    *("ec2-user", "home", "nobody", "runner", "sudo", "user", "vagrant", "worker", "www-data"),
}
"""User names that identify no one."""

_USUAL_INTERFACE = re.compile(
    r"lo|(?:eth|wlan|vnet|virbr|tap|tun|macvtap|br|bond|team|dummy|docker|veth|ifb|wg|usb|ib)[0-9]*"
    r"(?:-nic)?|veth[0-9a-f]{5,9}|(?:en|wl|ww|ib)(?:o|P?[0-9]*p[0-9]+)?[spdfnvu0-9]*|labctl.*"
    r"|(?:en|wl)x[0-9a-f]{12}|br-[0-9a-f]{12}|gre0|gretap0|erspan0|sit0|ip6?tnl0|tunl0|ip6?_vti0"
    r"|ip6gre0|teql0"
)
"""Interface names from systemd.net-naming-scheme(7) and from kernel modules. Names that contain a
MAC address are found by that address."""

_SHORTEST_SERIAL = 5
_PEOPLE = range(1000, 60_000)
"""User ids of people (login.defs(5), UID_MIN and UID_MAX)."""


def read_identity(root: Path = Path("/")) -> dict[str, str]:
    """Return each text that identifies the host, mapped to its kind (see above).

    UUIDs are not among them: their form identifies them. `root`: of /proc, /sys and /etc; addresses
    and interfaces are those of this process's network namespace.
    """
    found: dict[str, str] = {}
    for text, kind in (*_names(root), *_serials(root), *_addresses(), *_interfaces()):
        found.setdefault(text, kind)
    return found


def read_users(*ids: int) -> dict[str, str]:
    """Return user names of the host's people, of the caller, of the user behind sudo, and of the
    users `ids`, and their full names in the password file."""
    wanted = {os.getuid(), os.geteuid(), *ids}
    if (behind_sudo := os.environ.get("SUDO_UID", "")).isdecimal():
        wanted.add(int(behind_sudo))
    names = {os.environ.get(name, "") for name in ("SUDO_USER", "USER", "LOGNAME")}
    for user in pwd.getpwall():
        if user.pw_uid in wanted or user.pw_uid in _PEOPLE:
            names |= {user.pw_name, user.pw_gecos.partition(",")[0].strip()}
    try:
        names |= set(os.listdir("/home"))
    except OSError:
        pass  # the file may be missing
    return {name: USER for name in sorted(names) if not is_no_name(name)}


def read_groups() -> dict[str, str]:
    """Return names of the groups that were made for the host's people."""
    names = {group.gr_name for group in grp.getgrall() if group.gr_gid in _PEOPLE}
    return {name: GROUP for name in sorted(names) if not is_no_name(name)}


def is_usual_interface(name: str) -> bool:
    """Return whether an interface's name is one that a kernel, systemd, libvirt or a container
    engine gives."""
    return _USUAL_INTERFACE.fullmatch(name) is not None


def is_no_name(text: str) -> bool:
    """Return whether a host's or user's name identifies none, or is too short to tell from other
    words."""
    return len(text) < 3 or text.lower() in _NO_NAMES or text.isdecimal()


def _names(root: Path) -> Iterator[tuple[str, str]]:
    if machine := _text(root / "etc/machine-id"):
        yield machine, MACHINE_ID
    name = _text(root / "proc/sys/kernel/hostname") or ""
    domain = _text(root / "proc/sys/kernel/domainname") or ""
    if "." not in name and domain not in ("", "(none)"):
        yield f"{name}.{domain}", HOST_NAME
    for part in (name, name.partition(".")[0]):
        if len(part) > 1 and part.lower() not in _COMMONPLACE:
            yield part, HOST_NAME


def _serials(root: Path) -> Iterator[tuple[str, str]]:
    for pattern in _SERIALS:
        for path in sorted(root.glob(pattern)):
            text = _text(path) or ""
            # "None", "Not Specified", "To Be Filled By O.E.M.", "0": no serial number was assigned.
            if len(text) >= _SHORTEST_SERIAL and re.search(r"[1-9]", text):
                yield text, SERIAL


def _addresses() -> Iterator[tuple[str, str]]:
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            text = address.address.partition("%")[0]
            is_ip = address.family.name in ("AF_INET", "AF_INET6")
            if is_ip and not text.startswith("127.") and text not in ("::1", "::"):
                yield text, ADDRESS


def _interfaces() -> Iterator[tuple[str, str]]:
    for name, addresses in psutil.net_if_addrs().items():
        if len(name) > 2 and not is_usual_interface(name):
            yield name, INTERFACE
        for address in addresses:
            if address.family.name == "AF_PACKET" and re.search("[1-9a-f]", address.address):
                yield address.address, MAC


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
