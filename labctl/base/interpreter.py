"""Keep garbage collection, numpy's threads and pydantic's plugins out of measurements."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

# Pause Python's garbage collection where it would affect a measurement.


@contextmanager
def collection_paused() -> Iterator[None]:
    """Leave cycles of objects uncollected while inside."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# Keep numpy's matrix library from starting threads in this process.
#
# OpenBLAS starts a thread for each CPU when it is loaded, numpy's and scipy's copy each. They spin
# before they sleep: a tenth of a second of CPU time for each report, which a busy host or a
# measured guest needs. labctl's matrices have about ten rows.


_VARIABLE: Final = "OPENBLAS_NUM_THREADS"
_OURS: Final = "01"
"""Value that nobody else writes, to tell it from a user's own."""


def take_no_matrix_threads() -> None:
    """Keep libraries that are loaded later from starting threads, unless the user sets their
    number."""
    os.environ.setdefault(_VARIABLE, _OURS)


def users_environment() -> dict[str, str]:
    """Return the environment for other programs, as the user gave it to labctl."""
    return {
        name: value for name, value in os.environ.items() if (name, value) != (_VARIABLE, _OURS)
    }


# Keep pydantic from looking for plugins.
#
# Before its first model it imports `importlib.metadata` and reads every installed package's entry
# points, which takes a seventh of the time of `labctl tuning list`; and it would let any of those
# packages see and change what labctl validates. Its own switch, $PYDANTIC_DISABLE_PLUGINS, is read
# after the import, and would be in the environment of the workloads as well.


_LOADER: Final = "pydantic.plugin._loader"


class _NoPlugins(ModuleType):
    """Replace the module that finds plugins."""

    @staticmethod
    def get_plugins() -> tuple[Any, ...]:
        return ()


def keep_out_plugins() -> None:
    """Load no plugins of pydantic in this process. Call this before the first model."""
    sys.modules.setdefault(_LOADER, _NoPlugins(_LOADER))
