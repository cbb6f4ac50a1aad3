"""Describe a knob of the host as tunings name it, and where it is set."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from labctl.base.cpus import CpuSet
from labctl.base.kernel import Held
from labctl.base.tuning import KNOB_VALUES, Values
from labctl.host.settings.journal import Changes, KnobChange
from labctl.host.settings.tunables import FileValue


class Impossible(Exception):
    """Say why a knob cannot be set on this host: a sentence without its full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobPlace:
    """Locate the files and CPUs that knobs change. `root`: the folder of the host's files.
    `isolated`: the CPUs of the guests' vCPUs. `housekeeping`: the CPUs left to the host."""

    root: Path = Path("/")
    housekeeping: CpuSet = frozenset()
    isolated: CpuSet = frozenset()

    def files(self, pattern: str) -> list[Path]:
        """Return the paths below the root that match, in numeric order."""
        return sorted(self.root.glob(pattern), key=_natural)

    def text(self, path: str) -> str | None:
        try:
            return (self.root / path).read_text(encoding="utf-8").strip()
        except OSError:
            return None

    def value(self, path: str) -> str | None:
        """Return a setting's value; None if it cannot be read."""
        try:
            return FileValue(str(self.root / path)).read()
        except OSError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Describe a knob. `takes`: its values, if `KNOB_VALUES` does not describe all of them.

    `changes`: the changes needed for a value; raises Impossible if this host does not support it.
    `now`: its value in a few words; None if this host does not have the knob. `turned`: sets it if
    a tool is needed, and returns what it left as it was; otherwise `changes` are made. `held`: for
    a setting that the kernel keeps only while a descriptor is open, its value inside the block.
    """

    name: str
    what: str
    changes: Callable[[str, KnobPlace], Sequence[KnobChange]]
    now: Callable[[KnobPlace], str | None]
    turned: Callable[[str, KnobPlace, Changes], list[str]] | None = None
    held: Callable[[str, KnobPlace], AbstractContextManager[Held]] | None = None
    takes: Values | None = None

    def __post_init__(self) -> None:
        if self.takes is None and self.name not in KNOB_VALUES:
            raise ValueError(f"the knob '{self.name}' needs 'takes', its values")

    @property
    def values(self) -> Values:
        return self.takes or KNOB_VALUES[self.name]


def file_change(path: Path, value: str, *, optional: bool = False) -> KnobChange:
    """Raise Impossible when the file is missing or read-only."""
    check_writable(path)
    return KnobChange(tunable=FileValue(str(path)), value=value, optional=optional)


def follower(path: Path) -> list[KnobChange]:
    """Return a change for a file that the kernel changes along with others; [] if it is missing."""
    return [KnobChange(tunable=FileValue(str(path)), follows=True)] if path.exists() else []


def check_writable(path: Path) -> None:
    """Raise Impossible when the file is missing or read-only."""
    try:
        mode, mount = path.stat().st_mode, os.statvfs(path)
    except OSError:
        raise Impossible(f"this kernel has no {path}") from None
    if not mode & 0o222:
        raise Impossible(f"{path} is read-only on this kernel")
    if mount.f_flag & os.ST_RDONLY:  # in a container
        raise Impossible(f"{path} is on a file system that is mounted read-only")


def one_file(name: str, what: str, path: str) -> Knob:
    """Return a knob that is one file."""
    return Knob(
        name=name,
        what=what,
        changes=lambda value, place: [file_change(place.root / path, value)],
        now=lambda place: place.value(path),
    )


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    parts = re.findall(r"\d+|\D+", str(path))
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
