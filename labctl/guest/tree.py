"""Change an image's tree from the host, reading links as the guest does: an absolute link of a tree
must never lead onto the host."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.held import held_in_tree


def copy_tree(source: Path, target: Path, deadline: Deadline) -> None:
    """Copy a tree with all that files have."""
    copy = ["cp", "--archive", "--reflink=auto", str(source.resolve()), str(target)]
    process.run(copy, deadline=deadline)


def write_file(root: Path, name: str, data: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file of a tree in place of what has its name; folders that are missing are made."""
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
        pass  # its folder isn't there either


def make_link(root: Path, name: str, target: str) -> None:
    """Make a link of a tree in place of what has its name."""
    with _folder_of(root, name, make=True) as (folder, own):
        _remove(folder, own)
        os.symlink(target, own, dir_fd=folder)


def empty_folder(root: Path, name: str) -> None:
    """Make a folder of a tree that has nothing in it."""
    with _folder_of(root, name, make=True) as (folder, own):
        shutil.rmtree(own, ignore_errors=True, dir_fd=folder)
        os.mkdir(own, 0o755, dir_fd=folder)


def folder_in(root: Path, name: str) -> Path:
    """Return where on the host a tree's folder lies, without links; it is made if need be."""
    with held_in_tree(root, name, make=True) as folder:
        return Path(os.readlink(f"/proc/self/fd/{folder}"))


def read_file(root: Path, name: str) -> bytes | None:
    """Return what a regular file of a tree holds; None where there is none."""
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
