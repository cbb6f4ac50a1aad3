"""Whatever goes wrong with what one trial left ends that trial, never the run."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from labctl.base.errors import BrokenError, LabctlError
from labctl.store.trial import TrialFolder

FAULT = "fault.txt"
"""Of a trial: the traceback of what nobody foresaw."""


@contextmanager
def contained(folder: TrialFolder, doing: str) -> Iterator[None]:
    """Raises BrokenError for every exception that is none of the project's own, which are raised as
    they are. A guest writes most of what is read of a trial: a reader that trips over it is to be
    mended, but the other trials are as good as they were."""
    try:
        yield
    except LabctlError:
        raise
    except Exception as error:
        folder.write_raw(FAULT, traceback.format_exc())
        said = f"{type(error).__name__}: {error}"[:200]
        raise BrokenError(
            f"{folder.path / FAULT} tells of a fault in labctl, while {doing}: {said}",
            hint="Please report it with that file.",
        ) from error
