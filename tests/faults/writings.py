"""What labctl writes and keeps, each with what is there afterwards and how it goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import LabctlError
from labctl.base.paths import StatePaths
from labctl.base.units import Better, Unit
from labctl.cli import main as cli
from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.sweep_hosts import FLEET
from labctl.guest import build, images
from labctl.guest.recipe import Recipe, load_recipe
from labctl.host.settings import knobs
from labctl.host.settings.journal import Journal
from labctl.host.settings.knob import KnobPlace
from labctl.host.settings.tunables import FileValue
from labctl.run.commands import sweep as sweep_module
from labctl.run.commands.sweep import sweep
from labctl.run.resources import disks
from labctl.run.trials import parse
from labctl.store import index
from labctl.store.run_folder import RunFolder
from labctl.store.run_places import all_runs
from labctl.store.samples import Sample
from labctl.study.load_study import Overrides
from tests.unit.domain import hosts
from tests.unit.host import fake_host
from tests.unit.run.asked import plan_on, request
from tests.unit.run.engines import World
from tests.unit.synthetic import WORKLOADS, synthetic_run, write_run

Act = Callable[[Path], object]
LEFT_OUT = "is left out"
"""What labctl says of a trial that it knows to be damaged."""


def _files(place: Path) -> Iterable[str]:
    for folder, _, names in os.walk(place):
        yield from (os.path.relpath(os.path.join(folder, name), place) for name in names)


@dataclass(frozen=True, kw_only=True)
class Writing:
    """`place`/kept is what is failed in; the rest of `place` is out of the shim's sight."""

    prepare: Act
    act: Act
    left: Callable[[Path], dict[str, Any]]
    """What a user finds, by part: each must be the old one or the new one."""
    again: Act
    """What a user does after a failure, until everything is new."""
    is_undone: bool = False
    """Whether `again` ends in the old state."""
    says: frozenset[object] = frozenset()
    """What a part may be said to be meanwhile."""
    may_be_missing: bool = False
    """Whether labctl goes on without what cannot be written."""
    names: Callable[[Path], Iterable[str]] = _files


def labctl(*words: str) -> Callable[[Path], object]:
    """A command as typed; {place} is its folder."""

    def act(place: Path) -> None:
        os.environ["LABCTL_RESULTS"] = str(place / "kept/results")
        os.environ["LABCTL_STATE_DIR"] = str(place / "state")
        sys.argv = ["labctl", *(word.format(place=place) for word in words)]
        cli.main()

    return act


@contextmanager
def _said() -> Iterator[None]:
    """The sentence and the exit status that a command has for an error."""
    try:
        yield
    except LabctlError as error:
        sys.stderr.write(f"{error.message}\n")
        raise SystemExit(int(error.exit_code)) from error
    except OSError as error:
        if error.errno not in cli._HOST_HINTS:
            raise
        sys.stderr.write(f"{error}\n")
        raise SystemExit(3) from error


def _patched(act: Callable[[pytest.MonkeyPatch, Path], object]) -> Act:
    """Something whose patches need no undoing, since its process ends with it."""
    return lambda place: act(pytest.MonkeyPatch(), place)


def _small_run(folder: Path) -> None:
    """Three trials."""
    workloads = dict([next(iter(WORKLOADS.items()))])
    tunings = ("native", "baseline", "pinned")
    write_run(folder, synthetic_run(blocks=1, tunings=tunings, workloads=workloads))


def _read(run: RunFolder) -> dict[str, Any]:
    """The trials of a run, each by what its readings are."""
    loaded = run.load()
    found: dict[str, Any] = {
        trial.folder.path.name: [[str(r), getattr(r, "value", None)] for r in trial.readings]
        for trial in loaded.trials
    }
    found |= {text.split()[1]: LEFT_OUT for text in loaded.problems if LEFT_OUT in text}
    return found


# A sweep with made-up machines: its plan, its record and its trials are the real ones.


def _sweep(patch: pytest.MonkeyPatch, place: Path, resume: str | None = None) -> None:
    plan_on(patch, hosts.TWO_CPUS)
    patch.setattr(sweep_module, "host_lock", lambda: place / "lock")
    patch.setattr(sweep_module, "clean_up", lambda places, listener: None)
    patch.setattr(sweep_module, "check_host", lambda request, planned, path: None)
    sample = Sample(
        metric="events_per_s", value=1.0, unit=Unit.COUNT, better=Better.HIGHER, source="stdout.txt"
    )

    def carry_out(request: Any, planned: Any, log: Any, listener: Any, why_end: Any) -> None:
        world = World(patch, place)
        world.parse = lambda record: [sample]
        world.engine(planned.plan, log.folder).run()

    patch.setattr(sweep_module, "measure", carry_out)
    study = Path(__file__).parents[1] / "guest/tiny.yaml"
    asked = request(
        place,
        study=str(study),
        quick=False,
        resume=resume,
        results=place / "kept/results",
        overrides=Overrides() if resume else Overrides(conditions=("quiet",)),
    )
    with _said():
        sweep(asked, lambda event: None)


def _trials(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for run in all_runs(place / "kept/results"):
        found |= _read(run)
    return found


def _resume(patch: pytest.MonkeyPatch, place: Path) -> None:
    for run in all_runs(place / "kept/results"):
        with suppress(LabctlError):
            run.read_run()
            run.read_plan()
            return _sweep(patch, place, run.name)
    return _sweep(patch, place)


def _names_of_runs(place: Path) -> Iterable[str]:
    """Files of runs without the runs' names, which hold a time. Hidden folders count as well: one
    that a run has just left is empty, and goes with the next sweep."""
    for run in (place / "kept/results").glob("*"):
        yield from _files(run)


WRITINGS: dict[str, Writing] = {}
WRITINGS["sweep"] = Writing(
    prepare=lambda place: None,
    act=_patched(_sweep),
    left=_trials,
    again=_patched(_resume),
    says=frozenset({LEFT_OUT}),
    names=_names_of_runs,
)


# Commands on a run.


def _run_in(place: Path) -> None:
    _small_run(place / "kept/results/one")


def _reparse(patch: pytest.MonkeyPatch, place: Path) -> None:
    sample = Sample(metric="ipc", value=2.0, unit=Unit.COUNT, better=Better.HIGHER, source="x.txt")
    patch.setattr(parse, "parse_trial", lambda folder, record: [sample])
    labctl("run", "reparse", "one")(place)


def _of_one(place: Path) -> dict[str, Any]:
    return _read(RunFolder(place / "kept/results/one"))


WRITINGS["reparse"] = Writing(
    prepare=_run_in,
    act=_patched(_reparse),
    left=_of_one,
    again=_patched(_reparse),
    says=frozenset({LEFT_OUT}),
)


def _archive_in(place: Path) -> None:
    _small_run(place / "made")
    (place / "kept/results").mkdir()
    labctl("run", "export", str(place / "made"), "--out", str(place / "one.tar.xz"))(place)


def _after(prepare: Act, *acts: Act) -> Act:
    """Commands that end well, one after the other."""

    def act(place: Path) -> None:
        prepare(place)
        for one in acts:
            with suppress(SystemExit):
                one(place)

    return act


def _unless(there: str, act: Act) -> Act:
    """What is repeated only where there is nothing yet: labctl overwrites no run."""
    return lambda place: None if (place / there).exists() else act(place)


def _imported(place: Path) -> dict[str, Any]:
    """Runs by their name: each is there wholly, or not at all."""
    runs = all_runs(place / "kept/results")
    return {run.name: sorted(_files(run.path)) + [_read(run)] for run in runs}


_IMPORT = labctl("run", "import", "{place}/one.tar.xz", "--name", "one")
WRITINGS["import"] = Writing(
    prepare=_after(_archive_in),
    act=_IMPORT,
    left=_imported,
    again=_unless("kept/results/one", _IMPORT),
)

_CSV = "tuning,workload,condition,block,metric,value,unit,better\n" + "".join(
    f"{tuning},w,quiet,{block},m,{block},s,lower\n" for block in (1, 2) for tuning in "ab"
)


def _csv_in(place: Path) -> None:
    (place / "trials.csv").write_text(_CSV)
    (place / "kept/results").mkdir()


_IMPORT_CSV = labctl(
    "run", "import", "{place}/trials.csv", "--name", "one", "--baseline", "a", "--primary", "m"
)
WRITINGS["import-csv"] = Writing(
    prepare=_csv_in,
    act=_IMPORT_CSV,
    left=_imported,
    again=_unless("kept/results/one", _IMPORT_CSV),
)


def _exported(place: Path) -> dict[str, Any]:
    path = place / "kept/one.tar.xz"
    return {"archive": _read(RunFolder.in_archive(path))} if path.exists() else {}


def _made(place: Path) -> None:
    _small_run(place / "made/one")


_EXPORT = labctl("run", "export", "{place}/made/one", "--out", "{place}/kept/one.tar.xz")
WRITINGS["export"] = Writing(prepare=_made, act=_EXPORT, left=_exported, again=_EXPORT)
_REDACT = labctl(
    "run", "export", "{place}/made/one", "--out", "{place}/kept/one.tar.xz", "--redact"
)
WRITINGS["export-redacted"] = Writing(prepare=_made, act=_REDACT, left=_exported, again=_REDACT)


def _exported_folder(place: Path) -> dict[str, Any]:
    path = place / "kept/one"
    return {"run": sorted(_files(path)) + [_read(RunFolder(path))]} if path.exists() else {}


_EXPORT_FOLDER = labctl("run", "export", "{place}/made/one", "--out", "{place}/kept/one")
WRITINGS["export-folder"] = Writing(
    prepare=_made,
    act=_EXPORT_FOLDER,
    left=_exported_folder,
    again=_unless("kept/one", _EXPORT_FOLDER),
)


# What labctl derives from a run.


def _load_indexed(patch: pytest.MonkeyPatch, place: Path) -> None:
    patch.setattr(index, "_SMALLEST_BYTES", 0)
    patch.setattr(index, "_SETTLED_NS", -(10**12))
    RunFolder(place / "kept/results/one").load()


def _indexed(place: Path) -> dict[str, Any]:
    run = RunFolder(place / "kept/results/one")
    return {**_read(run), "index": (run.path / index.NAME).exists()}


WRITINGS["index"] = Writing(
    prepare=_run_in,
    act=_patched(_load_indexed),
    left=_indexed,
    again=_patched(_load_indexed),
    may_be_missing=True,
)


# A fleet.


def _archives_in(place: Path) -> None:
    for host in ("h1", "h2"):
        _small_run(place / "made" / host)
        with suppress(SystemExit):
            words = ("run", "export", f"{place}/made/{host}", "--out", f"{place}/{host}.tar.xz")
            labctl(*words)(place)


def _fleet(place: Path) -> dict[str, Any]:
    path = place / "kept/results/fleet"
    if not (path / FLEET).exists():
        return {}
    fleet = FleetFolder.open(path)
    return {
        host: _read(fleet.run(host)) if fleet.state(host).status == "done" else "waiting"
        for host in fleet.hosts()
    }


_ADD = labctl("fleet", "add", "fleet", "{place}/h1.tar.xz", "{place}/h2.tar.xz")
_ADD_AGAIN = labctl("fleet", "add", "fleet", "{place}/h1.tar.xz", "{place}/h2.tar.xz", "--replace")
WRITINGS["fleet-add"] = Writing(
    prepare=_archives_in,
    act=_ADD,
    left=_fleet,
    again=_ADD_AGAIN,
    says=frozenset({"waiting"}),
    names=lambda place: (name for name in _files(place) if not name.endswith("/.lock")),
)


# The host's settings. They lie outside of `kept`: the kernel tears none of its own.


def _journal(place: Path) -> Journal:
    return Journal(place / "kept/journal.jsonl")


def _turn(patch: pytest.MonkeyPatch, place: Path) -> None:
    patch.setattr(FileValue, "write", lambda self, value: Path(self.path).write_text(value))
    where = KnobPlace(
        root=place / "host", housekeeping=frozenset({0, 2}), isolated=frozenset({1, 3})
    )
    with _said(), _journal(place).changing() as changes:
        knobs.turn({"swappiness": "10", "numa-balancing": "0", "watchdog": "0"}, where, changes)
        changes.keep("swappiness-10")


def _host(place: Path) -> None:
    fake_host.make(place / "host")


def _restore(patch: pytest.MonkeyPatch, place: Path) -> None:
    patch.setattr(FileValue, "write", lambda self, value: Path(self.path).write_text(value))
    with _said():
        _journal(place).restore_all(kept=True)


def _settings(place: Path) -> dict[str, Any]:
    return dict(fake_host.values(place / "host"))


WRITINGS["tune"] = Writing(
    prepare=_host,
    act=_patched(_turn),
    left=_settings,
    again=_patched(_restore),
    is_undone=True,
)
WRITINGS["restore"] = Writing(
    prepare=_after(_host, _patched(_turn)),
    act=_patched(_restore),
    left=_settings,
    again=_patched(_restore),
)


# Images of guests, of a few files.


def _places(place: Path) -> StatePaths:
    return StatePaths(place / "kept")


def _build_in(working: Path, recipe: Recipe, fetched: object, listener: object) -> dict[str, Any]:
    for name in (images.DISK, images.KERNEL, f"{images.TREE}/etc/os-release"):
        (working / name).parent.mkdir(parents=True, exist_ok=True)
        (working / name).write_text(f"{name}\n")
    keys = dict.fromkeys(("command_line", "files", "binaries", "packages"), "")
    return {"name": recipe.name, "digest": recipe.digest, **keys}


def _build(patch: pytest.MonkeyPatch, place: Path) -> None:
    patch.setattr(build, "_build_in", _build_in)
    patch.setattr(build, "_check_space", lambda recipe, base, folder: None)
    patch.setattr(os, "geteuid", lambda: 0)
    with _said():
        build.build(load_recipe("debian-13"), _places(place), lambda event: None)


def _image(place: Path) -> dict[str, Any]:
    """The image's files, if it counts as built."""
    found = images.find(load_recipe("debian-13"), _places(place))
    if found is None:
        return {}
    return {"files": {name: (found.dir / name).stat().st_size > 0 for name in _files(found.dir)}}


def _image_names(place: Path) -> Iterable[str]:
    return (name for name in _files(place) if not name.endswith("/.lock"))


def _remove(place: Path) -> None:
    found = images.find(load_recipe("debian-13"), _places(place))
    with _said():
        if found is not None:
            images.remove(found, _places(place))
        with images.images_lock(_places(place)):
            images.remove_leftovers(_places(place))


WRITINGS["image-build"] = Writing(
    prepare=lambda place: None,
    act=_patched(_build),
    left=_image,
    again=_patched(_build),
    names=_image_names,
)
WRITINGS["image-rm"] = Writing(
    prepare=_patched(_build), act=_remove, left=_image, again=_remove, names=_image_names
)


# What guests' disks begin with.


def _data_disks(patch: pytest.MonkeyPatch, place: Path) -> None:
    patch.setattr(disks, "DATA_DISK_BYTES", 3 << 20)
    with _said():
        disks.DataDisks(place / "kept/data", formats=frozenset({disks.RAW, disks.QCOW2})).make()


def _disks(place: Path) -> dict[str, Any]:
    """Whether what is there under its name is whole: its random bytes are of no account."""
    found = {}
    for path in (place / "kept/data").glob("[!.]*"):
        found[path.name] = path.stat().st_size >= 3 << 20
    return found


WRITINGS["data-disks"] = Writing(
    prepare=lambda place: None, act=_patched(_data_disks), left=_disks, again=_patched(_data_disks)
)
