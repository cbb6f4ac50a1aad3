"""Decide whose files to trust, and hold folders open so that no planted link leads elsewhere."""

from __future__ import annotations

import errno
import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

# Decide whose files to trust: those that only the caller and root can change.
#
# Every folder and every link on the path counts, because anyone who can rename something there
# decides what is read. A group's write permission counts as everybody's; with an ACL the group's
# bits show what it allows others as well (acl(5)).


MOST_LINKS: Final = 40
"""Symbolic links on the path to one file, the kernel's own limit (path_resolution(7))."""
MOST_FILES: Final = 10_000
"""Files below one folder."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class _DoubtError(Exception):
    """Report why a path is not trusted."""


def doubt(path: Path, *, below: bool = False, group: bool = True) -> str | None:
    """Return why others than the caller and root can change what is read at `path`, or with `below`
    in the folder there; None if they cannot. Names that begin with a dot are not read. `group`:
    whether files that a group may write to are in doubt, too."""
    look = _Look(_OTHERS_WRITE if group else stat.S_IWOTH)
    try:
        held = look.held(path)
        if below:
            look.walk(held)
    except _DoubtError as found:
        return str(found)
    except OSError as error:
        return f"cannot read {error.filename or path}: {error.strerror}"
    return None


def believed_owners() -> frozenset[int]:
    """Return user ids whose files count as the caller's own or root's. Under sudo the caller is the
    user behind it: anyone who may run labctl as root by sudo has root's rights in any case."""
    owners = {0, os.geteuid()}
    behind_sudo = os.environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and re.fullmatch("[0-9]{1,10}", behind_sudo):
        owners.add(int(behind_sudo))
    return frozenset(owners)


def mounted_by(mountinfo: str) -> Mapping[int, int]:
    """Map device number to user id for each file system that a user's own program serves (FUSE):
    such a program can report any owner. `mountinfo`: as /proc/self/mountinfo (proc(5))."""
    users: dict[int, int] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        device = re.fullmatch(r"\S+ \S+ ([0-9]+):([0-9]+) .*", before)
        user = re.search(r"[ ,]user_id=([0-9]+)", after)
        if device and user and after.startswith("fuse"):
            users[os.makedev(int(device[1]), int(device[2]))] = int(user[1])
    return users


class _Look:
    """Check a path once, with this process's and host's facts."""

    def __init__(self, others: int) -> None:
        self._owners = believed_owners()
        self._others = others

    def held(self, path: Path) -> Path:
        """Return `path` without links, if no other user can replace its target. Raises
        _DoubtError."""
        at = Path("/")
        self._check(at, os.lstat(at), is_end=False)
        parts = list(reversed(path.absolute().parts[1:]))
        links = 0
        while parts:
            part = parts.pop()
            if part == "..":
                at = at.parent
                continue
            found = at / part
            status = os.lstat(found)
            self._check(found, status, is_end=not parts)
            if not stat.S_ISLNK(status.st_mode):
                at = found
                continue
            links += 1
            if links > MOST_LINKS:
                raise _DoubtError(f"{path} has more than {MOST_LINKS} links")
            target = Path(os.readlink(found))
            at = Path("/") if target.is_absolute() else at
            parts += [word for word in reversed(target.parts) if word != "/"]
        return at

    def walk(self, top: Path) -> None:
        """Check everything below a folder in the same way, following links."""
        folders, seen, count = [top], {top}, 0
        while folders:
            for entry in os.scandir(folders.pop()):
                if entry.name.startswith("."):
                    continue
                count += 1
                if count > MOST_FILES:
                    raise _DoubtError(f"{top} has more than {MOST_FILES} files")
                path = Path(entry.path)
                if entry.is_symlink():
                    path = self.held(path)
                else:
                    self._check(path, entry.stat(follow_symlinks=False), is_end=True)
                if path.is_dir() and path not in seen:
                    seen.add(path)
                    folders.append(path)

    def _check(self, path: Path, status: os.stat_result, *, is_end: bool) -> None:
        if status.st_uid not in self._owners:
            raise _DoubtError(f"{path} is owned by {_user(status.st_uid)}")
        mounter = self._mounted_by.get(status.st_dev, 0) if not os.major(status.st_dev) else 0
        if mounter not in self._owners:
            raise _DoubtError(f"{path} is in a file system that {_user(mounter)} serves")
        if stat.S_ISLNK(status.st_mode):
            return  # its mode means nothing
        # In a sticky folder nobody can rename others' files; the next step checks the owner of what
        # lies in it.
        is_passed = not is_end and stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_mode & self._others and not is_passed:
            by = "everybody" if status.st_mode & stat.S_IWOTH else "its group"
            mode = stat.S_IMODE(status.st_mode)
            raise _DoubtError(f"{path} is writable by {by} (mode {mode:04o})")
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise _DoubtError(f"{path} is neither a file nor a folder")

    @cached_property
    def _mounted_by(self) -> Mapping[int, int]:
        return mounted_by(Path("/proc/self/mountinfo").read_text(errors="replace"))


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (user {number})"
    except KeyError:
        return f"user {number}"


# Hold folders open by descriptors, so that no planted link redirects a write or a read.
#
# Each step of a path is opened from the folder before it (openat(2) with O_NOFOLLOW): a user who
# can change names below the root cannot make labctl leave it.


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def held(root: Path, below: str = ".", *, make: bool = False) -> Iterator[int]:
    """Hold the folder `below` a root open; yield its descriptor.

    `root` itself may be reached through links, as the caller named it; below it none is followed.
    `make`: missing folders are made. Raises OSError (ELOOP for a link).
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
    """Hold a folder of a guest's tree open, with links resolved as in the guest: from `root`, which
    neither an absolute link nor '..' leaves.

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
    """Open a regular file for reading; the last name must not be a link, and a pipe does not block.

    Raises OSError (ELOOP for a link, EINVAL for anything else that is not a regular file).
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
        raise OSError(errno.EINVAL, "the name is outside its folder", part)
    return part
