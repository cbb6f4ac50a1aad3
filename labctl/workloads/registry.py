"""Find workloads by the name in a study's `program`: from their file, or from the definition in a
run's plan."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from labctl.base.errors import UsageError, nearest
from labctl.base.paths import data_files, shipped_data
from labctl.base.yamltext import YamlMapping
from labctl.store.jsonfile import canonical
from labctl.workloads import declarations
from labctl.workloads.workload import Workload

FOLDER = "benchmarks/workloads"
"""Folder of declared workloads."""


class Declared(Protocol):
    """Name a program, as a study or a plan does. `definition`: the content of its file; None in
    plans of older versions."""

    @property
    def program(self) -> str: ...

    @property
    def definition(self) -> Mapping[str, object] | None: ...


class Programs(Mapping[str, Workload]):
    """Hold all workloads by name; a file is read when its workload is first used."""

    def __init__(self) -> None:
        self._files = data_files(FOLDER)

    def __getitem__(self, name: str) -> Workload:
        path = self._files[name]
        return _read(path, path.stat().st_mtime_ns)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)

    def define(self, name: str, mapping: YamlMapping, path: Path) -> Workload:
        """Return the workload that a study defines itself; raises UsageError as a file's reader
        does."""
        return declarations.declare(name, mapping, path)

    def of(self, declared: Declared) -> Workload:
        """Return the workload that a study or a plan names."""
        return workload_of(declared)

    def file_of(self, name: str) -> Path | None:
        """Return the file that declares it; None if no file does."""
        return self._files.get(name)


def checkers() -> Programs:
    """Return every workload by its name, to check a study's programs."""
    return Programs()


def workload(name: str) -> Workload:
    """Return the workload of that name; raises UsageError with the nearest name."""
    known = checkers()
    if name not in known:
        raise UsageError(f"no workload '{name}'", hint=nearest(name, known))
    return known[name]


def workload_of(declared: Declared) -> Workload:
    """Return the workload of a study or a plan, whatever its file contains by now. Raises as
    `defined` does."""
    return defined(declared.program, declared.definition)


def defined(program: str, definition: Mapping[str, object] | None) -> Workload:
    """Return the workload of a definition that a run keeps; for None (plans of older versions
    lacked labctl's own definitions), labctl's workload of that name. Raises UsageError for an
    unknown name, and for an invalid definition."""
    if definition is None:
        path = shipped_data() / FOLDER / f"{program}.yaml"
        return _read(path, path.stat().st_mtime_ns) if path.is_file() else workload(program)
    return _defined(program, canonical(definition))


@lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int) -> Workload:
    """Read a file once, and again only if it changes."""
    return declarations.load_declaration(path)


@lru_cache(maxsize=256)
def _defined(program: str, definition: str) -> Workload:
    return declarations.of_definition(program, json.loads(definition))
