"""Run doctor's checks with what a study (or the whole catalogue) needs from this host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import LabctlError, UsageError
from labctl.base.levels import Level
from labctl.base.paths import StatePaths, host_lock, results_folder
from labctl.host import doctor
from labctl.host.doctor.activity import observe
from labctl.host.doctor.check import Finding, Status
from labctl.host.doctor.reader import Reader
from labctl.run.commands.study_checks import StudyScope, TuningState, check_study
from labctl.run.commands.tuning_states import fit_here, foremost_of, tunings_of
from labctl.run.planning.guest_image import accelerator_or_error
from labctl.run.planning.guest_needs import OF_NO_STUDY, guest_needs
from labctl.run.planning.needed_tracers import Kernels
from labctl.run.planning.planned import has_peers
from labctl.study.load_study import Overrides, load_study
from labctl.workloads.registry import checkers

OBSERVED_S = 0.5
"""Long enough for steal to show (a tick is 10 ms), short enough to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Hold doctor's findings for a study. `study`: its name, None for the whole catalogue;
    `tunings`: those of it.
    """

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
