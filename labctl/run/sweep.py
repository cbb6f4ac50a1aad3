"""A sweep from its request to its run folder: everything that is set up around the engine."""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import labctl
from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.events import Listener, Note, Warned
from labctl.base.places import StatePlaces, host_lock
from labctl.base.tuning import Kind, Tuning
from labctl.domain.pincheck import check as check_pins
from labctl.domain.pincheck import refuse
from labctl.domain.pinplan import PinPlan, default_vcpus, picture, pin_plan
from labctl.domain.session import Session
from labctl.guest.build import build
from labctl.guest.images import Image, find
from labctl.guest.recipe import load_recipe
from labctl.host import cgroups, preflight
from labctl.host.accelerator import Accelerator, Requested, accelerator
from labctl.host.facts import host_facts
from labctl.host.journal import Journal
from labctl.host.lock import host_locked
from labctl.host.topology import Topology, read_rt_runtime_us, read_topology
from labctl.run.boots import Boots
from labctl.run.calibrate import Calibrations
from labctl.run.disks import DATA_SIZE_BYTES, DataDisk
from labctl.run.engine import Engine
from labctl.run.guests import guest_xml
from labctl.run.lab import DOMAIN_NAME, Lab
from labctl.run.leftovers import clean_up
from labctl.run.prepare import prepared_disk
from labctl.run.settle import Settler
from labctl.run.signals import cleaning_up, ending_signals_interrupt
from labctl.store.jsonfile import canonical
from labctl.store.run_folder import RunFolder
from labctl.store.trial import TrialStatus
from labctl.study.plan import Plan, changed_tunings, make_plan
from labctl.study.study import Overrides, Study, load_study
from labctl.study.tunings import load_tunings
from labctl.workloads.registry import checkers

MIB = 1024 * 1024
_SOCKET_PATH_BYTES = 107
_IMAGE_BYTES = 3 * 1024 * MIB
"""Tree, qcow2 and the raw disk that a build makes on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """What a user asked for. `resume`: the run to go on with; the rest of its plan is on disk."""

    study: str
    places: StatePlaces
    results: Path
    quick: bool = False
    overrides: Overrides = field(default_factory=Overrides)
    seed: int | None = None
    accel: Requested = "auto"
    connect: str | None = None
    fresh_boots: bool = False
    resume: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan for this host, and what it was made from. Nothing was started or changed."""

    plan: Plan
    tunings: Mapping[str, Tuning]
    topology: Topology
    pin_plan: PinPlan
    warnings: tuple[str, ...]


def plan_sweep(request: SweepRequest) -> Planned:
    """The plan that `sweep` would carry out. Only reads; raises UsageError for a bad request."""
    study = load_study(
        request.study, programs=checkers(), quick=request.quick, overrides=request.overrides
    )
    seed = secrets.randbelow(2**31) if request.seed is None else request.seed
    return _planned(study, seed, asked_for=request.overrides.tunings or ())


def sweep(request: SweepRequest, listener: Listener) -> RunFolder:
    """Carry a study out, or go on with a run; returns its folder.

    Everything that it starts or changes is ended and put back, however it ends. Raises
    LabctlError; KeyboardInterrupt for Ctrl-C, SIGTERM and SIGHUP. The run stays resumable.
    """
    with ExitStack() as stack:
        stack.enter_context(ending_signals_interrupt())
        folder = RunFolder.find(request.results, request.resume) if request.resume else None
        planned = _resumed(folder) if folder else plan_sweep(request)
        what = shlex.join(_command(request, planned.plan))
        path = folder.path if folder else _folder_path(request, planned.plan)
        stack.enter_context(host_locked(host_lock(), what=what, run_folder=path))
        clean_up(request.places, listener)
        _preflight(request, planned.plan, len(planned.pin_plan.vcpus))
        if folder is None:
            folder = _new_folder(path, planned.plan)
        elif _reached(planned.plan, folder).is_over:
            listener(Note(text=f"Run '{folder.name}' has all its trials: nothing is left to do."))
            return folder
        with _recorded(folder, request, planned) as record:
            _carry_out(request, planned, folder, record, listener)
        return folder


def _planned(study: Study, seed: int, asked_for: Any) -> Planned:
    topology = read_topology()
    tunings = load_tunings(study.tunings)
    vcpus = study.guest.vcpus or default_vcpus(topology)
    iothreads = max(tuning.iothreads for tuning in tunings.values())
    pins = pin_plan(topology, vcpus, max(1, iothreads))
    skipped: dict[str, str] = {}
    warnings: list[str] = []
    for name, tuning in tunings.items():
        problems = check_pins(tuning, pins, topology, read_rt_runtime_us())
        if name in asked_for:
            refuse(tuning, problems)
        refusals = [problem.text for problem in problems if problem.refused]
        if refusals:
            skipped[name] = "; ".join(refusals)
        else:
            warnings += [f"{name}: {problem.text}" for problem in problems]
    plan = make_plan(study, tunings, seed=seed, host_digest=_topology_digest(pins), skipped=skipped)
    # The study stays as it is, so that its digest is the same on every host.
    plan = replace(plan, guest=replace(plan.guest, vcpus=vcpus))
    return Planned(
        plan=plan,
        tunings={name: tunings[name] for name in plan.tunings},
        topology=topology,
        pin_plan=pins,
        warnings=tuple(warnings),
    )


def _resumed(folder: RunFolder) -> Planned:
    """The plan of a run, for a host that is still the one it was made for."""
    plan = Plan.from_json(folder.read_plan())
    topology = read_topology()
    tunings = load_tunings(tuple(plan.tunings))
    if plan.guest.vcpus is None:
        raise BrokenError(f"{folder.path / 'plan.json'} does not say how many vCPUs the guest has")
    iothreads = max(tuning.iothreads for tuning in tunings.values())
    pins = pin_plan(topology, plan.guest.vcpus, max(1, iothreads))
    if _topology_digest(pins) != plan.host_digest:
        raise UsageError(
            f"run '{folder.name}' was planned for other CPUs than this host has now",
            hint="Resume it where it began, or start a new run.",
        )
    if changed := changed_tunings(plan, tunings):
        raise UsageError(
            f"{', '.join(changed)}: changed since run '{folder.name}' was planned",
            hint="Put the files in 'domains/' back as they were, or start a new run.",
        )
    return Planned(plan=plan, tunings=tunings, topology=topology, pin_plan=pins, warnings=())


def _topology_digest(pins: PinPlan) -> str:
    return hashlib.sha256(canonical(pins.to_json()).encode()).hexdigest()


def _preflight(request: SweepRequest, plan: Plan, vcpus: int) -> None:
    image = find(load_recipe(plan.guest.image), request.places)
    memory_bytes = plan.guest.memory_mib * MIB
    disk_bytes = 2 * DATA_SIZE_BYTES + 2 * memory_bytes + (0 if image else _IMAGE_BYTES)
    _check_socket_paths(request.places)
    request.places.root.mkdir(parents=True, exist_ok=True)
    preflight.check(
        preflight.preflight(
            state_folder=request.places.root,
            disk_bytes=disk_bytes,
            memory_bytes=memory_bytes,
            vcpus=vcpus,
        )
    )


def _check_socket_paths(places: StatePlaces) -> None:
    """unix(7): the path of a socket ends at 107 bytes; libvirt's own are the longest."""
    longest = f"{places.libvirt_root}/lib/qemu/domain-9999-{DOMAIN_NAME}/monitor.sock"
    if len(longest.encode()) > _SOCKET_PATH_BYTES:
        raise UsageError(
            f"{places.root} is too long a path: sockets below it would pass "
            f"{_SOCKET_PATH_BYTES} bytes",
            hint="Name a shorter folder with --state-dir.",
        )


def _check_same_host(folder: RunFolder, record: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises UsageError when a resumed run would mix two hosts: nothing that it says of "the
    host" would be true then. A new run has nothing to differ from."""
    if "host" not in record:
        return
    differing = [
        f"{name} ({before} then, {after} now)"
        for name, before, after in (
            ("the kernel", *(facts["host"].get("kernel_release") for facts in (record, now))),
            ("QEMU", *(facts["host"].get("qemu") for facts in (record, now))),
            ("the CPU", *(facts["host"].get("cpu_model") for facts in (record, now))),
            ("the image", *(facts["image"]["digest"][:12] for facts in (record, now))),
        )
        if before != after
    ]
    if differing:
        raise UsageError(
            f"run '{folder.name}' was begun on another host than this one is now: "
            f"{'; '.join(differing)}",
            hint="Start a new run, or go back to what the run began with.",
        )


def _folder_path(request: SweepRequest, plan: Plan) -> Path:
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return request.results.resolve() / f"{moment}-{plan.study}"


def _new_folder(path: Path, plan: Plan) -> RunFolder:
    """The run's folder with its plan on disk: before the first trial, and before any change."""
    try:
        folder = RunFolder.create(path.parent, path.name)
    except OSError as error:
        raise HostError(
            f"cannot make the run's folder {path}: {error.strerror}",
            hint="Name a folder that can be written with --results.",
        ) from error
    folder.write_plan(plan.to_json())
    return folder


@contextmanager
def _recorded(
    folder: RunFolder, request: SweepRequest, planned: Planned
) -> Iterator[dict[str, Any]]:
    """run.json, kept true: what is in the dictionary is written now and when the run ends."""
    record = _first_record(request, planned) if not request.resume else folder.read_run()
    record.pop("failure", None)
    record["status"] = "running"
    record["ended_at"] = None
    folder.write_run(record)
    try:
        yield record
        record["status"] = "done"
    except KeyboardInterrupt:
        record["status"] = "interrupted"
        raise
    except BaseException as error:
        record["status"] = "failed"
        record["failure"] = str(error)
        raise
    finally:
        record["ended_at"] = _now()
        with cleaning_up():
            folder.write_run(record)


def _first_record(request: SweepRequest, planned: Planned) -> dict[str, Any]:
    plan = planned.plan
    return {
        "labctl": labctl.__version__,
        "started_at": _now(),
        "command": shlex.join(_command(request, plan)),
        "study": plan.study,
        "title": plan.title,
        "seed": plan.seed,
        "quick": plan.quick,
        "vcpus": plan.guest.vcpus,
        "memory_mib": plan.guest.memory_mib,
        "skipped": dict(plan.skipped),
        "warnings": list(planned.warnings),
        "notes": [],
        "pin_plan": {
            "picture": picture(planned.pin_plan, planned.topology),
            "reasons": [*planned.pin_plan.reasons, *planned.pin_plan.shares],
            "data": planned.pin_plan.to_json(),
        },
    }


def _carry_out(
    request: SweepRequest,
    planned: Planned,
    folder: RunFolder,
    record: dict[str, Any],
    listener: Listener,
) -> None:
    places, plan = request.places, planned.plan
    journal = Journal(places.journal)
    layout = cgroups.detect()
    image = _image(plan.guest.image, places, listener)
    chosen = accelerator(request.accel, image.kernel, places)
    if record.setdefault("accelerator", chosen.name) != chosen.name:
        raise UsageError(
            f"run '{folder.name}' was begun under {record['accelerator']}, and guests run under "
            f"{chosen.name} now",
            hint=f"Resume it with '--accel {record['accelerator']}', or start a new run.",
        )
    listener(Note(text=chosen.reason))
    for warning in planned.warnings:
        listener(Warned(text=warning))
    with ExitStack() as stack:
        work = stack.enter_context(_work_folder(places))
        stack.enter_context(cgroups.controllers_enabled(layout, journal))
        session = stack.enter_context(_session(request, layout))
        lab = Lab(
            places=places,
            work=work,
            image=image,
            accelerator=chosen,
            session=session,
            journal=journal,
            layout=layout,
            topology=planned.topology,
            pin_plan=planned.pin_plan,
            tunings=planned.tunings,
            vcpus=len(planned.pin_plan.vcpus),
            memory_mib=plan.guest.memory_mib,
            data=DataDisk(places.root / "data"),
            listener=listener,
        )
        lab.sockets.mkdir(mode=0o700)
        os.chown(lab.sockets, *session.qemu_user())
        lab.data.make()
        facts = _facts_of_host(lab, chosen)
        _check_same_host(folder, record, facts)
        record.update(facts)
        record["xml"] = _store_xml(lab, folder)
        folder.write_run(record)
        baseline = planned.tunings[plan.roles.baseline]
        calibrations = Calibrations(lab, plan)
        calibrations.count_natively()
        settler = Settler(lab, plan, calibrations)
        reached = _reached(plan, folder)
        boots = Boots(
            lab,
            prepared_disk(lab, baseline),
            baseline,
            settler.settle,
            boots_before=reached.last_boot,
        )
        stack.callback(boots.drop)
        boots.saved(reached.next_boot)
        record.update(settler.facts(record["host"]))
        record["calibration"] = calibrations.summary()
        fresh_boots = record.setdefault("fresh_boots", request.fresh_boots)
        record["restored_state"] = not fresh_boots
        folder.write_run(record)
        engine = Engine(lab, folder, plan, boots, calibrations, fresh_boots=fresh_boots)
        try:
            engine.run()
        finally:
            record["trials"] = engine.counts()
            seconds = {str(number): taken for number, taken in boots.seconds.items()}
            record["boot_seconds"] = record.get("boot_seconds", {}) | seconds


def _image(name: str, places: StatePlaces, listener: Listener) -> Image:
    recipe = load_recipe(name)
    found = find(recipe, places)
    return found if found is not None else build(recipe, places, listener)


@contextmanager
def _work_folder(places: StatePlaces) -> Iterator[Path]:
    """The folder for what only a run needs. Nobody but root may list it; QEMU, which a daemon runs
    as a user of its own, may pass to the disks that it is given. Save files are root's alone."""
    work = places.work
    work.mkdir(parents=True, exist_ok=True)
    work.chmod(0o711)
    try:
        yield work
    finally:
        with cleaning_up():
            for path in sorted(work.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()


@contextmanager
def _session(request: SweepRequest, layout: cgroups.Layout) -> Iterator[Session]:
    if request.connect:
        opened = Session.connected(request.connect)
    else:
        controllers = cgroups.libvirt_controllers(layout)
        opened = Session.embedded(request.places.libvirt_root, controllers)
    with opened as session:
        try:
            yield session
        finally:
            with cleaning_up():
                session.end_all()


@dataclass(frozen=True, slots=True)
class _Reached:
    """How far a run is. `next_boot`: the plan's boot of the first trial that is yet to be done;
    `last_boot`: the number of the last boot that was made, 0 for a new run."""

    is_over: bool
    next_boot: int
    last_boot: int


def _reached(plan: Plan, folder: RunFolder) -> _Reached:
    records = [t.read_record() for t in folder.trial_folders() if t.has("trial.json")]
    done = {record.number for record in records if record.status is TrialStatus.DONE}
    left = [trial.boot for trial in plan.trials if trial.number not in done]
    last = max((record.boot for record in records), default=0)
    return _Reached(not left, left[0] if left else plan.boots, last)


def _facts_of_host(lab: Lab, chosen: Accelerator) -> dict[str, Any]:
    facts = host_facts(lab.places)
    facts["libvirt_session"] = lab.session.versions()
    return {
        "accelerator_reason": chosen.reason,
        "connection": lab.session.uri,
        "host": facts,
        "image": {"name": lab.image.name, "digest": lab.image.digest},
    }


def _store_xml(lab: Lab, folder: RunFolder) -> dict[str, str]:
    """Every guest tuning's domain XML as this run asks for it, for the report's differences."""
    (folder.path / "xml").mkdir(exist_ok=True)
    stored = {}
    for name, tuning in lab.tunings.items():
        if tuning.kind is Kind.GUEST:
            path = f"xml/{name}.xml"
            (folder.path / path).write_text(guest_xml(lab, tuning, lab.work / "root.qcow2"))
            stored[name] = path
    return stored


def _command(request: SweepRequest, plan: Plan) -> list[str]:
    """The command that repeats this run's plan on another day."""
    words = ["labctl", "sweep", plan.study, "--seed", str(plan.seed)]
    if plan.quick:
        words.append("--quick")
    options = {
        "--blocks": request.overrides.blocks,
        "--blocks-per-boot": request.overrides.blocks_per_boot,
        "--vcpus": request.overrides.vcpus,
        "--memory": request.overrides.memory_mib,
        "--duration": request.overrides.duration_s,
    }
    for option, value in options.items():
        if value is not None:
            words += [option, str(value)]
    for option, names in (
        ("--tuning", request.overrides.tunings),
        ("--workload", request.overrides.workloads),
        ("--condition", request.overrides.conditions),
    ):
        for name in names or ():
            words += [option, name]
    if request.accel != "auto":
        words += ["--accel", request.accel]
    if request.connect:
        words += ["--connect", request.connect]
    if request.fresh_boots:
        words.append("--fresh-boots")
    return words


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
