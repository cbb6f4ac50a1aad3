"""JSON files that are whole or absent: written aside, synced, renamed."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.jsontext import check_size, parse_json


def canonical(value: Any) -> str:
    """The one text of a JSON value (sorted keys, no spaces): what digests are made of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """A file to write to, so that after a crash it is the old one or the new one, never half."""
    # Caches are written to by whoever runs beside: a name of its own for each.
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with open(aside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "Free some space, then resume the run." if is_full else None
        raise HostError(f"cannot write {path}: {error.strerror}", hint=hint) from error
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    with replacing(path, mode=mode) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Raises BrokenError naming the file when it is missing, cut off, no JSON or beyond a limit."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        check_size(status.st_size)
        return parse_json(path.read_bytes())
    except FileNotFoundError as error:
        raise BrokenError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise BrokenError(f"{path} cannot be read: {error}") from error


def newer(what: Path | str, schema: int, known: int) -> UsageError:
    """The refusal of what a newer labctl wrote: what is new in it could change all the rest."""
    shown = schema if schema.bit_length() < 64 else "beyond all numbers"
    return UsageError(
        f"{what} was written by a newer labctl (schema {shown}, this one reads up to {known})",
        hint="Update labctl.",
    )
