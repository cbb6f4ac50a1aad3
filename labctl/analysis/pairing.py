"""Decide whether a run's arms may be paired within its blocks (METHOD 30)."""

from __future__ import annotations

from labctl.store.run_folder import LoadedRun


def is_interleaved(run: LoadedRun) -> bool:
    """Return whether each block of a run holds its arms side by side, so that a difference within a
    block is free of what changed between blocks.

    labctl's own plans are made so, and have a seed. Of an imported run its plan says it; older
    imports say nothing, and then nothing is known.
    """
    if not run.run.imported:
        return True
    return run.plan.interleaved is True or run.plan.seed is not None
