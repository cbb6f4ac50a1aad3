"""Find which tunings this host supports, and where their threads run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from labctl.base.cpus import format_cpus
from labctl.base.errors import HostError, UsageError, nearest
from labctl.base.kernel import booted_with, in_full, is_booted_with
from labctl.base.placement import PinProblem
from labctl.base.placement import refuse as refuse_pins
from labctl.base.tuning import Kind, Strategy, Tuning
from labctl.domain.pinning import pin_check
from labctl.domain.pinning.pin_plan import (
    PinPlan,
    default_vcpus,
    pin_plan,
    placement,
    same_placement,
)
from labctl.host.preflight import HEADROOM_BYTES
from labctl.host.settings import knobs, tuned
from labctl.host.settings.knob import KnobPlace
from labctl.host.settings.knob_table import RT_RUNTIME
from labctl.host.topology import Topology, read_rt_runtime_us, read_topology
from labctl.run.planning.requirements import Offers, Unmet, read_offers, refuse, unmet
from labctl.run.resources.huge_pages import MIB
from labctl.store.jsonfile import canonical
from labctl.study.combine import JOINT
from labctl.study.study import GuestShape, Study
from labctl.study.tunings import load_tuning, load_tunings, tuning_names

# Collect the host settings of tunings, for `labctl host tune`.


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRequest:
    """Hold a request to tune the host. `words`: those of its kernel's command line that the running
    kernel was not booted with. `place`: where, with the CPUs of the guest that it is for."""

    names: tuple[str, ...]
    host: Mapping[str, str]
    words: tuple[str, ...]
    risks: tuple[str, ...]
    place: KnobPlace


def asked_for(names: Sequence[str], vcpus: int | None = None) -> HostRequest:
    """Return the host settings of tunings; a name that is not a tuning is a profile of tuned.

    `vcpus` of the guest that CPUs are kept free for; None takes a sweep's. Only reads. Raises
    UsageError for an unknown name, for two that contradict each other, for one without host
    settings, and for one that ends with this process; HostError if this host does not support
    it.
    """
    host: dict[str, str] = {}
    words: list[str] = []
    risks: list[str] = []
    by: dict[str, str] = {}
    tunings = [_tuning(name) for name in names]
    for tuning in tunings:
        for knob, value in tuning.host.items():
            if host.setdefault(knob, value) != value:
                raise UsageError(
                    f"'{by[knob]}' and '{tuning.name}' conflict: 'host.{knob}' is "
                    f"{host[knob]} in one and {value} in the other"
                )
            by.setdefault(knob, tuning.name)
        words += tuning.requires.command_line
        risks += tuning.risks
    place = _place(tunings, vcpus)
    knobs.check_knobs(host)
    if held := knobs.held_by(host):
        if held[0] == "program":
            raise UsageError(
                f"'{by[held[0]]}' runs a program on the host, which would end with this command",
                hint="A sweep runs it during its trials. To keep it, install it as a service "
                "(systemd.service(5)).",
            )
        raise UsageError(
            f"this command cannot keep '{by[held[0]]}': '{held[0]}' is active only while a "
            "program holds it open",
            hint="A sweep holds it during its trials. To keep it, use tuned's daemon "
            "('force_latency' in [cpu] of a profile), or the service that 'labctl advise' "
            "writes.",
        )
    if problems := knobs.problems(host, place):
        raise HostError(
            f"this host can't do that: {'; '.join(problems)}",
            hint="'labctl host status' shows what can be set here.",
        )
    if tuned.TUNED in host:
        words += tuned.kernel_words(host[tuned.TUNED], place)
    line = booted_with()
    lacking = [word for word in dict.fromkeys(words) if not is_booted_with(word, line)]
    return HostRequest(
        names=tuple(names),
        host=host,
        words=tuple(in_full(lacking, place.isolated)),
        risks=tuple(dict.fromkeys(risks)),
        place=place,
    )


def _tuning(name: str) -> Tuning:
    known = tuning_names()
    if name not in known and name in {*tuned.USUAL, *tuned.known_profiles()}:
        return Tuning(
            name=name,
            description="A profile of tuned.",
            kind=Kind.GUEST,
            host={tuned.TUNED: name},
        )
    if name not in known and JOINT not in name:
        of_hosts = [one.name for one in load_tunings(known).values() if _is_of_hosts(one)]
        raise UsageError(
            f"no tuning '{name}', nor a profile of tuned",
            hint=nearest(name, [*of_hosts, *tuned.known_profiles()]),
        )
    tuning = load_tuning(name)
    if not _is_of_hosts(tuning):
        raise UsageError(
            f"'{name}' changes only the guest, not the host",
            hint="'labctl tuning list' lists tunings of the host under 'Host'.",
        )
    return tuning


def _is_of_hosts(tuning: Tuning) -> bool:
    return bool(tuning.host or tuning.requires.command_line)


def _place(tunings: Iterable[Tuning], vcpus: int | None) -> KnobPlace:
    """Return a guest's CPUs as a sweep would choose them, and the host's own."""
    topology = read_topology()
    strategy = next(tuning.pin.strategy for tuning in tunings)
    plan = pin_plan(topology, vcpus or default_vcpus(topology), 1, strategy)
    return KnobPlace(housekeeping=plan.housekeeping, isolated=plan.vcpu_cpus)


def offers_here(
    tunings: Iterable[Tuning], guest: GuestShape, topology: Topology, accelerator: str | None
) -> Offers:
    """Return what this host has of what `tunings` ask for, and how many vCPUs a guest of that shape
    has here. Only reads; raises UsageError as `read_offers` does."""
    return read_offers(
        tunings,
        topology,
        vcpus=guest.vcpus or default_vcpus(topology),
        memory_mib=guest.memory_mib,
        accelerator=accelerator,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Hold what prevents a tuning on this host. `lacking`: its unmet requirements; `crowding`:
    effects of its pins and policies here."""

    lacking: tuple[Unmet, ...]
    crowding: tuple[PinProblem, ...]

    @property
    def hindrances(self) -> tuple[Unmet, ...]:
        """Return why it cannot run here; () if it can."""
        refused = (Unmet(text=p.text, remedy=p.hint) for p in self.crowding if p.refused)
        return (*self.lacking, *refused)


def fits(tunings: Mapping[str, Tuning], offers: Offers, topology: Topology) -> dict[str, Fit]:
    """Return, for each tuning, what prevents it from running here and the effects of its pins."""
    pin_plans, unplaced = pin_plans_of(topology, offers.vcpus, tunings.values())
    found = {}
    for name, tuning in tunings.items():
        strategy = tuning.pin.strategy
        lacking = unmet(tuning, offers)
        crowding: list[PinProblem] = []
        if strategy in unplaced:
            lacking.append(unplaced[strategy])
        else:
            lacking += _same_place(tuning, pin_plans)
            pins = pin_plans[strategy]
            lacking += _unpartitioned(tuning, pins)
            crowding = pin_check.check(tuning, pins, topology, rt_runtime_us(tuning))
        found[name] = Fit(lacking=tuple(lacking), crowding=tuple(crowding))
    return found


def rt_runtime_us(tuning: Tuning) -> int:
    """Return the real-time tasks' share of each second while the tuning is in force, in
    microseconds."""
    value = tuning.host.get(RT_RUNTIME)
    if value is None and tuned.TUNED in tuning.host:
        value = tuned.sysctl(tuning.host[tuned.TUNED], "kernel.sched_rt_runtime_us")
    return read_rt_runtime_us() if value is None else int(value)


def fitted(
    tunings: Mapping[str, Tuning],
    offers: Offers,
    topology: Topology,
    asked_for: Collection[str],
) -> tuple[dict[str, str], list[str]]:
    """Return tunings that this host does not support, with the reason, and warnings about the
    others' pins. Raises for one that was requested by name."""
    skipped: dict[str, str] = {}
    warnings: list[str] = []
    for name, fit in fits(tunings, offers, topology).items():
        if name in asked_for:
            refuse(tunings[name], fit.lacking)
            refuse_pins(name, fit.crowding)
        if fit.hindrances:
            skipped[name] = "; ".join(hindrance.text for hindrance in fit.hindrances)
        else:
            warnings += [f"{name}: {problem.text}" for problem in fit.crowding]
    return skipped, warnings


def host_memory_bytes() -> int:
    """Return the memory of this host."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(memory_mib: int, total_bytes: int) -> None:
    """Raise UsageError if a guest of that size cannot fit beside the host, whatever is free."""
    most = (total_bytes - HEADROOM_BYTES) // MIB
    if memory_mib > most:
        raise UsageError(
            f"a guest of {memory_mib:,} MiB doesn't fit on this host, which has "
            f"{total_bytes // MIB:,} MiB",
            hint=f"Give it {max(most, 0):,} MiB at most: '--memory', or 'guest.memory_mib' of the "
            "study.",
        )


def left_out(needs: Mapping[str, Tuning], offers: Offers) -> dict[str, str]:
    """Return which of a study's arms are impossible on this host, with the reason. `needs`: tunings
    as `needing` returns them."""
    lacking = {name: unmet(tuning, offers) for name, tuning in needs.items()}
    return {name: "; ".join(one.text for one in found) for name, found in lacking.items() if found}


def needing(
    study: Study, tunings: Mapping[str, Tuning], asked_for: Collection[str]
) -> dict[str, Tuning]:
    """Return tunings with the study's requirements for them in place of their own. Tunings
    requested by name are left out."""
    return {
        name: replace(tunings[name], requires=need)
        for name, need in study.requires.items()
        if name not in asked_for
    }


def pin_plans_of(
    topology: Topology, vcpus: int, tunings: Collection[Tuning]
) -> tuple[dict[Strategy, PinPlan], dict[Strategy, Unmet]]:
    """Return the pin plan of each strategy that a tuning pins by, and why others have none. Compact
    always has one: raises UsageError if even that has no room."""
    iothreads = max(1, *(tuning.iothreads for tuning in tunings))
    plans = {Strategy.COMPACT: pin_plan(topology, vcpus, iothreads)}
    unplaced = {}
    for strategy in {tuning.pin.strategy for tuning in tunings} - {Strategy.COMPACT}:
        try:
            plans[strategy] = pin_plan(topology, vcpus, iothreads, strategy)
        except UsageError as error:
            remedy = error.hint or "'labctl pins' shows this host's CPUs."
            unplaced[strategy] = Unmet(text=error.message, remedy=remedy)
    return plans, unplaced


def _same_place(tuning: Tuning, plans: Mapping[Strategy, PinPlan]) -> list[Unmet]:
    """Find the strategies that place every thread as compact does and so are not different tunings,
    unless the guest's topology or memory placement follows the strategy."""
    pins, compact = plans[tuning.pin.strategy], plans[Strategy.COMPACT]
    shown = tuning.cpu.topology or tuning.memory.numa or tuning.memory.cells
    if tuning.pin.strategy is Strategy.COMPACT or shown:
        return []
    if not same_placement(pins, compact):
        return []
    return [
        Unmet(
            text=f"on this host '{tuning.pin.strategy}' is the same placement as vcpupin",
            remedy="Take that one, or give the guest more vCPUs ('--vcpus').",
        )
    ]


def _unpartitioned(tuning: Tuning, pins: PinPlan) -> list[Unmet]:
    """Find the CPUs that a tuning's partition would share with threads outside it: the kernel makes
    none then."""
    if not tuning.pin.partition:
        return []
    placed = placement(tuning, pins)
    vcpus = frozenset().union(*placed.vcpus.values())
    others = frozenset().union(placed.emulator or frozenset(), *placed.iothreads.values())
    if not (shared := vcpus & others):
        return []
    return [
        Unmet(
            text="it needs CPUs that only vCPUs have, and the emulator or an iothread has CPU "
            f"{format_cpus(shared)} as well",
            remedy="Give the guest fewer vCPUs ('--vcpus'); 'labctl pins' shows the plan.",
        )
    ]


def pins_digest(pin_plans: Mapping[Strategy, PinPlan]) -> str:
    plans = {str(strategy): pins.to_json() for strategy, pins in pin_plans.items()}
    return hashlib.sha256(canonical(plans).encode()).hexdigest()


def check_any_left(study: Study, tunings: Mapping[str, Tuning], skipped: Mapping[str, str]) -> None:
    """Raise HostError if no arm of the study is left to try."""
    roles = study.roles.names()
    tried = [n for n in study.tunings if n not in roles and tunings[n].kind is Kind.GUEST]
    if tried and all(name in skipped for name in tried):
        raise HostError(
            "this host can't run any tuning of the study: "
            + ". ".join(f"'{name}': {skipped[name]}" for name in tried),
            hint=f"'labctl sweep {study.name} --tuning {tried[0]}' shows what could be done.",
        )


# Choose the tunings that a saved guest can be restored with, and list those unsupported here.


def restorable(only: Collection[str] = ()) -> tuple[str, ...]:
    """Return the catalogue's guest tunings that a saved baseline can be restored with, or `only`
    these; raises UsageError for one that is not among them."""
    loaded = [load_tuning(name) for name in tuning_names()]
    names = [t.name for t in loaded if t.kind is Kind.GUEST and t.restore]
    for name in only:
        if name not in names:
            raise UsageError(
                f"'{name}' is not a tuning that can be restored from a snapshot",
                hint=nearest(name, names),
            )
    return tuple(name for name in names if not only or name in only)


def not_here(names: Collection[str], guest: GuestShape, accelerator: str) -> dict[str, str]:
    """Return tunings that this host does not support, and why."""
    tunings = load_tunings(tuple(names))
    topology = read_topology()
    offers = offers_here(tunings.values(), guest, topology, accelerator)
    return {
        name: "; ".join(hindrance.text for hindrance in fit.hindrances)
        for name, fit in fits(tunings, offers, topology).items()
        if fit.hindrances
    }
