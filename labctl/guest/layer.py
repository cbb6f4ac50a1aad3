"""Describe a study's additions to an image: packages, files, and files built from these."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labctl.base.errors import HostError

Argv = tuple[str, ...]

LAYERING = 2
"""Version of how layers are made; part of their digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Describe commands that run once in a workload's folder. `packages` (compilers) are installed
    for the build only; of its results, `outputs` (globs relative to the folder) are kept."""

    argv: tuple[Argv, ...]
    outputs: tuple[str, ...]
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """Name a Python wheel that carries files (`requirement`: `NAME==VERSION`), and its SHA-256."""

    name: str
    requirement: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """Name a file of this host that is read when the image is made, and its SHA-256."""

    path: Path
    sha256: str

    def read(self) -> bytes:
        """Return its content. Raises HostError for a file that changed or cannot be read."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise HostError(f"{self.path} cannot be read: {error.strerror}") from error
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise HostError(
                f"{self.path} changed since the run was planned (SHA-256 {found[:12]}, planned "
                f"{self.sha256[:12]})",
                hint="Restore the file, or start a new run.",
            )
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """Hold the files of one workload by name, their build, and wheels that are unpacked beside
    them."""

    workload: str
    files: Mapping[str, bytes | Large]
    build: Build | None = None
    wheels: tuple[Wheel, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return its entry in a digest and in a manifest."""
        content: dict[str, object] = {
            "files": {
                name: one.sha256 if isinstance(one, Large) else hashlib.sha256(one).hexdigest()
                for name, one in sorted(self.files.items())
            }
        }
        if self.build is not None:
            content["build"] = {
                "packages": sorted(self.build.packages),
                "argv": [list(argv) for argv in self.build.argv],
                "outputs": list(self.build.outputs),
            }
        if self.wheels:
            content["wheels"] = {one.name: one.sha256 for one in self.wheels}
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Hold the additions to an image."""

    packages: tuple[str, ...] = ()
    brought: tuple[Brought, ...] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.packages or self.brought)

    def to_json(self) -> dict[str, object]:
        """Return its entry in a digest and in a manifest."""
        return {
            "layering": LAYERING,
            "packages": sorted(self.packages),
            "workloads": {one.workload: one.to_json() for one in self.brought},
        }

    @property
    def says(self) -> str:
        """Return the additions in words."""
        wheels = {wheel.requirement: None for one in self.brought for wheel in one.wheels}
        files = (f"files of {one.workload}" for one in self.brought)
        return ", ".join([*sorted(self.packages), *wheels, *files])


def joined(parts: Iterable[tuple[tuple[str, ...], Brought | None]]) -> Layer:
    """Return one layer for several workloads, independent of their order: packages, and the files
    of those that bring some."""
    packages: set[str] = set()
    brought: dict[str, Brought] = {}
    for wanted, files in parts:
        packages |= set(wanted)
        if files is not None:
            brought[files.workload] = files
    return Layer(
        packages=tuple(sorted(packages)),
        brought=tuple(brought[name] for name in sorted(brought)),
    )
