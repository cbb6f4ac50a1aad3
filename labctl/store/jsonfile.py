"""Write JSON files that are complete or absent: written aside, synced, renamed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from labctl.base.errors import FileError, HostError, UsageError
from labctl.base.interpreter import collection_paused
from labctl.base.json import check_size, parse_json
from labctl.base.trust import believed_owners, held, open_regular


def canonical(value: Any) -> str:
    """Return the canonical text of a JSON value (sorted keys, no spaces), the input of digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@contextmanager
def replacing(path: Path, *, mode: int = 0o644, below: Path | None = None) -> Iterator[IO[bytes]]:
    """Open a file to write so that after a crash it is the old one or the new one, never a part.

    A link or a device of that name is replaced, never written through. `below`: a folder above the
    file; no link from there on is followed, and missing folders are made.
    """
    folder = path.parent.relative_to(below) if below else Path()
    try:
        with held(below or path.parent, str(folder), make=below is not None) as at:
            _remove_unfinished(at, path.name)
            aside, descriptor = _begun(at, path.name, mode)
            try:
                with open(descriptor, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                    # Not after the file is closed: its lock goes with it.
                    os.replace(aside, path.name, src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(aside, dir_fd=at)
                raise
            os.fsync(at)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "Free some space, then resume the run." if is_full else None
        reason = "not enough memory" if error.errno == errno.ENOMEM else error.strerror
        raise HostError(f"cannot write {path}: {reason}", hint=hint) from error


# A writer locks what it has begun, so that the next one knows what a killed one left.


_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{16}\.new")
_LONGEST = 200


def is_unfinished(name: str) -> bool:
    """Return whether a file of that name is being written, or was when its writer was killed."""
    return _UNFINISHED.fullmatch(name) is not None


def _begun(at: int, name: str, mode: int) -> tuple[str, int]:
    """Return the name and the descriptor of a new file that is to replace one in the folder."""
    while True:
        # A name that nobody can guess, and that must not exist yet: in a folder that others can
        # write to, a link could wait at it.
        aside = f".{name[:_LONGEST]}.{secrets.token_hex(8)}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(aside, flags, mode, dir_fd=at)
        if _is_alone(descriptor):
            return aside, descriptor
        # Somebody took it for a killed writer's before it was locked.
        os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=at)


def _is_alone(descriptor: int) -> bool:
    """Lock a file or a folder; return whether nobody else holds it or has removed it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: what is left there stays
    return os.fstat(descriptor).st_nlink > 0


def _remove_unfinished(at: int, name: str) -> None:
    """Remove what killed writers of that file left in the folder."""
    for found in os.listdir(at):
        begun = _UNFINISHED.fullmatch(found)
        if begun and begun[1] == name[:_LONGEST]:
            with suppress(OSError), _locked(found, os.O_NOFOLLOW | os.O_NONBLOCK, at):
                os.unlink(found, dir_fd=at)


@contextmanager
def _locked(path: Path | str, flags: int, at: int | None = None) -> Iterator[None]:
    """Hold a file or folder of this user's that no living writer has. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=at)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def folder_begun(beside: Path, what: str) -> Iterator[Path]:
    """Yield a new folder in `beside`, which is removed at the end: what is made in it is renamed
    (`put`) when it is complete. Those of killed writers are removed first. Raises OSError."""
    prefix = f".labctl-{what}-"
    for found in beside.glob(f"{prefix}*"):
        with suppress(OSError), _locked(found, os.O_NOFOLLOW | os.O_DIRECTORY):
            shutil.rmtree(found)
    with TemporaryDirectory(prefix=prefix, dir=beside, ignore_cleanup_errors=True) as made:
        descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(made)
        finally:
            os.close(descriptor)


def put(folder: Path, target: Path) -> None:
    """Rename a folder, so that after a loss of power it is there with all its files, or not at
    all. Raises OSError."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place, name))
        sync(Path(place))
    os.rename(folder, target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Write a file or the names in a folder to the disk. Raises OSError, also for a link to a file;
    results and state may be links to folders."""
    kind = os.O_DIRECTORY if path.is_dir() else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | kind | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that the user named, to write to. A device, a pipe or a link is written through,
    because replacing it by a file would break it.

    Raises UsageError for a link of another user, which may lead anywhere.
    """
    try:
        there = os.lstat(path)
    except OSError:
        there = None  # `replacing` reports why it cannot be written
    if there is None or stat.S_ISREG(there.st_mode):
        with replacing(path) as file:
            yield file
        return
    refuse_foreign_link(path)
    try:
        with open(path, "wb") as file:
            yield file
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from error


def check_folder(target: Path) -> None:
    """Raise UsageError if the folder for a file is missing: before minutes of work whose result
    could not be written."""
    if not target.absolute().parent.is_dir():
        raise UsageError(
            f"cannot write {target}: there is no folder {target.parent}",
            hint="Create the folder first, or choose another file.",
        )


def refuse_foreign_link(path: Path) -> None:
    """Raise UsageError for a link of another user, which may lead anywhere."""
    with suppress(OSError):  # the caller reports why it cannot be written
        there = os.lstat(path)
        if stat.S_ISLNK(there.st_mode) and there.st_uid not in believed_owners():
            raise UsageError(
                f"{path} is a link that belongs to another user, so labctl does not write through "
                "it",
                hint="Choose another file or folder, or remove the link.",
            )


def write_output(path: Path, data: bytes) -> None:
    """Write the user's output to the file that the user named; raises as `output_file`."""
    with output_file(path) as file:
        file.write(data)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644, below: Path | None = None) -> None:
    """Write a file of labctl's own; raises as `replacing`."""
    with replacing(path, mode=mode, below=below) as file:
        file.write(data)


def write_json(path: Path, value: Any, *, below: Path | None = None) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    # Of a command line some bytes may not be UTF-8.
    write_bytes(path, text.encode(errors="replace"), below=below)


def read_json(path: Path) -> Any:
    """Raise BrokenError naming the file if it is missing, cut off, not JSON or beyond a limit."""
    return read_json_and_digest(path)[0]


def read_json_and_digest(path: Path) -> tuple[Any, str]:
    """Return `read_json` and the SHA-256 of the very bytes that were read."""
    try:
        with open(open_regular(path), "rb") as file:
            check_size(os.fstat(file.fileno()).st_size)
            data = file.read()
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    return json_and_digest(data, str(path))


def json_and_digest(data: bytes, where: str) -> tuple[Any, str]:
    """Return the JSON value and the SHA-256 of a file's bytes; raises BrokenError naming `where`
    they are from."""
    try:
        check_size(len(data))
        return parse_json(data), hashlib.sha256(data).hexdigest()
    except ValueError as error:
        raise FileError(f"{where} cannot be read: {error}") from error


def reading_many() -> AbstractContextManager[None]:
    """Pause garbage collection: JSON has no cycles, and searching for some takes a third of the
    time for reading a large run."""
    return collection_paused()


def newer(what: Path | str, schema: int, known: int) -> UsageError:
    """Return the refusal of a newer labctl's file: anything new in it could change the meaning of
    the rest."""
    shown = schema if schema.bit_length() < 64 else "out of range"
    return UsageError(
        f"{what} was written by a newer labctl (schema {shown}, this one reads up to {known})",
        hint="Update labctl.",
    )
