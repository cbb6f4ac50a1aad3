"""Attach a trial's collectors around its measured window, by the run's level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from labctl.base.garbage import collection_paused
from labctl.base.levels import Level
from labctl.collect.collector import Attaching, Edge, Snapshot, Target
from labctl.collect.table import COLLECTORS
from labctl.domain.orphans import reaping_paused


@dataclass(frozen=True, slots=True)
class Edges:
    """Take the snapshots at the edges of the measured window, of collectors in the table's order:
    the first is read next to the window, so that reading the others is outside of what it counts.
    """

    _snapshots: Sequence[Snapshot]

    def before(self) -> dict[str, Any]:
        return _taken(self._snapshots[::-1], Edge.OPENS)

    def after(self) -> dict[str, Any]:
        return _taken(self._snapshots, Edge.CLOSES)


@contextmanager
def collecting(target: Target, level: Level, *, before_command: bool = False) -> Iterator[Edges]:
    """Attach either the collectors that come before the command is prepared, or all others, and
    yield what takes their snapshots. Their raw files are stored at the end.

    Raises BrokenError when one ends before it is asked to.
    """
    chosen = [
        collector
        for collector in COLLECTORS
        if (collector.attaching is Attaching.BEFORE_COMMAND) is before_command
        and level.holds(collector.level)
        and target.kind in collector.sides
    ]
    with ExitStack() as stack:
        taken = {
            collector: stack.enter_context(collector.attached(target))
            for collector in sorted(chosen, key=lambda collector: collector.attaching)
        }
        snapshots = [found for collector in chosen if (found := taken[collector]) is not None]
        with collection_paused(), reaping_paused():
            yield Edges(snapshots)


def _taken(snapshots: Sequence[Snapshot], edge: Edge) -> dict[str, Any]:
    return {key: value for snapshot in snapshots for key, value in snapshot(edge).items()}
