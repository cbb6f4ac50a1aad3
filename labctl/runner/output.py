"""Collect the output of commands, up to limits."""

from __future__ import annotations

import base64
import fnmatch
import os

LARGEST_ANSWER = 32 << 20
LAST_OUTPUT = 1 << 16


def tail_of(path: str, most: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read(most)
    except OSError:
        return b""


def left_in(folder: str, patterns: list[str]) -> dict[str, str]:
    """Return a command's results: its output, and the files that match these names and globs."""
    names = [".stdout", ".stderr"]
    for name in sorted(os.listdir(folder)):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            names.append(name)
    files, total = {}, 0
    for name in names:
        path = os.path.join(folder, name)
        if os.path.islink(path) or not os.path.isfile(path):
            continue
        with open(path, "rb") as file:
            data = file.read(LARGEST_ANSWER - total + 1)
        total += len(data)
        if total > LARGEST_ANSWER:
            raise OSError(
                "the command wrote more than %d MiB of output, including %s: make it write "
                "less" % (LARGEST_ANSWER >> 20, shown(name))
            )
        files[name] = base64.b64encode(data).decode()
    return files


def at_limit(folder: str, largest: int | None) -> str | None:
    """Return the file that has reached its size limit, so that the command could write no more."""
    if largest is None:
        return None
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not os.path.islink(path) and os.path.getsize(path) >= largest:
            return shown(name)
    return None


def shown(name: str) -> str:
    return {".stdout": "its standard output", ".stderr": "its standard error"}.get(name, name)
