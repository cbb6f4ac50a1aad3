"""Find what of the host has changed since a run, and what its verdicts rest on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from labctl.base.hostfacts import FACT_NAMES


class Rests(StrEnum):
    """Hold what a tuning changes, and so what its verdicts rest on beside what all rest on."""

    PLACEMENT = "placement"
    """Pins: which CPUs its threads have."""
    SCHEDULING = "scheduling"
    """Policies and priorities."""
    CPU = "CPU"
    """The guest's CPU, timers, KVM's features, halt polling, the guest's kernel."""
    MEMORY = "memory"
    DISK = "disk"
    NETWORK = "network"
    HOST = "host settings"


EVERYTHING = frozenset(Rests)
_ON_CPUS = frozenset({Rests.PLACEMENT, Rests.SCHEDULING, Rests.CPU, Rests.HOST})
_ON_SHARES = frozenset({Rests.PLACEMENT, Rests.SCHEDULING, Rests.HOST})
_ON_MEMORY = frozenset({Rests.MEMORY, Rests.HOST})
_ON_DISK = frozenset({Rests.DISK, Rests.HOST})


@dataclass(frozen=True, slots=True)
class Fact:
    """Describe a fact. `key`: among run.json's host facts. `voids`: verdicts on tunings that change
    one of these.
    """

    key: str
    name: str
    voids: frozenset[Rests]


def _fact(key: str, voids: frozenset[Rests]) -> Fact:
    return Fact(key, FACT_NAMES[key], voids)


FACTS = (
    # What every figure is made by.
    _fact("accelerator", EVERYTHING),
    _fact("kernel_release", EVERYTHING),
    _fact("kernel_version", EVERYTHING),
    _fact("kernel_config", EVERYTHING),
    _fact("kernel_options", EVERYTHING),
    _fact("qemu", EVERYTHING),
    _fact("libvirt", EVERYTHING),
    # The machine.
    _fact("cpu_model", EVERYTHING),
    _fact("cpu_flags", EVERYTHING),
    _fact("microcode", EVERYTHING),
    _fact("topology", EVERYTHING),
    _fact("cpus_online", EVERYTHING),
    _fact("cpus_allowed", EVERYTHING),
    _fact("numa_nodes", EVERYTHING),
    _fact("smt", EVERYTHING),
    _fact("hypervisor_vendor", EVERYTHING),
    # What every figure passes through.
    _fact("mitigations", EVERYTHING),
    _fact("clocksource", EVERYTHING),
    _fact("sched_ext", EVERYTHING),
    _fact("tuned_profile", EVERYTHING),
    _fact("other_guests", EVERYTHING),
    # How fast CPUs are and how they are shared.
    _fact("governor", _ON_CPUS),
    _fact("frequency_driver", _ON_CPUS),
    _fact("turbo", _ON_CPUS),
    _fact("idle_driver", _ON_CPUS),
    _fact("halt_poll_ns", _ON_CPUS),
    _fact("cpus_isolated", _ON_SHARES),
    _fact("sched_autogroup", _ON_SHARES),
    _fact("sched_rt_runtime_us", _ON_SHARES),
    _fact("sched_rt_period_us", _ON_SHARES),
    _fact("cgroups", _ON_SHARES),
    # Memory and disk.
    _fact("memory_bytes", _ON_MEMORY),
    _fact("thp", _ON_MEMORY),
    _fact("thp_defrag", _ON_MEMORY),
    _fact("huge_pages", _ON_MEMORY),
    _fact("ksm", _ON_MEMORY),
    _fact("numa_balancing", _ON_MEMORY | {Rests.PLACEMENT}),
    _fact("swap_bytes", _ON_MEMORY),
    _fact("swappiness", _ON_MEMORY),
    _fact("state_folder", _ON_DISK),
    _fact("block_schedulers", _ON_DISK),
)
"""Facts and the verdicts that they void. Others (the host's perf, its distribution) void none."""

_MEMORY_TOLERANCE = 0.01
"""The kernel takes more or less for itself from boot to boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    """Describe a fact that has changed; `then` and `now` as recorded."""

    fact: Fact
    then: Any
    now: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Compare a run's facts with today's. `not_recorded`: facts that are unknown then or now, so
    that they can't be compared.
    """

    changes: tuple[FactChange, ...]
    same: tuple[Fact, ...]
    not_recorded: tuple[Fact, ...]


def compare(then: Mapping[str, Any], now: Mapping[str, Any]) -> Comparison:
    """Return what the run recorded of the host, against the host's facts now."""
    changes, same, unknown = [], [], []
    for fact in FACTS:
        before, after = then.get(fact.key), now.get(fact.key)
        if before is None or after is None:
            unknown.append(fact)
        elif _equal(fact.key, before, after):
            same.append(fact)
        else:
            changes.append(FactChange(fact=fact, then=before, now=after))
    return Comparison(changes=tuple(changes), same=tuple(same), not_recorded=tuple(unknown))


def rests_on(
    tuning: Mapping[str, Any] | None, baseline: Mapping[str, Any] | None
) -> frozenset[Rests]:
    """Return what a tuning changes of the baseline, by what run.json has of both; everything where
    it has nothing of one of them."""
    if tuning is None or baseline is None:
        return EVERYTHING
    found = {rests for key, rests in _OF_KEY.items() if tuning.get(key) != baseline.get(key)}
    return frozenset(found) or EVERYTHING


def voided_by(rests: Iterable[Rests], changes: Iterable[FactChange]) -> list[FactChange]:
    """Return the changes that void a verdict which rests on these."""
    wanted = frozenset(rests)
    return [change for change in changes if change.fact.voids & wanted]


def difference(change: FactChange) -> tuple[str, str]:
    """Return then and now in words; for tables and lists only the differences."""
    then, now = change.then, change.now
    if _is_unavailable(then) or _is_unavailable(now):
        return _words(then), _words(now)
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        keys = [key for key in {**then, **now} if then.get(key) != now.get(key)]
        return (
            "; ".join(f"{key}: {_words(then.get(key))}" for key in keys),
            "; ".join(f"{key}: {_words(now.get(key))}" for key in keys),
        )
    if isinstance(then, list) and isinstance(now, list):
        gone = [str(item) for item in then if item not in now]
        new = [str(item) for item in now if item not in then]
        return f"with {' '.join(gone) or 'no more'}", f"with {' '.join(new) or 'no more'}"
    return _words(then), _words(now)


_OF_KEY = {
    "pin": Rests.PLACEMENT,
    "vcpu_sched": Rests.SCHEDULING,
    "emulator_sched": Rests.SCHEDULING,
    "iothread_sched": Rests.SCHEDULING,
    "handicap_percent": Rests.SCHEDULING,
    "cpu": Rests.CPU,
    "kvm": Rests.CPU,
    "timers": Rests.CPU,
    "guest": Rests.CPU,
    "memory": Rests.MEMORY,
    "iothreads": Rests.DISK,
    "disk": Rests.DISK,
    "network": Rests.NETWORK,
    "host": Rests.HOST,
}


def _equal(key: str, then: Any, now: Any) -> bool:
    if _is_unavailable(then) and _is_unavailable(now):
        return True
    if key == "memory_bytes" and isinstance(then, int) and isinstance(now, int):
        return abs(then - now) <= _MEMORY_TOLERANCE * then
    return bool(then == now)


def _is_unavailable(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"unavailable"}


def _words(value: Any) -> str:
    if value is None:
        return "none"
    if _is_unavailable(value):
        return f"not available ({value['unavailable']})"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return str(value) if value != "" else "none"
