"""Head a run's report in a terminal: what ran, how much of it, and how it ended."""

from __future__ import annotations

from rich.text import Text

from labctl.analysis.view import View
from labctl.base.wording import counted
from labctl.report import sentences
from labctl.report.parts import text


def short_head(view: View) -> Text:
    """Return the run's name, state and sizes in one line."""
    run, judgement = view.run, view.judgement
    study = run.plan.study or run.run.study or "unknown study"
    return text(
        f"{study}, run {run.name} ({run.run.status or 'state unknown'}): "
        f"{counted(judgement.blocks, 'block')}, {counted(judgement.boots, 'boot')}, "
        f"{judgement.done} of {counted(judgement.planned, 'trial')}, "
        f"{run.run.accelerator or 'unknown accelerator'}\n"
    )


def head(view: View) -> Text:
    """Return the run's name, state and sizes in a line each."""
    run, judgement = view.run, view.judgement
    study = run.plan.study or run.run.study or "unknown study"
    kind = "quick run" if run.run.quick else "run"
    lines = [
        f"{study}, {kind} {run.name} ({run.run.status or 'state unknown'})",
        f"{counted(judgement.blocks, 'block')}, {counted(judgement.boots, 'boot')}, "
        f"{judgement.done} of {counted(judgement.planned, 'trial')} done, "
        f"{judgement.invalid} invalid, {run.run.where_guests_ran}",
    ]
    if taken := sentences.time_taken(run):
        lines.append(taken)
    if judgement.ending:
        lines.append(judgement.ending)
    if judgement.spares and judgement.spares.sentence:
        lines.append(judgement.spares.sentence)
    return text("\n".join(lines) + "\n")
