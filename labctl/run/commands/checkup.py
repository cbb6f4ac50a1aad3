"""Run doctor's checks with what a study (or the whole catalogue) needs from this host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base.cpus import format_cpus
from labctl.base.errors import HostError, LabctlError, UsageError
from labctl.base.levels import Level
from labctl.base.paths import StatePaths, host_lock, results_folder
from labctl.base.tuning import Kind, Tuning
from labctl.domain.pinning.pin_plan import PinPlan, default_vcpus, pin_plan
from labctl.guest.images import find, list_images
from labctl.guest.recipe import load_recipe
from labctl.host import doctor
from labctl.host.accelerator import Accelerator, Requested, accelerator
from labctl.host.doctor.activity import observe
from labctl.host.doctor.model import Finding, Scope, Status, some
from labctl.host.doctor.reader import Reader
from labctl.host.topology import Topology, read_topology
from labctl.run.collectors.trace_room import Window, forecast
from labctl.run.planning.fitting import fits
from labctl.run.planning.needed_tracers import Kernels, lacking, tracers_of
from labctl.run.planning.planned import has_peers
from labctl.run.planning.requirements import read_offers
from labctl.run.resources.disks import disk_bytes_needed
from labctl.run.resources.huge_pages import MIB
from labctl.study.study import Overrides, Study, load_study
from labctl.study.tunings import load_tuning, tuning_names
from labctl.workloads.registry import checkers

OBSERVED_S = 0.5
"""Long enough for steal to show (a tick is 10 ms), short enough to wait for."""

IMAGE = "debian-12"
MEMORY_MIB = 1024
"""Default memory of studies."""

GROUP = "study"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningState:
    """Say whether a tuning can run here: `lacking` says why not, `remedies` what to do about each,
    `warnings` what it would do."""

    name: str
    description: str
    lacking: tuple[str, ...]
    remedies: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def runs(self) -> bool:
        return not self.lacking

    def to_json(self) -> dict[str, Any]:
        fields = ("name", "runs", "lacking", "remedies", "warnings")
        found = {name: getattr(self, name) for name in fields}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Hold doctor's findings for a study. `study`: its name, None for the whole catalogue;
    `tunings`: those of it.
    """

    study: str | None
    findings: tuple[Finding, ...]
    tunings: tuple[TuningState, ...]

    @property
    def blocked(self) -> bool:
        return any(finding.status is Status.BLOCK for finding in self.findings)


def checkup(
    places: StatePaths,
    study_name: str | None = None,
    hwlat_s: int | None = None,
    level: Level | None = None,
    results: Path | None = None,
) -> Checkup:
    """Return every check of this host and what stands against each tuning of a study, or of the
    catalogue. Only the boot probe's answer is written, to the cache. `hwlat_s`: for how long to
    look for what firmware takes from the CPUs, None for not at all. `level`: what is to be
    collected, None for what the study says; `results`: where its run would be stored.

    Raises UsageError when there is no such study or one of its tunings is wrong.
    """
    reader = Reader()
    activity = observe(reader, OBSERVED_S)
    study = None
    if study_name:
        study = load_study(study_name, programs=checkers(), overrides=Overrides(collect=level))
    tunings, broken = _tunings(study)
    topology = read_topology()
    vcpus = (study.guest.vcpus if study else None) or default_vcpus(topology)
    memory_mib = study.guest.memory_mib if study else MEMORY_MIB
    image = study.guest.image if study else IMAGE
    answer = _accelerator(image, places)
    pins, pinned = _pins(topology, vcpus)
    scope = Scope(
        accelerator=answer,
        activity=activity,
        state_folder=places.root,
        lock=host_lock(),
        journal=places.journal,
        cpus=pins.vcpu_cpus if pins else frozenset(),
        memory_bytes=memory_mib * MIB,
        disk_bytes=disk_bytes_needed(memory_mib * MIB, image_is_built=_is_built(image, places)),
        tunings=tunings,
        has_link=study is None or has_peers(study),
        hwlat_s=hwlat_s,
    )
    findings = doctor.check(reader, scope)
    findings += [pinned, _image(image, places)]
    if study is not None:
        findings += _workloads(study, tunings, places)
        findings += _trace_room(study, tunings, results or results_folder(places))
    states: list[TuningState] = []
    if pins is not None:
        states = _states(tunings, topology, vcpus, memory_mib, answer)
        findings.append(_choice(study, tunings, states, broken))
    return Checkup(
        study=study.name if study else None, findings=tuple(findings), tunings=tuple(states)
    )


def _tunings(study: Study | None) -> tuple[dict[str, Tuning], dict[str, str]]:
    """Return the tunings by name; of the catalogue, those that can't be loaded with the reason."""
    if study is not None:
        return {name: load_tuning(name) for name in study.tunings}, {}
    found: dict[str, Tuning] = {}
    broken: dict[str, str] = {}
    for name in tuning_names():
        try:
            found[name] = load_tuning(name)
        except LabctlError as error:
            broken[name] = error.message
    return found, broken


def accelerator_here(image: str, places: StatePaths, requested: Requested = "auto") -> Accelerator:
    """Return what guests run under, by booting the kernel of that image, or any other that is at
    hand; raises HostError when there is none."""
    return accelerator(requested, _kernel(image, places), places)


def _accelerator(image: str, places: StatePaths) -> Accelerator | LabctlError:
    try:
        return accelerator_here(image, places)
    except LabctlError as error:
        return error


def _kernel(image: str, places: StatePaths) -> Path:
    """Return what the probe boots: the image's kernel, another image's, else this host's own."""
    built = find(load_recipe(image), places) or next(iter(list_images(places)), None)
    if built is not None:
        return built.kernel
    release = Path("/proc/sys/kernel/osrelease").read_text(encoding="utf-8").strip()
    own = Path(f"/boot/vmlinuz-{release}")
    if own.is_file():
        return own
    raise HostError(
        "whether KVM works is found out by booting a kernel, and no guest image is built yet",
        hint=f"labctl image build {image}",
    )


def _is_built(image: str, places: StatePaths) -> bool:
    return find(load_recipe(image), places) is not None


def _states(
    tunings: Mapping[str, Tuning],
    topology: Topology,
    vcpus: int,
    memory_mib: int,
    answer: Accelerator | LabctlError,
) -> list[TuningState]:
    offers = read_offers(
        tunings.values(),
        topology,
        vcpus=vcpus,
        memory_mib=memory_mib,
        accelerator=answer.name if isinstance(answer, Accelerator) else None,
    )
    return [
        TuningState(
            name=name,
            description=tunings[name].description,
            lacking=tuple(hindrance.text for hindrance in fit.hindrances),
            remedies=tuple(dict.fromkeys(hindrance.remedy for hindrance in fit.hindrances)),
            warnings=tuple(problem.text for problem in fit.crowding if not problem.refused),
        )
        for name, fit in fits(tunings, offers, topology).items()
    ]


def _pins(topology: Topology, vcpus: int) -> tuple[PinPlan | None, Finding]:
    """Return the pin plan, None where there is no room for it, and what there is to say of it."""
    why = (
        "Pinned vCPUs, QEMU's own threads and the host's housekeeping each want CPUs of their "
        "own; what shares one waits for the other."
    )
    try:
        plan = pin_plan(topology, vcpus, 1)
    except UsageError as error:
        return None, Finding(
            name="pin-plan",
            group=GROUP,
            status=Status.BLOCK,
            found=error.message,
            why=why,
            remedy=error.hint or "labctl pin plan",
        )
    shown = (
        f"vCPUs on CPU {format_cpus(plan.vcpus)}, emulator on {format_cpus(plan.emulator)}, "
        f"housekeeping on {format_cpus(plan.housekeeping)}"
    )
    return plan, Finding(
        name="pin-plan",
        group=GROUP,
        status=Status.WARN if plan.shares else Status.OK,
        found=f"{shown}. {' '.join(plan.shares)}".rstrip(". "),
        why=why,
        remedy="labctl pin plan  # draws it and says why" if plan.shares else "",
        value=plan.to_json(),
    )


def _image(image: str, places: StatePaths) -> Finding:
    built = _is_built(image, places)
    return Finding(
        name="guest-image",
        group=GROUP,
        status=Status.OK if built else Status.WARN,
        found=f"'{image}' is built" if built else f"'{image}' is not built yet",
        why="Guests boot it and native runs use its tree; the first sweep builds what is missing.",
        remedy="" if built else f"labctl image build {image}",
        value={"image": image, "built": built},
    )


def _trace_room(study: Study, tunings: Mapping[str, Tuning], results: Path) -> list[Finding]:
    """Return whether the results folder has room for the traces of a study; [] of one without."""
    if study.collect is not Level.TRACE:
        return []
    windows = [
        Window(side=tuning.kind, seconds=workload.duration_s)
        for tuning in tunings.values()
        for workload in study.workloads.values()
    ]
    found = forecast(results, windows * len(study.conditions) * study.blocks)
    status = Status.OK if found.is_enough else Status.BLOCK if found.is_refused else Status.WARN
    return [
        Finding(
            name="trace-room",
            group=GROUP,
            status=status,
            found=found.words(),
            why="A block that finds too little room for its traces is not traced; a sweep doesn't "
            "begin where there is none for one trial.",
            remedy=""
            if found.is_enough
            else "labctl sweep STUDY --collect trace --results FOLDER  # one on a larger disk",
            value={
                "folder": str(found.folder),
                "trials": found.trials,
                "room_bytes": found.room_mib * MIB,
                "most_bytes": found.most_mib * MIB,
                "trial_bytes": found.trial_mib * MIB,
            },
        )
    ]


def _workloads(study: Study, tunings: Mapping[str, Tuning], places: StatePaths) -> list[Finding]:
    """Return whether the kernels have the tracers that a study's workloads need; [] where none
    do."""
    needed = tracers_of(study)
    if not needed:
        return []
    recipe = load_recipe(study.guest.image)
    kernels = Kernels(recipe=recipe, image=find(recipe, places))
    lacks = lacking(study, {tuning.kind for tuning in tunings.values()}, kernels)
    shown = [
        f"'{name}' ({side}): {reason.text}"
        for name, reasons in lacks.items()
        for side, reason in reasons.items()
    ]
    found = "; ".join(shown) or f"nothing known lacks for {some(needed)}"
    remedies = dict.fromkeys(r.remedy for reasons in lacks.values() for r in reasons.values())
    return [
        Finding(
            name="workloads",
            group=GROUP,
            status=Status.WARN if lacks else Status.OK,
            found=found,
            why="A sweep leaves a workload out on the side whose kernel can't run it.",
            remedy=" ".join(remedies),
            value={name: [str(side) for side in reasons] for name, reasons in lacks.items()},
        )
    ]


def _choice(
    study: Study | None,
    tunings: Mapping[str, Tuning],
    states: list[TuningState],
    broken: Mapping[str, str],
) -> Finding:
    """Return what is left to measure: a study needs its roles and one guest tuning beside them."""
    out = [state for state in states if not state.runs]
    runs = {state.name for state in states if state.runs}
    of = f"of '{study.name}'" if study else "of the catalogue"
    shown = f"{len(runs)} of {len(states)} tunings {of} can run here"
    if out:
        shown += f"; not {some((state.name for state in out), 6)}"
    if broken:
        shown += f"; can't be loaded: {some(broken)}"
    status, remedy = Status.OK, ""
    if out or broken:
        status, remedy = Status.WARN, "labctl doctor --for everything  # why, one by one"
    if study is not None and out:
        roles = study.roles.names()
        tried = {n for n, t in tunings.items() if n not in roles and t.kind is Kind.GUEST}
        if not set(roles) <= runs or (tried and not tried & runs):
            status = Status.BLOCK
        remedy = out[0].remedies[0]
    return Finding(
        name="tunings",
        group=GROUP,
        status=status,
        found=shown,
        why="A sweep leaves out what this host can't do, with the reason; without its roles, or "
        "any guest tuning beside them, a study has nothing to say.",
        remedy=remedy,
        value={
            "run": sorted(runs),
            "lacking": {state.name: list(state.lacking) for state in out},
            "broken": dict(broken),
        },
    )
