"""Print what a run found for people: as it was printed before, if nothing has changed since."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from labctl.cli.common import console
from labctl.store.kept_text import looked_at, show_kept

if TYPE_CHECKING:
    from rich.console import Console

    from labctl.analysis.model import Judgement
    from labctl.store.run_folder import LoadedRun


def print_kept(
    kept: Path,
    place: Path,
    run_name: str,
    metrics: tuple[str, ...],
    workloads: tuple[str, ...],
    *,
    full: bool,
) -> None:
    """Print the run of that name in `place`. `kept`: where printed reports are kept. What makes one
    is loaded only where none holds."""

    def made() -> str:
        from labctl.analysis.judge import judge
        from labctl.store.fresh_runs import fresh_runs
        from labctl.store.run_folder import PAGE
        from labctl.store.run_places import find_run

        folder = find_run(place, run_name)
        run = folder.load_planned()
        judgement = judge(run, fresh_runs(folder, place))
        shown = console()
        with shown.capture() as captured:
            if metrics:
                from labctl.report.terminal.metric_table import print_metrics

                print_metrics(shown, run, judgement, metrics, workloads)
            else:
                page = folder.path / PAGE
                looked_at(page)
                print_answer(shown, run, judgement, page if page.is_file() else None, full=full)
        return captured.get()

    question = ("report", run_name, str(place), repr(metrics), repr(workloads), str(full))
    show_kept(kept, question, made, _print)


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def print_answer(
    shown: Console, run: LoadedRun, judgement: Judgement, page: Path | None, *, full: bool = False
) -> None:
    """Print what a run found. `page`: where its page lies; `full`: with all tables."""
    if full:
        from labctl.report.terminal.tables import print_report as show
    else:
        from labctl.report.terminal.short import print_short as show

    show(shown, run, judgement, html=page)
