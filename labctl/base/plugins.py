"""Load plug-ins: rows that other installed distributions add to labctl's tables.

Each is an entry point: its group names the table, its name the row, its value the object. Names
come from metadata alone; the code is imported when a table is used, never for --help or completion.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMPLETING = "_LABCTL_COMPLETE"
"""Variable by which a shell's completion calls labctl."""

T = TypeVar("T")


class Group(StrEnum):
    """Name the groups of entry points, which are the tables that plug-ins extend."""

    CHECKS = "labctl.checks"
    COLLECTORS = "labctl.collectors"
    EXPORTS = "labctl.exports"
    METRICS = "labctl.metrics"
    READERS = "labctl.readers"
    SETTINGS = "labctl.settings"


class PluginWarning(UserWarning):
    """Report a plug-in that is left out, and why."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """Describe an installed plug-in. `problem`: why its code does not load, or None."""

    group: Group
    name: str
    distribution: str
    problem: str | None


def names(group: Group) -> list[str]:
    """Return the names of a table's plug-ins. Imports none of them."""
    return sorted({point.name for point in _points(group)})


def rows(group: Group, kind: type[T], own: Collection[str] = ()) -> dict[str, T]:
    """Return the rows of a table's plug-ins by name; {} for completion.

    One that does not load, is not of that kind, or has the name of another row (`own`: labctl's)
    is left out with a PluginWarning.
    """
    found: dict[str, T] = {}
    if COMPLETING in os.environ:
        return found
    for point in _points(group):
        try:
            row = point.load()
        except Exception as error:
            _leave_out(point, _reason(error))
            continue
        named = getattr(row, "name", point.name)
        if not isinstance(row, kind):
            _leave_out(point, f"expected a {kind.__name__}, got a {type(row).__name__}")
        elif named != point.name:
            _leave_out(point, f"the entry point and its row must have one name, got '{named}'")
        elif point.name in own:
            _leave_out(point, "labctl has a row of that name")
        elif point.name in found:
            _leave_out(point, "another plug-in has that name")
        else:
            found[point.name] = row
    return found


def installed() -> list[Plugin]:
    """Return all plug-ins, and import each to see whether it loads."""
    return [
        Plugin(group, point.name, _distribution(point), _problem(point))
        for group in Group
        for point in _points(group)
    ]


def any_installed() -> bool:
    """Return whether there are plug-ins. Imports none of them."""
    return any(names(group) for group in Group)


def _points(group: Group) -> Iterator[EntryPoint]:
    from importlib.metadata import entry_points  # loads much, and --help must be quick

    yield from sorted(entry_points(group=group), key=lambda point: (point.name, point.value))


def _problem(point: EntryPoint) -> str | None:
    try:
        point.load()
    except Exception as error:
        return _reason(error)
    return None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _distribution(point: EntryPoint) -> str:
    """Return "name version" of the distribution that has an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"


def _leave_out(point: EntryPoint, reason: str) -> None:
    warnings.warn(
        f"plug-in '{point.name}' ({point.group}) of {_distribution(point)} is left out: {reason}",
        PluginWarning,
        stacklevel=3,
    )
