"""Find what tells this host from every other one: to be left out of what is passed on."""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

HOST_NAME, MACHINE_ID, SERIAL, ADDRESS = "host-name", "machine-id", "serial", "address"
USER, GROUP, MAC, INTERFACE = "user", "group", "mac", "interface"

_SERIALS = (
    *("sys/class/dmi/id/*_serial", "sys/class/dmi/id/*_asset_tag"),
    *("sys/block/*/serial", "sys/block/*/device/serial", "sys/block/*/device/wwid"),
    "sys/block/*/wwid",
)
"""Documentation/ABI/testing/sysfs-firmware-dmi-entries and sysfs-block; most are root's alone."""

_COMMONPLACE = frozenset(
    (
        *("(none)", "debian", "fedora", "guest", "host", "kvm", "labctl", "linux", "localhost"),
        *("machine", "qemu", "root", "server", "test", "ubuntu", "virtual", "vm", "workstation"),
    )
)
"""Host names that name no host, and that are words of what tools print."""

_NO_NAMES = _COMMONPLACE | {
    *("admin", "administrator", "build", "builder", "centos", "cloud-user", "daemon", "dev"),
    *("ec2-user", "home", "nobody", "runner", "sudo", "user", "vagrant", "worker", "www-data"),
}
"""Names of users that identify no one."""

_USUAL_INTERFACE = re.compile(
    r"lo|(?:eth|wlan|vnet|virbr|tap|tun|macvtap|br|bond|team|dummy|docker|veth|ifb|wg|usb|ib)[0-9]*"
    r"(?:-nic)?|veth[0-9a-f]{5,9}|(?:en|wl|ww|ib)(?:o|P?[0-9]*p[0-9]+)?[spdfnvu0-9]*|labctl.*"
    r"|(?:en|wl)x[0-9a-f]{12}|br-[0-9a-f]{12}|gre0|gretap0|erspan0|sit0|ip6?tnl0|tunl0|ip6?_vti0"
    r"|ip6gre0|teql0"
)
"""systemd.net-naming-scheme(7), and what modules of the kernel make. What has a MAC address in it
is found by that."""

_SHORTEST_SERIAL = 5
_PEOPLE = range(1000, 60_000)
"""User ids of people (login.defs(5), UID_MIN and UID_MAX)."""


def read_identity(root: Path = Path("/")) -> dict[str, str]:
    """Return each text that identifies the host to what it is, one of the kinds above.

    UUIDs are not among them: they are known by their form. `root`: of /proc, /sys and /etc;
    addresses and interfaces are this process's network namespace's.
    """
    found: dict[str, str] = {}
    for text, kind in (*_names(root), *_serials(root), *_addresses(), *_interfaces()):
        found.setdefault(text, kind)
    return found


def read_users(*ids: int) -> dict[str, str]:
    """Return names of the host's people, of the caller, of who typed sudo, and of the users `ids`;
    and the full names that the password file has of them."""
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
        pass  # there may be none
    return {name: USER for name in sorted(names) if not is_no_name(name)}


def read_groups() -> dict[str, str]:
    """Return names of the groups that were made for the host's people."""
    names = {group.gr_name for group in grp.getgrall() if group.gr_gid in _PEOPLE}
    return {name: GROUP for name in sorted(names) if not is_no_name(name)}


def is_usual_interface(name: str) -> bool:
    """Return whether a kernel, systemd, libvirt or a container engine names interfaces so."""
    return _USUAL_INTERFACE.fullmatch(name) is not None


def is_no_name(text: str) -> bool:
    """Return whether a host's or user's name names none, or is too short to be told from other
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
            # "None", "Not Specified", "To Be Filled By O.E.M.", "0": nobody has given it one.
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
