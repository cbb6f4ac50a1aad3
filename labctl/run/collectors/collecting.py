"""Attach a trial's collectors by the run's level, and report those that cannot work here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from labctl.base.interpreter import collection_paused
from labctl.base.paths import StatePaths
from labctl.base.tuning import Level, Tuning
from labctl.collect.collector import Attaching, Collector, Edge, Here, Snapshot, Target
from labctl.collect.table import COLLECTORS
from labctl.collect.threads import task_clock
from labctl.domain.orphans import reaping_paused
from labctl.guest.images import find
from labctl.guest.recipe import load_recipe
from labctl.host.accelerator import Requested, known_accelerator
from labctl.study.load_study import load_study
from labctl.workloads.registry import checkers

# Attach a trial's collectors around its measured window, by the run's level.


@dataclass(frozen=True, slots=True)
class Edges:
    """Take the collectors' snapshots at the edges of the measured window, in the table's order: the
    first is read next to the window, so that its counts exclude the reading of the others."""

    _snapshots: Sequence[Snapshot]

    def before(self) -> dict[str, object]:
        return _taken(self._snapshots[::-1], Edge.OPENS)

    def after(self) -> dict[str, object]:
        return _taken(self._snapshots, Edge.CLOSES)


@contextmanager
def collecting(target: Target, level: Level, *, before_command: bool = False) -> Iterator[Edges]:
    """Attach either the collectors that come before the command is prepared, or all others, and
    yield their snapshots. Their raw files are stored at the end.

    Raises BrokenError if one ends early.
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


def _taken(snapshots: Sequence[Snapshot], edge: Edge) -> dict[str, object]:
    return {key: value for snapshot in snapshots for key, value in snapshot(edge).items()}


# Report what this host cannot collect, before anything is booted.


def tried(places: StatePaths, accel: Requested, study: str) -> dict[Collector, str | None]:
    """Return every collector with the reason why it cannot work here for that study, None if it
    can. Boots nothing."""
    image = load_study(study, programs=checkers()).guest.image
    found = find(load_recipe(image), places)
    at = Here(
        accelerator=known_accelerator(accel, found.kernel if found else None, places),
        tree=found.tree if found else None,
    )
    return {collector: collector.why_unavailable(at) for collector in COLLECTORS}


def lacking(level: Level, at: Here) -> list[str]:
    """Return a sentence for each collector that `level` adds to counters and that cannot work
    here."""
    added = (known for known in COLLECTORS if known.level != Level.COUNTERS)
    reasons = {known: known.why_unavailable(at) for known in added if level.holds(known.level)}
    return [
        f"'{known.name}' ({known.gives.partition(':')[0]}) collects nothing here: {reason}"
        for known, reason in reasons.items()
        if reason is not None
    ]


def without_clocks(tunings: Iterable[Tuning]) -> list[str]:
    """Return the consequences for a run with neighbours if this kernel cannot report where they
    ran; [] if there are none."""
    pinned = [tuning.name for tuning in tunings if tuning.pin.vcpus is not None]
    if not pinned:
        return []
    problem = task_clock.why_unavailable()
    if problem is None:
        return []
    return [
        "Beside neighbours, trials of arms with fewer CPUs than those may be invalid "
        f"({', '.join(pinned)}), because labctl cannot measure the CPU time of other "
        f"processes: {problem}"
    ]
