"""Remove cgroups of guests that a killed embedded libvirt left behind.

libvirt makes one per guest in each hierarchy that it uses, and removes it when it sees the guest
end. After SIGKILL nobody sees that: the guest is ended by the next labctl, before libvirt opens.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from labctl.host.cgroups import mount_points

_PARTITIONS = ("machine", "machine.slice")
"""Folders of guests' cgroups: libvirt's own, and systemd's, which removes its scopes but not what
libvirt made beside them in v1 hierarchies that systemd doesn't use."""

_EMPTYING_S = 2.0
"""A process has left its cgroup some time after /proc shows no more of it."""


def of_guests(libvirt_root: Path, names: re.Pattern[str], root: Path = Path("/")) -> list[Path]:
    """Return those of guests of these names that a libvirt embedded with that root folder has
    started, whether they live or not, below `root`.

    Their names hold the SHA-256 of the root folder's name (libvirt's
    virDomainDriverGenerateRootHash): neither a daemon's guests nor those of another state folder
    are among them.
    """
    digest = hashlib.sha256(str(libvirt_root).encode()).hexdigest()[:8]
    name = re.compile(
        rf"(machine-)?qemu-embed-{digest}-\d+-(?:{names.pattern})\.(libvirt-qemu|scope)"
    )
    return [
        path
        for folder in _partitions(root)
        for path in sorted(folder.iterdir())
        # systemd.unit(5): a "-" that is no separator is escaped.
        if name.fullmatch(path.name.replace("\\x2d", "-"))
    ]


def remove(group: Path) -> None:
    """Take one away, and what libvirt made in it for the guest's threads; nothing when it is gone.

    Raises OSError, with all of it left in place, when something is still in it.
    """
    deadline = time.monotonic() + _EMPTYING_S
    with suppress(FileNotFoundError):
        while not _is_empty(group):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "there is still a process in it", str(group))
            time.sleep(0.01)
        for folder, _, _ in os.walk(group, topdown=False):
            os.rmdir(folder)


def remove_empty_partitions(root: Path = Path("/")) -> None:
    """Take away the partitions that libvirt made for its guests and leaves behind. systemd's own
    slice stays, and so does what another guest is in."""
    for mount in mount_points(root):
        with suppress(OSError):  # not there, or in use: rmdir(2) takes empty ones alone
            os.rmdir(mount / _PARTITIONS[0])


def _partitions(root: Path) -> Iterator[Path]:
    for mount in mount_points(root):
        for name in _PARTITIONS:
            if (folder := mount / name).is_dir():
                yield folder


def _is_empty(group: Path) -> bool:
    events = group / "cgroup.events"
    if events.exists():
        # On v2 it tells of all below, and in threaded groups cgroup.procs can't be read.
        return "populated 0" in events.read_text(encoding="ascii").splitlines()
    folders = (Path(folder) for folder, _, _ in os.walk(group))
    return not any((folder / "cgroup.procs").read_text(encoding="ascii") for folder in folders)
