"""Take one SHA-256 digest of a whole run, the same of its folder and of an archive of it.

It shows damage on the way from host to host. It shows no forger, who makes it anew as well.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from labctl.base.errors import BrokenError
from labctl.base.held import open_regular
from labctl.store.archive import RunArchive

PROGRESS: Final = "progress.json"
"""File in a run's folder that says how far the run is, for whoever waits for it."""

_CHANGES_LATER = re.compile(r"progress\.json|answer\.json|.*\.(?:parquet|html?)")
"""Files beside the trials that are written after a run's end, or by any report of it."""


def content_digest(files: Mapping[str, str]) -> str:
    """Return the digest of files, given their SHA-256 by their names in the run's folder: that of
    the lines "SHA-256 NAME" in the order of the names, as sha256sum(1) would print them.

    What changes after the run's end is left out.
    """
    lines = (f"{files[name]}  {name}\n" for name in sorted(files) if not _changes_later(name))
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def folder_digest(folder: Path) -> str:
    """Return the digest of a run's folder, without links and what is no regular file, which no
    archive has. Raises BrokenError naming what can't be read."""

    def refuse(error: OSError) -> None:
        raise BrokenError(f"{error.filename} cannot be read: {error.strerror}") from error

    found = {}
    for place, _, names in os.walk(folder, onerror=refuse):
        for name in names:
            path = Path(place, name)
            inside = str(path.relative_to(folder))
            if not (path.is_symlink() or _changes_later(inside)) and path.is_file():
                found[inside] = _file_digest(path)
    return content_digest(found)


def archive_digest(archive: RunArchive) -> str:
    """Return the digest of the run that an archive holds. Raises BrokenError for one that
    `labctl run export` didn't write."""
    return content_digest(archive.sums)


def check_digest(run: Path, archive: RunArchive | None, digest: str) -> None:
    """Raise BrokenError where a run's folder, or the archive that it is in, hasn't that digest."""
    now = folder_digest(run) if archive is None else archive_digest(archive)
    if now != digest:
        name = run.name if archive is None else archive.name
        raise BrokenError(
            f"{name} isn't the run that its host had at its end: its files' digest is "
            f"{now[:12]}…, not {digest[:12]}…",
            hint="Fetch it again.",
        )


def _changes_later(name: str) -> bool:
    return "/" not in name and _CHANGES_LATER.fullmatch(name) is not None


def _file_digest(path: Path) -> str:
    try:
        with open(open_regular(path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BrokenError(f"{path} cannot be read: {error.strerror}") from error
