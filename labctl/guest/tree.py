"""Change an image's tree from the host, resolving links as in the guest: an absolute link of a tree
must never lead onto the host."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from labctl.base import process
from labctl.base.process import Deadline, ProcessError
from labctl.base.trust import held_in_tree


def copy_tree(source: Path, target: Path, deadline: Deadline, *, by_links: bool = False) -> None:
    """Copy a tree with all attributes of its files. `by_links`: both have the same files from then
    on, for a copy in which files are only added or replaced; on another file system, or across a
    mount, they are copied all the same."""
    places = [str(source.resolve()), str(target)]
    if by_links:
        try:
            process.run(["cp", "--archive", "--link", *places], deadline=deadline)
            return
        except ProcessError:
            shutil.rmtree(target, ignore_errors=True)
    process.run(["cp", "--archive", "--reflink=auto", *places], deadline=deadline)


def write_file(root: Path, name: str, data: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file of a tree, replacing anything of that name; missing folders are made."""
    with _folder_of(root, name, make=True) as (folder, own):
        _remove(folder, own)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(own, flags, mode, dir_fd=folder), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data.encode() if isinstance(data, str) else data)


def remove_file(root: Path, name: str) -> None:
    """Remove a file or link of a tree, if it is there."""
    try:
        with _folder_of(root, name) as (folder, own):
            _remove(folder, own)
    except FileNotFoundError:
        pass  # its folder is missing, too


def make_link(root: Path, name: str, target: str) -> None:
    """Make a link of a tree, replacing anything of that name."""
    with _folder_of(root, name, make=True) as (folder, own):
        _remove(folder, own)
        os.symlink(target, own, dir_fd=folder)


def empty_folder(root: Path, name: str) -> None:
    """Make an empty folder of a tree."""
    with _folder_of(root, name, make=True) as (folder, own):
        shutil.rmtree(own, ignore_errors=True, dir_fd=folder)
        os.mkdir(own, 0o755, dir_fd=folder)


def folder_in(root: Path, name: str) -> Path:
    """Return a tree's folder on the host, without links; it is made if needed."""
    with held_in_tree(root, name, make=True) as folder:
        return Path(os.readlink(f"/proc/self/fd/{folder}"))


def read_file(root: Path, name: str) -> bytes | None:
    """Return the content of a regular file of a tree; None if there is none."""
    try:
        with _folder_of(root, name) as (folder, own):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(own, flags, dir_fd=folder), "rb") as file:
                return file.read()
    except OSError:
        return None


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


@contextmanager
def _folder_of(root: Path, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    path = PurePosixPath("/", name)
    with held_in_tree(root, str(path.parent), make=make) as folder:
        yield folder, path.name


# Make the disk of an image: one ext4 file system without partitions, from a tree.


_METADATA = 1.1
_SPARE_MIB = 256


def fitting_mib(tree_bytes: int, least_mib: int) -> int:
    """Return the size of a disk on which a tree fits with room to write, `least_mib` or more."""
    return max(least_mib, math.ceil(tree_bytes * _METADATA / 2**20) + _SPARE_MIB)


def make_disk(tree: Path, disk: Path, size_mib: int, root_uuid: str, deadline: Deadline) -> None:
    """Write a compressed qcow2 image with the tree's files in it."""
    raw = disk.with_name("disk.raw")
    # Initialize tables and journal now: otherwise the guest's kernel would do it beside the
    # workload (ext4lazyinit), and each restore would find it in another state.
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
