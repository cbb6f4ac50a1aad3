"""Contain the failure of one trial or one boot, so that it never ends the run."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from labctl.base.errors import BrokenError, LabctlError
from labctl.store.trial import TrialFolder

FAULT = "fault.txt"
"""File in a trial's folder: the traceback of an unforeseen failure."""

_SHOWN = 200


@contextmanager
def foreseen(doing: str) -> Iterator[None]:
    """Raise BrokenError for every exception that is not the project's own; those are raised
    unchanged. The answers of a guest that boots and is set up are not under labctl's control."""
    try:
        yield
    except LabctlError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"[:_SHOWN]
        raise BrokenError(
            f"a fault in labctl, while {doing}: {said}",
            hint="Please report it with the output of 'labctl --debug'.",
        ) from error


def keep_fault(folder: TrialFolder, error: BaseException) -> None:
    """Write the traceback of an unforeseen failure into the trial's folder, if `error` is
    one."""
    cause = error
    while isinstance(cause, LabctlError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if not isinstance(cause, LabctlError | OSError):
        folder.write_raw(FAULT, "".join(traceback.format_exception(cause)))


@contextmanager
def contained(folder: TrialFolder, doing: str) -> Iterator[None]:
    """Raise BrokenError for every exception that is not the project's own; those are raised
    unchanged. A guest writes most of what is read of a trial. A reader that fails on it needs a
    fix, but the other trials stay valid."""
    try:
        yield
    except LabctlError:
        raise
    except Exception as error:
        folder.write_raw(FAULT, traceback.format_exc())
        said = f"{type(error).__name__}: {error}"[:_SHOWN]
        raise BrokenError(
            f"{folder.path / FAULT} records a fault in labctl, while {doing}: {said}",
            hint="Please report it with that file.",
        ) from error
