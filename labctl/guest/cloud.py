"""Unpack a cloud image to a tree: its root file system as files, plus the recipe's packages.

The root is mounted read-only through a loop device, in a mount namespace that ends with the copy:
nothing else sees it and nothing is left to undo. A copy by `debugfs rdump` would do without a
mount, but loses hard links, set-user-ID bits and file capabilities.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, UsageError
from labctl.base.events import Listener, Note
from labctl.base.jsontext import parse_json
from labctl.guest import chroot
from labctl.guest.recipe import CloudImage, Recipe

_COPY = 'mkdir "$3"; mount -o "$1" "$2" "$3"; cp -a "$3/." "$4"'
"""Script that copies a partition ($2), mounted at $3, to a folder $4."""


@dataclass(frozen=True, slots=True)
class Partition:
    start_bytes: int
    size_bytes: int


def refuse_what_cannot_be_built(recipe: Recipe) -> None:
    """Raise UsageError for an image that labctl can download and verify, but not build from."""
    cloud = recipe.spec.cloud_image
    if cloud is not None and cloud.packages_by != "apt":
        raise UsageError(
            f"no guest image can be built of '{recipe.name}': its packages come by "
            f"{cloud.packages_by}, and labctl adds what its workloads need with apt alone",
            hint=f"'labctl image fetch {recipe.name}' downloads and verifies it, for a VM of your "
            "own. For sweeps take a recipe of Debian or Ubuntu.",
        )


def make_tree(
    file: Path, cloud: CloudImage, tree: Path, deadline: Deadline, listener: Listener
) -> None:
    """Copy the root file system of a verified cloud image, with its /boot, into a new folder.

    Raises BrokenError when it has no root on ext4.
    """
    listener(Note(text="Copying the files of the cloud image"))
    raw = tree.with_name("cloud.raw")
    _check_is_whole(file, cloud, deadline)
    convert = ["qemu-img", "convert", "-f", cloud.format, "-O", "raw"]
    process.run([*convert, str(file), str(raw)], deadline=deadline)
    try:
        roots, boots = [], []
        for number, partition in enumerate(_ext4_partitions(raw, deadline)):
            copied = tree.with_name(f"partition-{number}")
            copied.mkdir()
            _copy(raw, partition, copied, deadline)
            shutil.rmtree(copied / "lost+found", ignore_errors=True)
            if (copied / "etc/os-release").is_symlink() or (copied / "etc/os-release").exists():
                roots.append(copied)
            elif any(copied.glob("vmlinuz-*")):
                boots.append(copied)
        if len(roots) != 1:
            raise BrokenError(
                f"{file} has {len(roots)} root file systems on ext4, not one",
                hint="labctl takes cloud images of Debian and Ubuntu; other file systems than "
                "ext4 are not read.",
            )
        roots[0].rename(tree)
        for boot in boots:
            # Ubuntu's, a partition of its own.
            shutil.rmtree(tree / "boot")
            boot.rename(tree / "boot")
    finally:
        raw.unlink()


def add_packages(tree: Path, recipe: Recipe, deadline: Deadline, listener: Listener) -> None:
    """Install the recipe's packages with the tree's own apt, chrooted into it.

    They come from the host's sources where they are of the same release, else from the image's.
    No service is started, and nothing of the host stays in the tree.
    """
    packages = recipe.spec.packages
    listener(Note(text=f"Installing {len(packages)} packages and what they need"))
    if not (tree / "usr/bin/apt-get").exists():
        raise BrokenError(
            "the cloud image has no apt", hint="labctl builds on those of Debian and Ubuntu."
        )
    chroot.install(tree, packages, recipe.spec.exclude, deadline)


def _check_is_whole(file: Path, cloud: CloudImage, deadline: Deadline) -> None:
    """Refuse an image that names other files, which have no signature."""
    info = ["qemu-img", "info", "-f", cloud.format, "--output=json", str(file)]
    told = parse_json(process.run(info, deadline=deadline).stdout)
    data_file = told.get("format-specific", {}).get("data", {}).get("data-file")
    if other := told.get("backing-filename") or data_file:
        raise BrokenError(f"{file} is no whole image: it refers to '{other}'")


def _ext4_partitions(raw: Path, deadline: Deadline) -> list[Partition]:
    """Raise BrokenError when the file has no partition table."""
    partx = ["partx", "--raw", "--noheadings", "--bytes", "--output", "START,SIZE"]
    listed = process.run([*partx, str(raw)], deadline=deadline, check=False)
    partitions = partitions_of(listed.stdout) if listed.returncode == 0 else []
    if not partitions:
        raise BrokenError(f"{raw.name} has no partitions: it is no disk of a cloud image")
    found = []
    for partition in partitions:
        probe = ["blkid", "--probe", "--output", "value", "--match-tag", "TYPE"]
        offset = ["--offset", str(partition.start_bytes)]
        told = process.run([*probe, *offset, str(raw)], deadline=deadline, check=False)
        if told.stdout.strip() == "ext4":
            found.append(partition)
    return found


def partitions_of(listing: str) -> list[Partition]:
    """Parse partx's lines of start (in sectors of 512 bytes) and size (in bytes)."""
    return [
        Partition(int(start) * 512, int(size))
        for line in listing.splitlines()
        if len(words := line.split()) == 2 and all(word.isdecimal() for word in words)
        for start, size in [words]
    ]


def _copy(raw: Path, partition: Partition, target: Path, deadline: Deadline) -> None:
    # Without its journal: a clean root has nothing in it, and the file is not to be written to.
    where = f"offset={partition.start_bytes},sizelimit={partition.size_bytes}"
    mount_point = target.with_name(f"{target.name}.mounted")
    namespace = ["unshare", "--mount", "--propagation", "private"]
    arguments = [f"ro,noload,loop,{where}", str(raw), str(mount_point), str(target)]
    try:
        process.run(
            [*namespace, "sh", "-euc", _COPY, "sh", *arguments],
            deadline=deadline,
            hint="The kernel needs loop devices (modprobe loop) and ext4 to read a cloud image.",
        )
    finally:
        if mount_point.exists():
            mount_point.rmdir()
