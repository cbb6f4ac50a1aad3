"""Compute SHA-256 digests of a trial's files when it ends; they show later damage or edits.

They do not prove authenticity: a forger can compute them as well (docs/report-schema.md).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import FileError
from labctl.base.trust import open_regular
from labctl.store.jsonfile import is_unfinished
from labctl.store.records.tolerant import Text

RECORD, SAMPLES = "trial.json", "samples.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """Hold a trial's digests. `samples`: of samples.json, None if there was none. `raw`: of every
    other file but trial.json, by its path in the trial's folder."""

    samples: Text | None = None
    raw: dict[str, Text]

    def changed_raw(self, now: Digests) -> list[str]:
        """Return the raw files that are changed, missing or new, in order."""
        names = sorted(self.raw.keys() | now.raw.keys())
        return [name for name in names if self.raw.get(name) != now.raw.get(name)]


def digests_of(folder: Path) -> Digests:
    """Return the digests of the files as they are now. Raises BrokenError naming a file that cannot
    be read or is not regular; a trial leaves only regular files."""
    return digests_from({name: _digest(folder / name) for name in _names(folder)})


def digests_from(sums: Mapping[str, str]) -> Digests:
    """Return the digests of a trial, given the SHA-256 of its files by their names; the record is
    left out, because it holds the digests."""
    raw = {name: sums[name] for name in sorted(sums) if name not in (RECORD, SAMPLES)}
    return Digests(samples=sums.get(SAMPLES), raw=raw)


def _names(folder: Path) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise FileError(f"{error.filename} cannot be read: {error.strerror}") from error

    for place, _, files in os.walk(folder, onerror=refuse):
        for name in files:
            if is_unfinished(name):
                continue  # of a killed labctl: no trial has left it
            path = str((Path(place) / name).relative_to(folder))
            if path != RECORD:
                yield path


def _digest(path: Path) -> str:
    try:
        with open(open_regular(path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
