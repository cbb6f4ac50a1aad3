"""Attach a trial's collectors around its measured window, by the run's level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from labctl.base.levels import Level
from labctl.collect.collector import Attaching, Target
from labctl.collect.table import COLLECTORS


@contextmanager
def collecting(
    target: Target, level: Level, *, before_command: bool = False
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Attach either the collectors that come before the command is prepared, or all others, and
    yield what takes a snapshot of theirs. Their raw files are stored at the end.

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

        def snapshot() -> dict[str, Any]:
            return {key: value for taken in snapshots for key, value in taken().items()}

        yield snapshot
