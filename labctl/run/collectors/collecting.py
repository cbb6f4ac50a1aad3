"""Decide what is collected around a trial's measured window, by the run's level."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from labctl.base.levels import Level
from labctl.run.collectors.counting import frequency_counting, pmu_counting
from labctl.run.collectors.exit_counting import exit_counting
from labctl.run.collectors.tracing import host_tracing
from labctl.run.guests.bench import Bench
from labctl.run.guests.lab import Lab
from labctl.store.trial import TrialFolder


@contextmanager
def collecting(
    lab: Lab, bench: Bench, pid: int, folder: TrialFolder, level: Level, trace_mib: int
) -> Iterator[None]:
    """Attach the collectors and store their raw files at the end. `pid`: natively the process that
    waits to become the workload. `trace_mib`: what there is room for. Raises BrokenError when a
    collector ends before it is asked to."""
    with ExitStack() as stack:
        stack.enter_context(frequency_counting(bench, folder))
        stack.enter_context(pmu_counting(bench, pid, folder))
        if level.holds(Level.TRACE):
            stack.enter_context(host_tracing(lab, bench, pid, folder, trace_mib))
        if level.holds(Level.EXITS):
            # Last: its window is to be the trial's own.
            stack.enter_context(exit_counting(lab, bench, folder))
        yield
