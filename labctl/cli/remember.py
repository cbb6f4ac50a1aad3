"""Keep what a run has shown of this host for later runs."""

from __future__ import annotations

from labctl.analysis.model import Judgement
from labctl.run.planning.planned import SweepRequest
from labctl.store.restores import Checked, remember
from labctl.store.run_folder import RunFolder


def remember_restores(request: SweepRequest, folder: RunFolder, judgement: Judgement) -> None:
    """Keep what the run has shown of restored guests for later runs (METHOD 8)."""
    if judgement.restored:
        remember(
            request.places.restore_checks,
            folder.name,
            folder.read_run(),
            folder.load().plan,
            (Checked(c.name, c.workload, c.condition, c.passed) for c in judgement.restored),
        )
