"""Write a report's files."""

from __future__ import annotations

from pathlib import Path

from labctl.analysis.model import Judgement
from labctl.base.errors import UsageError
from labctl.report.page.report_page import page
from labctl.store.jsonfile import write_bytes, write_output
from labctl.store.run_folder import LoadedRun

PAGE = "report.html"
"""Name of a run's own page in its folder."""


def write_page(
    run: LoadedRun, judgement: Judgement, folder: Path, target: Path | None = None
) -> Path:
    """Write the page to `target`, by default into the run's folder; returns where it lies.

    Raises UsageError when there is no folder to write it to.
    """
    if target is None:
        target = folder / PAGE
        write_bytes(target, page(run, judgement, folder).encode(), below=folder)
    else:
        check_folder(target)
        write_output(target, page(run, judgement, folder).encode())
    return target


def check_folder(target: Path) -> None:
    """Raise UsageError when there is no folder to write a file to."""
    if not target.absolute().parent.is_dir():
        raise UsageError(
            f"cannot write {target}: there is no folder {target.parent}",
            hint="Make the folder first, or give another file.",
        )
