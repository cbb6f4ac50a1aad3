"""Run doctor's checks with the requirements of a study (or of the whole catalogue)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import LabctlError, UsageError
from labctl.base.paths import StatePaths, host_lock, results_folder
from labctl.base.tuning import Kind, Level, Tuning
from labctl.domain.pinning.pin_plan import PinPlan, default_vcpus, pin_plan
from labctl.host import doctor
from labctl.host.doctor.activity import observe
from labctl.host.doctor.check import PINNING, Finding, Status, foremost
from labctl.host.doctor.reader import Reader
from labctl.host.doctor.since import rests_on
from labctl.host.topology import Topology, read_topology
from labctl.run.commands.host_checks import StudyScope, TuningState, check_study
from labctl.run.planning.host import fits, offers_here
from labctl.run.planning.images import OF_NO_STUDY, accelerator_or_error, guest_needs
from labctl.run.planning.planned import has_peers
from labctl.run.planning.requirements import Kernels, Offers
from labctl.study.load_study import Overrides, load_study
from labctl.study.study import GuestShape, Study
from labctl.study.tunings import load_tuning, load_tunings, tuning_json, tuning_names
from labctl.workloads.registry import checkers

# Report which tunings of a study, or of the catalogue, run on this host, and what affects them.


def tunings_of(study: Study | None) -> tuple[dict[str, Tuning], dict[str, str]]:
    """Return the tunings by name; of the catalogue, those that cannot be loaded with the reason."""
    if study is not None:
        return load_tunings(study.tunings, study.defined), {}
    found: dict[str, Tuning] = {}
    broken: dict[str, str] = {}
    for name in tuning_names():
        try:
            found[name] = load_tuning(name)
        except LabctlError as error:
            broken[name] = error.message
    return found, broken


def fit_here(
    tunings: Mapping[str, Tuning], guest: GuestShape, accelerator: str | None
) -> tuple[PinPlan | UsageError, tuple[TuningState, ...]]:
    """Return where a guest's threads would run, or why there is no room for them; and for each
    tuning its unmet requirements and the effects of its pins, () without room."""
    topology = read_topology()
    try:
        pins = pin_plan(topology, guest.vcpus or default_vcpus(topology), 1)
    except UsageError as error:
        return error, ()
    offers = offers_here(tunings.values(), guest, topology, accelerator)
    return pins, tuple(_states(tunings, offers, topology))


def _states(tunings: Mapping[str, Tuning], offers: Offers, topology: Topology) -> list[TuningState]:
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


def foremost_of(
    findings: Sequence[Finding], study: Study | None, tunings: Mapping[str, Tuning]
) -> tuple[Finding, ...]:
    """Return the warnings that matter most to a study, by what its tunings change of its baseline;
    to `pinning` without one."""
    if study is None:
        return foremost(findings, PINNING)
    baseline = tuning_json(tunings[study.roles.baseline])
    changed = [
        rests_on(tuning_json(tuning), baseline)
        for name, tuning in tunings.items()
        if tuning.kind is Kind.GUEST and name not in study.roles.names()
    ]
    return foremost(findings, frozenset().union(*changed))


OBSERVED_S = 0.5
"""Long enough for steal to show (a tick is 10 ms), short enough to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Hold doctor's findings for a study. `study`: its name, None for the whole catalogue;
    `tunings`: its tunings."""

    study: str | None
    findings: tuple[Finding, ...]
    tunings: tuple[TuningState, ...]
    foremost: tuple[Finding, ...]
    """Warnings that matter most to the study; without one, to `pinning`."""

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
    """Return every check of this host and the obstacles to each tuning of a study, or of the
    catalogue. It writes only the boot probe's result, to the cache. `hwlat_s`: time for measuring
    firmware interruptions, None to skip it. `level`: the level of collection, None for the study's;
    `results`: the folder for its run.

    Raises UsageError if there is no such study or one of its tunings is wrong.
    """
    reader = Reader()
    activity = observe(reader, OBSERVED_S)
    study = None
    if study_name:
        study = load_study(study_name, programs=checkers(), overrides=Overrides(collect=level))
    tunings, broken = tunings_of(study)
    guest = study.guest if study else OF_NO_STUDY
    answer = accelerator_or_error(guest.image, places)
    name = None if isinstance(answer, LabctlError) else answer.name
    pins, states = fit_here(tunings, guest, name)
    kernels = Kernels.here(guest.image, places)
    needs = guest_needs(guest, study, image_is_built=kernels.image is not None)
    asked = StudyScope(
        accelerator=answer,
        activity=activity,
        state_folder=places.root,
        lock=host_lock(),
        journal=places.journal,
        cpus=frozenset() if isinstance(pins, UsageError) else pins.vcpu_cpus,
        memory_bytes=needs.memory_bytes,
        disk_bytes=needs.disk_bytes,
        tunings=tunings,
        has_link=study is None or has_peers(study),
        hwlat_s=hwlat_s,
        study=study,
        results=results or results_folder(places),
        kernels=kernels,
        pins=pins,
        states=states,
        broken=broken,
    )
    findings = [*doctor.check(reader, asked), *check_study(reader, asked)]
    return Checkup(
        study=study.name if study else None,
        findings=tuple(findings),
        tunings=asked.states,
        foremost=foremost_of(findings, study, tunings),
    )
