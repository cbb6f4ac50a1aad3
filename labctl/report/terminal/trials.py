"""Show what became of a run's trials: invalid attempts, what was skipped, and time lines."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.text import Text

from labctl.analysis.collecting import level_of
from labctl.analysis.model import Attempts
from labctl.analysis.skipped import skipped
from labctl.analysis.words import few
from labctl.base.levels import Level
from labctl.report.parts import bare_table, skipped_table, text
from labctl.store.run_folder import LoadedRun
from labctl.trace import files


def left_behind(run: LoadedRun, attempts: Attempts) -> list[RenderableType]:
    """Return a table of invalid attempts and one of what was skipped, where there are any."""
    return [*_invalid(attempts), *_skipped(skipped(run.plan, run.run))]


def time_lines(run: LoadedRun) -> list[RenderableType]:
    """Return the command that draws a traced run's trials; [] for a run without a trace."""
    if level_of(run) == Level.TRACE and any(files.has_trace(trial.folder) for trial in run.trials):
        return [text(f"\nEach trial's time line: labctl timeline {run.name}")]
    return []


def _invalid(attempts: Attempts) -> list[RenderableType]:
    """Return how many attempts each arm lost, and why; [] when none did."""
    if not any(arm.invalid for arm in attempts.arms):
        return []
    table = bare_table("Invalid attempts by arm")
    table.add_column("arm", min_width=9, max_width=24, overflow="fold")
    table.add_column("invalid", min_width=9)
    table.add_column("why", overflow="fold")
    for arm in attempts.arms:
        why = "; ".join(few([f"{reason} ({count}×)" for reason, count in arm.reasons], 2))
        table.add_row(text(arm.tuning), text(f"{arm.invalid} of {arm.attempts}"), text(why))
    return [Text(), table]


def _skipped(left_out: Mapping[str, str]) -> list[RenderableType]:
    """Return what this host can't have; [] when it can have all of the study."""
    return [Text(), skipped_table(left_out)] if left_out else []
