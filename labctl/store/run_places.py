"""Find runs by name, path, number or age, and explain names that match none."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from labctl.base.errors import LabctlError, UsageError, nearest
from labctl.base.json import check_size
from labctl.base.paths import LATEST, RUN_ARCHIVE, recorded_runs
from labctl.base.trust import open_regular
from labctl.store.run_folder import LoadedRun, RunFolder

_MOST_DIGITS = 9
"""Digits of a run's number; a longer word is a name."""

DENSITY = "density.json"
"""Record of a density run (`store.density_record`)."""


def find_run(results: Path, name: str) -> RunFolder:
    """Return the run of that name in `results`, or at that path (a name with a '/'). If no run has
    the name, 'latest' is the newest, a number is that of `labctl run list`, and the recorded runs
    that labctl brings have theirs. Raises UsageError with the nearest name."""
    places = _candidates(results, name)
    for candidate in places:
        if (candidate / "run.json").is_file():
            return RunFolder(candidate.resolve())
        for archive in (candidate, _archive_of(candidate)):
            if archive.name.endswith(RUN_ARCHIVE) and archive.is_file():
                return RunFolder.in_archive(archive.resolve())
    for candidate in places:
        _refuse_no_run(candidate)
    if name == LATEST or (name.isdecimal() and len(name) <= _MOST_DIGITS):
        return _by_number(results, name)
    recorded = recorded_runs()
    if name in recorded:
        return RunFolder.in_archive(recorded[name])
    raise _not_found(results, name, [folder.name for folder in all_runs(results)], recorded)


def find_run_to_change(results: Path, name: str, doing: str) -> RunFolder:
    """Return `find_run`; raises UsageError for an archive, which is never changed. `doing`: the
    intended action, as a participle."""
    folder = find_run(results, name)
    if folder.archive is not None:
        raise UsageError(
            f"{folder.path} is an archive, which cannot be {doing}",
            hint=f"'labctl run import {shlex.quote(str(folder.path))}' imports it as a run.",
        )
    return folder


def all_runs(results: Path) -> list[RunFolder]:
    """Return every run in `results`, sorted by name (names begin with the time of the start). An
    archive beside the folder of its run is not listed."""
    found = {path.name: RunFolder(path) for path in _run_folders(results)}
    for path in results.glob(f"*{RUN_ARCHIVE}"):
        if path.is_file():
            packed = RunFolder.in_archive(path)
            found.setdefault(packed.name, packed)
    return [found[name] for name in sorted(found)]


def runs_by_age(results: Path) -> list[RunFolder]:
    """Return every run in `results`, the oldest first; runs without a start time come before
    them."""
    return sorted(all_runs(results), key=lambda folder: (_began(folder), folder.name))


def _by_number(results: Path, name: str) -> RunFolder:
    runs = runs_by_age(results)
    number = len(runs) if name == LATEST else int(name)
    if not 1 <= number <= len(runs):
        raise UsageError(
            f"no run {name} in {results}: runs are numbered from 1 to {len(runs)}"
            if runs
            else f"there is no run in {results}",
            hint="'labctl run list' shows them, 'labctl sweep pinning --quick' makes one.",
        )
    return runs[number - 1]


def _began(folder: RunFolder) -> float:
    """Return when a run began, in seconds since 1970; 0 if it is unknown."""
    try:
        began = datetime.fromisoformat(folder.read_run().started_at or "")
        return began.timestamp()
    except (LabctlError, ValueError, OverflowError):
        return 0.0


def _candidates(results: Path, name: str) -> list[Path]:
    """Return the possible paths of a run of that name. A bare name never leads into the current
    folder, where another user may have put a run of that name."""
    return [results / name] if "/" not in name else [Path(name), results / name]


def _archive_of(path: Path) -> Path:
    """Return the path of the archive of a run whose folder would be at `path`."""
    return Path(f"{path}{RUN_ARCHIVE}")


def _run_folders(results: Path) -> list[Path]:
    """Return the folders in `results` that are runs."""
    return [path.parent for path in results.glob("*/run.json")]


def _refuse_no_run(folder: Path) -> None:
    """Raise UsageError for a density run, with the command that reads it, and for a folder of
    trials without run.json."""
    if (folder / DENSITY).is_file():
        raise UsageError(
            f"{folder} is a density run, which has no trials",
            hint=f"labctl density --show {shlex.quote(str(folder))}",
        )
    if (folder / "trials").is_dir():
        raise UsageError(
            f"{folder} has trials but no run.json, so it is not a run",
            hint="Copy the whole folder of the run.",
        )


def _not_found(
    results: Path, name: str, names: Sequence[str], recorded: Iterable[str]
) -> UsageError:
    """Return the error for a name that no run has, with the nearest of the existing `names`.
    `recorded`: the runs that labctl brings."""
    if "/" in name:
        what = "it does not exist" if not Path(name).exists() else "it has no run.json"
        hint = "Pass the folder of a run or its archive, or a run's name without '/'."
        return UsageError(f"'{name}' is not a run: {what}", hint=hint)
    hint = nearest(name, [*names, *recorded])
    if not names:
        hint = (
            "There are no runs yet; 'labctl sweep pinning --quick' makes one. Recorded runs: "
            f"{', '.join(recorded) or 'none'}."
        )
    if (Path(name) / "run.json").is_file() or (name.endswith(RUN_ARCHIVE) and Path(name).is_file()):
        hint = f"The run in the current folder is './{name}'."
    elif Path(name).is_file():
        hint = f"A run is a folder, or an archive with the suffix {RUN_ARCHIVE}."
    return UsageError(f"no run named '{name}' in {results}", hint=hint)


# Find the runs that measured a run's advice again (`labctl advise RUN --verify`).


_MARK = b'"verifies"'
"""Bytes in run.json of such a run: without them it need not be parsed."""
_NONE = b'"verifies": null'
"""Bytes that labctl writes into run.json of any other run."""


def fresh_runs(folder: RunFolder, *places: Path) -> list[LoadedRun]:
    """Return the runs that claim to verify the run's advice, beside it and in `places`, sorted by
    name. Whether they do is decided in `analysis/answer/grade.py`; unreadable folders are
    skipped."""
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
