"""Say what tunings ask of the host, for `labctl host tune`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from labctl.base.errors import HostError, UsageError
from labctl.base.kernel_line import booted_with, in_full, is_booted_with
from labctl.base.nearest import nearest
from labctl.base.tuning import Kind, Tuning
from labctl.domain.pinning.pin_plan import default_vcpus, pin_plan
from labctl.host.settings import knobs, tuned
from labctl.host.settings.knob import KnobPlace
from labctl.host.topology import read_topology
from labctl.study.combine import JOINT
from labctl.study.tunings import load_tuning, load_tunings, tuning_names


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRequest:
    """Hold what was asked of the host. `words`: those of its kernel's command line that the running
    kernel was not booted with. `place`: where, with the CPUs of the guest that it is for."""

    names: tuple[str, ...]
    host: Mapping[str, str]
    words: tuple[str, ...]
    risks: tuple[str, ...]
    place: KnobPlace


def asked_for(names: Sequence[str], vcpus: int | None = None) -> HostRequest:
    """Return what tunings ask of the host; a name that is none is a profile of tuned.

    `vcpus` of the guest that CPUs are kept free for; None takes what a sweep would. Only reads.
    Raises UsageError for a name that is neither, for two that contradict each other, for one that
    asks nothing of the host, and for one that ends with this process; HostError when this host
    can't have it.
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
                    f"'{by[knob]}' and '{tuning.name}' contradict each other: 'host.{knob}' is "
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
                f"'{by[held[0]]}' runs a program of the host's, which would end with this command",
                hint="A sweep runs it around its own trials. To keep it, make it a service of the "
                "host's (systemd.service(5)).",
            )
        raise UsageError(
            f"'{by[held[0]]}' can't be kept by a command that ends: the kernel has '{held[0]}' in "
            "force only while a program holds it",
            hint="A sweep holds it around its own trials. Beyond that a program must stay: tuned's "
            "daemon ('force_latency' in [cpu] of a profile), or the service that 'labctl advise' "
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
            f"'{name}' changes nothing on the host, only in the guest",
            hint="'labctl tuning list' lists those of the host under 'Host'.",
        )
    return tuning


def _is_of_hosts(tuning: Tuning) -> bool:
    return bool(tuning.host or tuning.requires.command_line)


def _place(tunings: Iterable[Tuning], vcpus: int | None) -> KnobPlace:
    """Return the CPUs of a guest as a sweep would have it, and the host's own."""
    topology = read_topology()
    strategy = next(tuning.pin.strategy for tuning in tunings)
    plan = pin_plan(topology, vcpus or default_vcpus(topology), 1, strategy)
    return KnobPlace(housekeeping=plan.housekeeping, isolated=plan.vcpu_cpus)
