"""Hold folders open by descriptors, so that no planted link leads a write or a read elsewhere.

Each step of a path is opened from the folder before it (openat(2) with O_NOFOLLOW): who may change
names below the root can't make labctl leave it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

MOST_LINKS: Final = 40
"""Links on the way to one file, as the kernel's own limit (path_resolution(7))."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def held(root: Path, below: str = ".", *, make: bool = False) -> Iterator[int]:
    """Hold the folder `below` a root open; yields its descriptor.

    `root` itself may be reached over links, as the caller named it; below it none is followed.
    `make`: folders that are missing are made. Raises OSError (ELOOP for a link).
    """
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in PurePosixPath(below).parts:
            before, at = at, _opened(at, _own_name(part), make=make)
            os.close(before)
        yield at
    finally:
        os.close(at)


@contextmanager
def held_in_tree(root: Path, below: str = ".", *, make: bool = False) -> Iterator[int]:
    """Hold a folder of a guest's tree open, with links read as the guest itself reads them:
    from `root`, which neither an absolute link nor '..' leads out of.

    Raises OSError (ELOOP beyond MOST_LINKS).
    """
    stack = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        parts = list(reversed(PurePosixPath("/", below).parts[1:]))
        links = 0
        while parts:
            part = parts.pop()
            if part == "..":
                if len(stack) > 1:
                    os.close(stack.pop())
                continue
            target = _link_target(stack[-1], part)
            if target is None:
                stack.append(_opened(stack[-1], part, make=make))
                continue
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(root / below))
            if target.is_absolute():
                while len(stack) > 1:
                    os.close(stack.pop())
            parts += [word for word in reversed(target.parts) if word != "/"]
        yield stack[-1]
    finally:
        for descriptor in stack:
            os.close(descriptor)


def open_regular(path: Path) -> int:
    """Open a regular file for reading; the last name is no link, and no pipe is waited for.

    Raises OSError (ELOOP for a link, EINVAL for what is neither link nor regular file).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link, not a regular file", str(path)) from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def _opened(at: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
        os.mkdir(name, 0o755, dir_fd=at)
        return os.open(name, _FOLDER, dir_fd=at)
    except OSError as error:
        if _link_target(at, name) is not None:
            raise OSError(errno.ELOOP, f"'{name}' is a link", name) from error
        raise


def _link_target(at: int, name: str) -> PurePosixPath | None:
    try:
        return PurePosixPath(os.readlink(name, dir_fd=at))
    except OSError:
        return None


def _own_name(part: str) -> str:
    if part in ("..", "/"):
        raise OSError(errno.EINVAL, "the name leads out of its folder", part)
    return part
