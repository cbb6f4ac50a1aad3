"""Lend a folder for what ansible-runner writes: events, and an environment with its secrets."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "labctl-fleet-"
_YOUNG_S: Final = 60.0
"""Age below which a folder's owner may not have locked it yet."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a folder that only this user can look into, and that is removed at the end. Those of
    labctls that were killed are removed before: nobody holds their locks."""
    _remove_left()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as made:
        descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(made)
        finally:
            os.close(descriptor)


def _remove_left() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(descriptor)
                if found.st_uid == os.geteuid() and time.time() - found.st_mtime > _YOUNG_S:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
