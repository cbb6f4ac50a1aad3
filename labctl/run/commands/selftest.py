"""Run everything that labctl has once on this host, and bundle the tools' output."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labctl.base.errors import LabctlError
from labctl.base.events import Listener
from labctl.base.paths import StatePaths
from labctl.host.accelerator import Requested
from labctl.run.commands.choose_folder import last_begun
from labctl.run.commands.host_output import tool_outputs
from labctl.run.commands.live_output import live_outputs
from labctl.run.commands.selftest_bundle import pack
from labctl.run.commands.selftest_result import SelftestResult, outcome
from labctl.run.commands.sweep import sweep
from labctl.run.planning.guest_image import accelerator_of, recipe_asked_for
from labctl.run.planning.planned import SweepRequest
from labctl.run.planning.restorable import not_here, restorable
from labctl.study.load_study import Overrides, load_study
from labctl.workloads.registry import checkers

STUDY = "selftest"
SEED = 1
"""A self-test repeats itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """Report on a self-test. `taken_out`: how many identifying texts of each kind were removed."""

    outcome: SelftestResult
    bundle: Path
    files: int
    taken_out: Mapping[str, int]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "bundle": str(self.bundle),
            "files": self.files,
            "taken_out": dict(self.taken_out),
            "seconds": round(self.seconds, 1),
            **self.outcome.to_json(),
        }


def selftest(
    places: StatePaths,
    target: Path | None,
    listener: Listener,
    *,
    accel: Requested = "auto",
    only: Collection[str] = (),
) -> SelfTest:
    """Run the study `selftest` with every restorable tuning (or `only` these) and bundle it.

    `target`: where the bundle goes; None: to a name of its own in the present folder. Raises
    UsageError for a tuning that isn't there or can't be restored; what `sweep` raises before its
    first trial. A run that breaks off later is bundled as far as it got.
    """
    started = datetime.now(UTC)
    names = restorable(only)
    study = load_study(STUDY, programs=checkers())
    recipe = recipe_asked_for(study.guest.image, None, None)
    chosen = accelerator_of(recipe, places, accel, listener)
    target = target or Path(f"labctl-selftest-{chosen.name}-{started:%Y%m%dT%H%M%SZ}.tar.xz")
    lacking = not_here(names, study.guest, chosen.name)
    with _folder_of_its_own(places) as results:
        request = SweepRequest(
            study=STUDY,
            places=places,
            results=results,
            overrides=Overrides(tunings=[name for name in names if name not in lacking]),
            seed=SEED,
            accel=accel,
        )
        failure = ""
        try:
            folder = sweep(request, listener)
        except LabctlError as error:
            if (begun := last_begun(results)) is None:
                raise
            folder, failure = begun, error.message
        run = folder.load()
        outputs = tool_outputs()
        if not failure:
            try:
                outputs |= live_outputs(request, chosen.name, listener)
            except LabctlError as error:
                failure = error.message
        shown = outcome(chosen, names, lacking, run, failure)
        packed = pack(target, shown, folder, outputs, places, results)
    return SelfTest(
        outcome=shown,
        bundle=target,
        files=packed.files,
        taken_out=packed.taken_out,
        seconds=(datetime.now(UTC) - started).total_seconds(),
    )


@contextmanager
def _folder_of_its_own(places: StatePaths) -> Iterator[Path]:
    """Make a folder for the run, apart from the user's own."""
    places.root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="selftest-", dir=places.root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
