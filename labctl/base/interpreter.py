"""Keep garbage collection, numpy's threads and pydantic's plugins out of measurements, and numpy
out of a process that has too little memory for it."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any, Final

from labctl.base.errors import HostError

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


_LEAST_BYTES: Final = 256 << 20
"""Address space for a report of a small run: 200 MiB with numpy 2.4 and scipy 1.17."""


def lacking_memory() -> str | None:
    """Return a sentence about a limit of the address space that is too low for a report; None
    without one."""
    limit, _hard = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= _LEAST_BYTES:
        return None
    return (
        f"not enough memory: this process may have {limit >> 20} MiB of address space, and a "
        f"report needs {_LEAST_BYTES >> 20} MiB"
    )


class _MemoryCheck(MetaPathFinder):
    """Refuse to load numpy under a limit at which OpenBLAS ends the process with status 1, or
    retries for ever."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "numpy" and (lacking := lacking_memory()):
            raise HostError(lacking, hint="'ulimit -v' shows the limit in KiB.")


def check_memory_for_numpy() -> None:
    """Let the first import of numpy raise HostError if the limit of the address space is too low
    for it."""
    sys.meta_path.insert(0, _MemoryCheck())


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
