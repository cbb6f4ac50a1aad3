"""Find workloads by the name that a study's `program` has: Python's here, declared ones by their
file, or by the definition that a run's plan holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from labctl.base.errors import UsageError
from labctl.base.paths import data_files
from labctl.base.yamlfile import nearest
from labctl.base.yamltext import YamlMapping
from labctl.store.jsonfile import canonical
from labctl.workloads import declarations
from labctl.workloads.cyclictest import CYCLICTEST
from labctl.workloads.fio_fsync import FIO_FSYNC
from labctl.workloads.fio_random import FIO_RANDOM
from labctl.workloads.hackbench import HACKBENCH
from labctl.workloads.iperf3 import IPERF3
from labctl.workloads.oslat import OSLAT
from labctl.workloads.osnoise import OSNOISE
from labctl.workloads.perf_sched_pipe import PERF_SCHED_PIPE
from labctl.workloads.random_access import RANDOM_ACCESS
from labctl.workloads.sockperf import SOCKPERF
from labctl.workloads.stress_ng import STRESS_NG_FORK, STRESS_NG_MMAP
from labctl.workloads.sysbench_cpu import SYSBENCH_CPU
from labctl.workloads.sysbench_memory import SYSBENCH_MEMORY
from labctl.workloads.timerlat import TIMERLAT
from labctl.workloads.workload import Workload

FOLDER = "benchmarks/workloads"
"""Folder of declared workloads."""


class Declared(Protocol):
    """Name a program, as a study or a plan does. `definition`: what its file said, None for
    Python's."""

    @property
    def program(self) -> str: ...

    @property
    def definition(self) -> Mapping[str, Any] | None: ...


class Programs(Mapping[str, Workload]):
    """Hold all workloads by name; a file is read when its workload is asked for."""

    def __init__(self) -> None:
        self._files = data_files(FOLDER)

    def __getitem__(self, name: str) -> Workload:
        if name in self._files:
            path = self._files[name]
            return _read(path, path.stat().st_mtime_ns)
        return _PYTHON[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*_PYTHON, *self._files}))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def define(self, name: str, mapping: YamlMapping, path: Path) -> Workload:
        """Return the workload that a study defines itself; raises UsageError as a file's reader
        does."""
        return declarations.declare(name, mapping, path)

    def of(self, declared: Declared) -> Workload:
        """Return the workload that a study or a plan names."""
        return workload_of(declared)

    def file_of(self, name: str) -> Path | None:
        """Return the file that declares it; None for one of Python."""
        return self._files.get(name)


_PYTHON: Mapping[str, Workload] = {
    found.name: found
    for found in (
        SYSBENCH_CPU,
        SYSBENCH_MEMORY,
        RANDOM_ACCESS,
        STRESS_NG_FORK,
        STRESS_NG_MMAP,
        FIO_RANDOM,
        FIO_FSYNC,
        CYCLICTEST,
        OSLAT,
        TIMERLAT,
        OSNOISE,
        HACKBENCH,
        PERF_SCHED_PIPE,
        SOCKPERF,
        IPERF3,
    )
}


def checkers() -> Programs:
    """Return every workload by its name: what a study's programs are checked against."""
    return Programs()


def workload(name: str) -> Workload:
    """Return the workload of that name; raises UsageError with the nearest one."""
    known = checkers()
    if name not in known:
        raise UsageError(f"there is no workload '{name}'", hint=nearest(name, known))
    return known[name]


def workload_of(declared: Declared) -> Workload:
    """Return the workload that a study or a plan holds, whatever its file says by now. Raises as
    `defined` does."""
    return defined(declared.program, declared.definition)


def defined(program: str, definition: Mapping[str, Any] | None) -> Workload:
    """Return the workload of a definition that a run keeps; None: the one of that name. Raises
    UsageError for a name that nobody knows, and for a definition that isn't one."""
    if definition is None:
        return workload(program)
    return _defined(program, canonical(definition))


@lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int) -> Workload:
    """Read a file once for as long as it isn't changed."""
    return declarations.load_declaration(path)


@lru_cache(maxsize=256)
def _defined(program: str, definition: str) -> Workload:
    return declarations.of_definition(program, json.loads(definition))
