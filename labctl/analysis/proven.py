"""List what of a run's files and threads is not proven, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.store.run_folder import LoadedRun

_BEFORE = (
    "Files and threads were proven in part: the labctl that made this run took native hashes from "
    "the image's build, hashed no libraries, and read threads back once per restore. A changed "
    "file, or a policy that was changed during a trial, would have gone unnoticed."
)


def unproven(run: LoadedRun) -> Iterator[str]:
    """Yield what is unproven of a run that measured something, labctl's own or not; nothing where
    all was proven."""
    if run.run.hashed:
        yield from run.run.hashed.unproven
    elif run.run.binaries:
        yield _BEFORE
