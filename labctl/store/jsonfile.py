"""Write JSON files that are complete or absent: written aside, synced, renamed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
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
            # A name that nobody can guess, and that must not exist yet: in a folder that others can
            # write to, a link could wait at it.
            aside = f".{path.name[:200]}.{secrets.token_hex(8)}.new"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(aside, flags, mode, dir_fd=at)
            try:
                with open(descriptor, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(aside, path.name, src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(aside, dir_fd=at)
                raise
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "Free some space, then resume the run." if is_full else None
        raise HostError(f"cannot write {path}: {error.strerror}", hint=hint) from error


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
    write_bytes(path, text.encode(), below=below)


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
