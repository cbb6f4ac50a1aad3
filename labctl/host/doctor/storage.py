"""Check the state folder: free space, file system, disk."""

from __future__ import annotations

from labctl.host.doctor.check import Check, Result, Scope, block, fine, size, unknown, warn
from labctl.host.doctor.reader import Reader
from labctl.host.settings.tunables import selected

GROUP = "storage"
_IN_MEMORY = ("tmpfs", "ramfs")
_STACKED = ("overlay", "fuse", "9p", "nfs", "nfs4", "virtiofs")


def room(reader: Reader, scope: Scope) -> Result:
    free = reader.free_bytes(scope.state_folder)
    shown = f"{size(free)} free in {scope.state_folder}, {size(scope.disk_bytes)} needed"
    value = {"free_bytes": free, "needed_bytes": scope.disk_bytes}
    if free < scope.disk_bytes:
        return block(
            shown, "labctl --state-dir FOLDER sweep STUDY  # a folder on another disk", value
        )
    return fine(shown, value)


def file_system(reader: Reader, scope: Scope) -> Result:
    number = reader.device(scope.state_folder)
    for line in (reader.text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == number:
            break
    else:
        return unknown(f"device {number} is not in /proc/self/mountinfo")
    kind = right.split()[0]
    elevator = _elevator(reader, number)
    value = {"file_system": kind, "elevator": elevator}
    shown = f"{kind}, elevator {elevator}" if elevator else kind
    if kind in _IN_MEMORY:
        return warn(
            f"{shown}: in memory, which is not a disk and uses memory that the guest needs",
            "labctl --state-dir FOLDER sweep STUDY  # a folder on a disk",
            value,
        )
    if kind.partition(".")[0] in _STACKED:
        return warn(
            f"{shown}: another file system below it has its own cache",
            "labctl --state-dir FOLDER sweep STUDY  # a folder on a local disk",
            value,
        )
    return fine(shown, value)


def _elevator(reader: Reader, number: str) -> str | None:
    """Return the elevator of the disk below a file system; a partition has that of its disk, one
    folder up."""
    for queue in ("queue", "../queue"):
        text = reader.text(f"/sys/dev/block/{number}/{queue}/scheduler")
        if text:
            return selected(text)
    return None


CHECKS = (
    Check(
        "state-folder",
        GROUP,
        "Snapshots contain the guest's memory; data disks are fully allocated.",
        room,
    ),
    Check(
        "file-system",
        GROUP,
        "It holds the guest's disks and fio's native file, so cache modes and O_DIRECT "
        "depend on it.",
        file_system,
    ),
)
