"""Run doctor's checks with what a study (or the whole catalogue) needs from this host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import HostError, LabctlError, UsageError
from labctl.base.levels import Level
from labctl.base.paths import StatePaths, host_lock, results_folder
from labctl.base.tuning import Tuning
from labctl.domain.pinning.pin_plan import PinPlan, default_vcpus, pin_plan
from labctl.guest.images import find, list_images
from labctl.guest.recipe import load_recipe
from labctl.host import doctor
from labctl.host.accelerator import Accelerator, Requested, accelerator
from labctl.host.doctor.activity import observe
from labctl.host.doctor.model import Finding, Status
from labctl.host.doctor.reader import Reader
from labctl.host.topology import Topology, read_topology
from labctl.run.commands.study_checks import Asked, TuningState, check_study
from labctl.run.planning.fitting import fits
from labctl.run.planning.needed_tracers import Kernels
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
    pins = _pins(topology, vcpus)
    recipe = load_recipe(image)
    built = find(recipe, places)
    fitting = isinstance(pins, PinPlan)
    states = _states(tunings, topology, vcpus, memory_mib, answer) if fitting else []
    asked = Asked(
        accelerator=answer,
        activity=activity,
        state_folder=places.root,
        lock=host_lock(),
        journal=places.journal,
        cpus=pins.vcpu_cpus if isinstance(pins, PinPlan) else frozenset(),
        memory_bytes=memory_mib * MIB,
        disk_bytes=disk_bytes_needed(memory_mib * MIB, image_is_built=built is not None),
        tunings=tunings,
        has_link=study is None or has_peers(study),
        hwlat_s=hwlat_s,
        study=study,
        results=results or results_folder(places),
        kernels=Kernels(recipe=recipe, image=built),
        pins=pins,
        states=tuple(states),
        broken=broken,
    )
    findings = [*doctor.check(reader, asked), *check_study(reader, asked)]
    return Checkup(
        study=study.name if study else None, findings=tuple(findings), tunings=asked.states
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


def _pins(topology: Topology, vcpus: int) -> PinPlan | UsageError:
    try:
        return pin_plan(topology, vcpus, 1)
    except UsageError as error:
        return error
