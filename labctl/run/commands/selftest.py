"""Run everything that labctl has once on this host, and bundle the tools' output."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import labctl
from labctl.base.errors import LabctlError, UsageError
from labctl.base.events import Listener
from labctl.base.paths import StatePaths, shipped_data
from labctl.base.tuning import Kind
from labctl.base.yamlfile import nearest
from labctl.domain.pinning.pin_plan import default_vcpus
from labctl.guest.images import Image
from labctl.guest.recipe import load_recipe
from labctl.host.accelerator import Accelerator, Requested, accelerator
from labctl.host.facts import host_facts
from labctl.host.identity import read_identity
from labctl.host.topology import read_topology
from labctl.run.commands.bundle import read_bundle, write_bundle
from labctl.run.commands.host_output import ToolOutput, kernel_files, tool_outputs
from labctl.run.commands.live_output import live_outputs
from labctl.run.commands.scrub import Scrubber, is_json
from labctl.run.commands.selftest_result import Outcome, outcome, unavailable
from labctl.run.commands.sweep import sweep
from labctl.run.planning.fitting import fits
from labctl.run.planning.guest_image import built_image
from labctl.run.planning.planned import SweepRequest
from labctl.run.planning.planner import plan_sweep
from labctl.run.planning.requirements import read_offers
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.study.study import Overrides, Study, load_study
from labctl.study.tunings import load_tuning, load_tunings, tuning_names
from labctl.workloads.registry import checkers

STUDY = "selftest"
SEED = 1
"""A self-test repeats itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """Report on a self-test. `taken_out`: how many identifying texts of each kind were removed."""

    outcome: Outcome
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
    _check_folder(target or Path("bundle"))
    study = load_study(STUDY, programs=checkers())
    image = built_image(load_recipe(study.guest.image), places, listener)
    chosen = accelerator(accel, image.kernel, places)
    target = target or Path(f"labctl-selftest-{chosen.name}-{started:%Y%m%dT%H%M%SZ}.tar.xz")
    lacking = _lacking(study, names, chosen)
    with _folder_of_its_own(places) as results:
        request = SweepRequest(
            study=STUDY,
            places=places,
            results=results,
            overrides=Overrides(tunings=[name for name in names if name not in lacking]),
            seed=SEED,
            accel=accel,
        )
        folder, failure = _swept(request, listener)
        run = folder.load()
        outputs = tool_outputs()
        if not failure:
            try:
                outputs |= _live(request, image, chosen, listener)
            except LabctlError as error:
                failure = error.message
        files = {f"run/{name}": data for name, data in _contents(folder.path).items()}
    files |= {f"tools/{name}.txt": output.text.encode() for name, output in outputs.items()}
    files |= {f"kernel/{name}": data for name, data in kernel_files().items()}
    scrubber = Scrubber(read_identity(), _paths(places, results))
    files = {
        name: scrubber.scrubbed(data, is_json=is_json(name, data)) for name, data in files.items()
    }
    shown = outcome(chosen, names, lacking, run, failure)
    tools = {name: output.to_json() for name, output in outputs.items()}
    manifest = _manifest(shown, run, host_facts(places), tools)
    manifest = json.loads(scrubber.scrubbed(json.dumps(manifest).encode(), is_json=True))
    write_bundle(target, {**manifest, "taken_out": dict(scrubber.taken_out)}, files)
    return SelfTest(
        outcome=shown,
        bundle=target,
        files=len(read_bundle(target).files),
        taken_out=dict(scrubber.taken_out),
        seconds=(datetime.now(UTC) - started).total_seconds(),
    )


def restorable(only: Collection[str] = ()) -> tuple[str, ...]:
    """Return the catalogue's guest tunings that a saved baseline can be restored with, or `only`
    these; raises UsageError for one that is none of them."""
    loaded = [load_tuning(name) for name in tuning_names()]
    names = [t.name for t in loaded if t.kind is Kind.GUEST and t.restore]
    for name in only:
        if name not in names:
            raise UsageError(
                f"'{name}' is no tuning that a saved guest is restored with",
                hint=nearest(name, names),
            )
    return tuple(name for name in names if not only or name in only)


def _lacking(study: Study, names: Collection[str], chosen: Accelerator) -> dict[str, str]:
    """Return tunings that this host can't have, and why."""
    tunings = load_tunings(tuple(names))
    topology = read_topology()
    offers = read_offers(
        tunings.values(),
        topology,
        vcpus=study.guest.vcpus or default_vcpus(topology),
        memory_mib=study.guest.memory_mib,
        accelerator=chosen.name,
    )
    return {
        name: "; ".join(hindrance.text for hindrance in fit.hindrances)
        for name, fit in fits(tunings, offers, topology).items()
        if fit.hindrances
    }


def _swept(request: SweepRequest, listener: Listener) -> tuple[RunFolder, str]:
    """Return the run's folder, and what ended it early: "" when it came to its end."""
    try:
        return sweep(request, listener), ""
    except LabctlError as error:
        begun = [folder for folder in RunFolder.all(request.results) if any(folder.trial_folders())]
        if not begun:
            raise
        return begun[-1], error.message


def _live(
    request: SweepRequest, image: Image, chosen: Accelerator, listener: Listener
) -> dict[str, ToolOutput]:
    roles_alone = replace(request, overrides=Overrides(tunings=()))
    return live_outputs(
        request.places,
        plan_sweep(roles_alone, chosen.name),
        request.results,
        image=image,
        accelerator=chosen,
        listener=listener,
    )


@contextmanager
def _folder_of_its_own(places: StatePaths) -> Iterator[Path]:
    """For a run that nobody looks for among their own."""
    places.root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="selftest-", dir=places.root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_folder(target: Path) -> None:
    """Before minutes of work whose result could not be written."""
    if not target.absolute().parent.is_dir():
        raise UsageError(
            f"there is no folder {target.parent}", hint="Make it first, or give another --out."
        )


def _contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _paths(places: StatePaths, results: Path) -> dict[str, str]:
    """Folders that may hold a user's name, to what stands for them."""
    own = {
        str(results): "/var/lib/labctl/selftest",
        str(places.root): "/var/lib/labctl",
        str(shipped_data()): "/usr/share/labctl",
        str(Path.home()): "/root",
    }
    return {old: new for old, new in own.items() if old != "/"}


def _manifest(
    shown: Outcome, run: LoadedRun, facts: Mapping[str, Any], tools: Mapping[str, Any]
) -> dict[str, Any]:
    """`boot_id` stays out: it is this boot's alone, and tells nothing."""
    return {
        "labctl": labctl.__version__,
        "made_on": datetime.now(UTC).date().isoformat(),
        **shown.to_json(),
        "unavailable": unavailable(run),
        "host": {key: value for key, value in facts.items() if key != "boot_id"},
        "tools": tools,
    }
