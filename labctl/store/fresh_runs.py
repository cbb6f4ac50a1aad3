"""Find the runs that measured a run's advice once more (`labctl advise RUN --verify`)."""

from __future__ import annotations

import os
from pathlib import Path

from labctl.base.errors import LabctlError
from labctl.base.held import open_regular
from labctl.base.jsontext import check_size
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.store.run_places import all_runs

_MARK = b'"verifies"'
"""Bytes that run.json of such a run holds: without them it need not be parsed."""
_NONE = b'"verifies": null'
"""Bytes that labctl writes into that of any other run."""


def fresh_runs(folder: RunFolder, *places: Path) -> list[LoadedRun]:
    """Return the runs that say that they verify the run's advice, beside it and in `places`, in
    the order of their names. Whether they do is for `analysis/confirmation.py` to say; a folder
    that can't be read is none of them."""
    found: dict[Path, LoadedRun] = {}
    for place in dict.fromkeys((folder.path.parent, *places)):
        for other in all_runs(place):
            path = other.path.resolve()
            if path not in found and path != folder.path and _verifies(other, folder.name):
                found[path] = other.load()
    return sorted(found.values(), key=lambda run: run.name)


def _verifies(other: RunFolder, name: str) -> bool:
    try:
        if not _has_mark(other):
            return False
        verifies = other.read_run().verifies
    except (OSError, ValueError, LabctlError):
        return False
    return verifies is not None and verifies.run == name


def _has_mark(run: RunFolder) -> bool:
    return _MARK in _run_json(run).replace(_NONE, b"")


def _run_json(run: RunFolder) -> bytes:
    if run.archive is not None:
        return run.archive.run_json()
    with open(open_regular(run.path / "run.json"), "rb") as file:
        check_size(os.fstat(file.fileno()).st_size)
        return file.read()
