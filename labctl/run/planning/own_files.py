"""Check files that the administrator's own domain names before a copy opens them: disks at rest,
with every file that they are based on; firmware and a kernel that only root on this host can
change."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from labctl.base.deadline import Deadline
from labctl.base.errors import HostError, UsageError
from labctl.base.jsontext import parse_json
from labctl.base.process import ProcessError, run
from labctl.base.trust import doubt
from labctl.domain.foreign.foreign_domain import FORMATS, OwnDisk, OwnDomain

FIRMWARE_FOLDERS: Final = tuple(
    Path("/usr/share", name)
    for name in ("OVMF", "ovmf", "AAVMF", "edk2", "edk2-ovmf", "qemu", "seabios")
)
"""Folders in which distributions put the firmware of guests."""

MOST_LAYERS: Final = 64
"""Files that a disk is based on, one on the other."""

_LOCKED = "lock"
"""Part of qemu-img's message about a file that another QEMU writes to."""


def check_files(domain: OwnDomain) -> tuple[Path, ...]:
    """Return the files that a copy opens where they are, those that disks are based on included.

    Raises UsageError for a file that no copy may open, HostError for a disk in use.
    """
    opened = [*domain.firmware, *domain.boot_files]
    for path in domain.firmware:
        _check_firmware(domain, path)
    for path in domain.boot_files:
        if why := doubt(path) or _why_no_file(path):
            raise UsageError(
                f"'{domain.name}' boots {path}, and {why}",
                hint="Give a kernel and an initrd that only you or root can change, in folders of "
                "which the same is true.",
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
        why = f"{real} is not root's"
    if why is None and not any(real.is_relative_to(folder) for folder in FIRMWARE_FOLDERS):
        why = f"{real} is in none of {', '.join(map(str, FIRMWARE_FOLDERS))}"
    if why is not None:
        raise UsageError(
            f"'{domain.name}' starts the firmware {path}, and {why}",
            hint="Name firmware of this host's own packages in <loader>, in a copy of its XML.",
        )


def _why_no_file(path: Path) -> str | None:
    return None if path.is_file() else f"{path} is no file"


def _check_at_rest(domain: OwnDomain, disk: OwnDisk) -> list[Path]:
    """Return the disk's files, as `_check_chain` does.

    Raises HostError while another process writes to the disk: QEMU's own locks tell of QEMUs, on
    other hosts of a shared file system as well; O_EXCL tells of mounts (open(2)). Raises UsageError
    for a disk that isn't what the XML says, or that lacks a part.
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
    """Return the disk's file and each that it is based on, which is opened only when its name is
    that of a file: a header could name a host of the network, or QEMU's options."""
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
            said = f"says that it is '{kind}'" if kind else "doesn't say of which format it is"
            raise UsageError(
                f"{path}, of disk {disk.name} of '{domain.name}', is based on {base} and {said}: "
                f"labctl opens {' and '.join(FORMATS)}",
                hint=f"Say it: qemu-img rebase -u -F FORMAT -b {base} {path}",
            )
        if re.match("[A-Za-z0-9+_-]*:", str(base)) or not str(base).startswith("/"):
            raise UsageError(
                f"{path}, of disk {disk.name} of '{domain.name}', is based on {base}, which is no "
                "file by an absolute path",
                hint="Give a copy of it: qemu-img convert -O qcow2 DISK COPY",
            )
        path = str(base)
    raise UsageError(
        f"disk {disk.name} of '{domain.name}' is based on more than {MOST_LAYERS} files",
        hint="Give a copy of it: qemu-img convert -O qcow2 DISK COPY",
    )


def _check_kind(domain: OwnDomain, what: str, path: Path) -> bool:
    """Return whether the file of a disk or of variables is a block device. Raises UsageError for
    what is no file either: opening a pipe may wait for ever, opening another device do anything."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _cannot_open(domain, what, path, error) from error
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        raise UsageError(
            f"{what} of '{domain.name}', {path}: neither a file nor a block device",
            hint="Mend <source> in a copy of its XML.",
        )
    return stat.S_ISBLK(mode)


def _cannot_open(domain: OwnDomain, what: str, path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot open {what} of '{domain.name}', {path}: {error.strerror}",
        hint="labctl copies domains whose disks lie on this host; mend <source> in a copy of "
        "its XML if they lie elsewhere.",
    )


def _told(domain: OwnDomain, disk: OwnDisk, path: str, kind: str) -> Mapping[str, Any]:
    _check_kind(domain, f"disk {disk.name}", Path(path))
    try:
        told: Mapping[str, Any] = parse_json(
            run(
                ["qemu-img", "info", "--output=json", "-f", kind, path],
                deadline=Deadline.after(30, f"looking at {path}"),
            ).stdout
        )
    except ProcessError as error:
        if _LOCKED in error.completed.stderr:
            raise _in_use(domain, disk) from error
        raise UsageError(
            f"disk {disk.name} of '{domain.name}', {path}, is no {kind} that can be "
            f"read: {error.completed.stderr.strip()}",
            hint="Say its format in the domain's XML (<driver type=…/>), and keep the files that "
            "it is based on where it names them.",
        ) from error
    return told


def _outside_file(layer: Mapping[str, Any]) -> str | None:
    specific = layer.get("format-specific")
    data = specific.get("data") if isinstance(specific, Mapping) else None
    return data.get("data-file") if isinstance(data, Mapping) else None


def _in_use(domain: OwnDomain, disk: OwnDisk) -> HostError:
    return HostError(
        f"disk {disk.name} of '{domain.name}' is in use: {disk.path}",
        hint="Shut the domain down ('virsh shutdown'), or unmount it.",
    )
