"""Choose a run's folder: one that was begun, or a new one with all that is known so far."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from labctl.base.errors import HostError
from labctl.run.planning.own_domain import XML
from labctl.run.planning.planned import Planned, SweepRequest
from labctl.store.jsonfile import write_bytes
from labctl.store.run_folder import RunFolder
from labctl.store.run_places import all_runs, find_run_to_change
from labctl.study.load_study import ONE_PROGRAM_FILE, OneProgram
from labctl.study.plan import Plan


def earlier_folder(request: SweepRequest) -> RunFolder | None:
    """Return the folder of the run that is resumed or extended; None for a new run."""
    if not request.earlier:
        return None
    return find_run_to_change(request.results, request.earlier, "resumed or extended")


def last_begun(results: Path) -> RunFolder | None:
    """Return the last run of a folder, by name, that has an attempt of a trial."""
    begun = [folder for folder in all_runs(results) if any(folder.trial_folders())]
    return begun[-1] if begun else None


def folder_path(request: SweepRequest, plan: Plan) -> Path:
    """Return where a new run of the plan is kept."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return request.results.resolve() / f"{moment}-{plan.study}"


def new_folder(path: Path, planned: Planned, program: OneProgram | None) -> RunFolder:
    """Return the run's folder with its plan on disk: before the first trial, and before any
    change.
    """
    try:
        folder = RunFolder.create(path.parent, path.name)
    except OSError as error:
        raise HostError(
            f"cannot make the run's folder {path}: {error.strerror}",
            hint="Name a folder that can be written with --results.",
        ) from error
    folder.write_plan(planned.plan.record())
    if planned.own is not None:
        write_bytes(folder.path / XML, planned.own.domain.xml.encode(), below=folder.path)
    if program is not None:
        write_bytes(folder.path / ONE_PROGRAM_FILE, program.file_text.encode(), below=folder.path)
    return folder
