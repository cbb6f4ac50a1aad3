"""Say which tunings of a study, or of the catalogue, run on this host, and what bears on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labctl.base.errors import LabctlError, UsageError
from labctl.base.tuning import Kind, Tuning
from labctl.domain.pinning.pin_plan import PinPlan, default_vcpus, pin_plan
from labctl.host.doctor.check import Finding
from labctl.host.doctor.foremost import PINNING, foremost
from labctl.host.doctor.since import rests_on
from labctl.host.topology import Topology, read_topology
from labctl.run.commands.study_checks import TuningState
from labctl.run.planning.fitting import fits, offers_here
from labctl.run.planning.requirements import Offers
from labctl.study.study import GuestShape, Study
from labctl.study.tuning_digest import tuning_json
from labctl.study.tunings import load_tuning, tuning_names


def tunings_of(study: Study | None) -> tuple[dict[str, Tuning], dict[str, str]]:
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


def fit_here(
    tunings: Mapping[str, Tuning], guest: GuestShape, accelerator: str | None
) -> tuple[PinPlan | UsageError, tuple[TuningState, ...]]:
    """Return where a guest's threads would run, or why there is no room for them; and of each
    tuning what it lacks and what its pins would do, () without room."""
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
