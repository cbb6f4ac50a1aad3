"""Make the disk of an image: one ext4 file system without partitions, made of a tree."""

from __future__ import annotations

import math
from pathlib import Path

from labctl.base import process
from labctl.base.deadline import Deadline

_METADATA = 1.1
_SPARE_MIB = 256


def fitting_mib(tree_bytes: int, least_mib: int) -> int:
    """Return the size of a disk that a tree fits on with room to write, `least_mib` or more."""
    return max(least_mib, math.ceil(tree_bytes * _METADATA / 2**20) + _SPARE_MIB)


def make_disk(tree: Path, disk: Path, size_mib: int, root_uuid: str, deadline: Deadline) -> None:
    """Write a compressed qcow2 image with the tree's files in it."""
    raw = disk.with_name("disk.raw")
    # Tables and journal initialized now: the guest's kernel would do it beside the workload
    # (ext4lazyinit), and each restore would find it elsewhere.
    options = "lazy_itable_init=0,lazy_journal_init=0"
    make = ["mke2fs", "-q", "-t", "ext4", "-L", "labctl-root", "-U", root_uuid, "-E", options]
    process.run(
        [*make, "-d", str(tree), str(raw), f"{size_mib}M"],
        deadline=deadline,
        hint="If the files do not fit, raise 'size_mib' in the recipe.",
    )
    convert = ["qemu-img", "convert", "-O", "qcow2", "-c", "-o", "compression_type=zstd", "-W"]
    process.run([*convert, str(raw), str(disk)], deadline=deadline)
    raw.unlink()
