"""Find what has changed on the host since a run, and which verdicts depend on it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from labctl.base.hostfacts import EVERYTHING, FACTS, Fact, Rests
from labctl.base.tuning import OF_FAIR_SCHEDULER

_MEMORY_TOLERANCE = 0.01
"""Tolerance of the memory's size: the kernel reserves more or less from boot to boot."""


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


def compare(then: Mapping[str, object], now: Mapping[str, object]) -> Comparison:
    """Return the differences between the facts that a run recorded and the host's facts now."""
    changes, same, unknown = [], [], []
    for fact in FACTS:
        if not fact.voids:
            continue
        before, after = then.get(fact.key), now.get(fact.key)
        if before is None or after is None:
            unknown.append(fact)
        elif _equal(fact.key, before, after):
            same.append(fact)
        else:
            changes.append(FactChange(fact=fact, then=before, now=after))
    return Comparison(changes=tuple(changes), same=tuple(same), not_recorded=tuple(unknown))


def rests_on(
    tuning: Mapping[str, object] | None, baseline: Mapping[str, object] | None
) -> frozenset[Rests]:
    """Return what a tuning changes of the baseline, by what run.json has of both; everything if
    run.json lacks one of them."""
    if tuning is None or baseline is None:
        return EVERYTHING
    found = {rests for key, rests in _OF_KEY.items() if tuning.get(key) != baseline.get(key)}
    return frozenset(found) or EVERYTHING


def voided_by(rests: Iterable[Rests], changes: Iterable[FactChange]) -> list[FactChange]:
    """Return the changes that void a verdict which depends on these."""
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
        return f"with {' '.join(gone) or 'nothing more'}", f"with {' '.join(new) or 'nothing more'}"
    return _words(then), _words(now)


_OF_KEY = {
    "pin": Rests.PLACEMENT,
    "vcpu_sched": Rests.SCHEDULING,
    **dict.fromkeys(OF_FAIR_SCHEDULER, Rests.SCHEDULING),
    "emulator_sched": Rests.SCHEDULING,
    "iothread_sched": Rests.SCHEDULING,
    "handicap_percent": Rests.SCHEDULING,
    "cpu": Rests.CPU,
    "kvm": Rests.CPU,
    "hyperv": Rests.CPU,
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
