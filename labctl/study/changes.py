"""Find what a tuning does differently from another, key by key as tuning files name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from labctl.base.cpus import format_cpus
from labctl.base.tuning import Kind, Sched, Tuning

Key = tuple[str, ...]
"""A key of a tuning file: ("disk", "cache") is written `disk: {cache: …}`."""

_WORDS = frozenset(
    ("name", "description", "kind", "sources", "needs", "risks", "exercised_by")
    + ("requires", "restore", "twin")
)
"""Keys that act on neither guest nor host."""
_ACTING: Final[Mapping[str, object]] = {
    own.name: own.default_factory for own in fields(Tuning) if own.name not in _WORDS
}
"""Keys that do, with what makes their default."""

GROUP_TYPES: Final[Mapping[str, type[Any]]] = {
    name: made for name, made in _ACTING.items() if isinstance(made, type) and is_dataclass(made)
}
"""Types by the names of keys that hold keys of their own."""
_KEYS = {name: [item.name for item in fields(group)] for name, group in GROUP_TYPES.items()}
_MAPPINGS = frozenset({("timers",), ("host",), ("cpu", "features"), ("guest", "sysfs")})
"""Mappings whose entries are keys of their own. A pin's mapping of numbers is one value."""
_ALONE = sorted(
    (name for name in _ACTING if name not in GROUP_TYPES), key=lambda name: (name,) not in _MAPPINGS
)

NATIVE_GROUP = "Without a guest"
GROUPS = (
    NATIVE_GROUP,
    "Baseline and its checks",
    "CPU",
    "Memory",
    "Disk",
    "Network",
    "Host",
    "Guest",
)
"""Groups of a list of tunings, in order."""


def dotted(key: Key) -> str:
    """Return the key as errors and tables name it: `disk.cache`."""
    return ".".join(key)


def word(value: object) -> str:
    """Return a key's value as people read it: `fifo, priority 1`, `2-3`, `yes`."""
    if isinstance(value, Sched):
        priority = f", priority {value.priority}" if value.policy.realtime else ""
        return f"{value.policy}{priority}"
    if isinstance(value, frozenset):
        return format_cpus(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {word(inner)}" for key, inner in value.items())
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "nothing" if value is None else str(value)


def values(tuning: Tuning) -> dict[Key, Any]:
    """Return every key of a tuning that acts on guest or host, with its value."""
    found: dict[Key, Any] = {}
    for group, names in _KEYS.items():
        part = getattr(tuning, group)
        for name in names:
            _put(found, (group, name), getattr(part, name))
    for name in _ALONE:
        _put(found, (name,), getattr(tuning, name))
    return found


def changes(tuning: Tuning, baseline: Tuning) -> dict[Key, Any]:
    """Return the keys of `tuning` whose values are not the baseline's; None for an entry that only
    the baseline has."""
    own, base = values(tuning), values(baseline)
    changed = {key: value for key, value in own.items() if key not in base or base[key] != value}
    return changed | {key: None for key in base if key not in own}


def with_changes(tuning: Tuning, changed: Mapping[Key, Any]) -> Tuning:
    """Return the tuning with other values for some of its keys, as `changes` gives them."""
    for key, value in changed.items():
        tuning = _with_change(tuning, key, value)
    return tuning


def group(tuning: Tuning, baseline: Tuning) -> str:
    """Return which of GROUPS a tuning is listed under: by what it changes, the rarer part first."""
    return group_of(tuning, changes(tuning, baseline))


def group_of(tuning: Tuning, changed: Mapping[Key, Any]) -> str:
    """Return `group` of a tuning whose `changes` are known."""
    if tuning.kind is Kind.NATIVE:
        return NATIVE_GROUP
    heads = {key[0] for key in changed}
    if "host" in heads or tuning.requires.command_line:
        return "Host"
    if heads <= {"handicap_percent"}:
        return "Baseline and its checks"
    for head in ("guest", "memory", "network"):
        if head in heads:
            return head.capitalize()
    # A pinned iothread is about CPUs, although a disk has to use it.
    return "Disk" if heads <= {"disk", "iothreads"} else "CPU"


def _put(found: dict[Key, Any], key: Key, value: Any) -> None:
    if key in _MAPPINGS:
        found.update(((*key, name), inner) for name, inner in value.items())
    else:
        found[key] = value


def _with_change(tuning: Tuning, key: Key, value: Any) -> Tuning:
    if key[:-1] in _MAPPINGS:
        entries = dict(_value(tuning, key[:-1]))
        entries.pop(key[-1], None)
        return _with_change(
            tuning, key[:-1], entries if value is None else {**entries, key[-1]: value}
        )
    if len(key) == 1:
        return replace(tuning, **{key[0]: value})
    head, name = key
    return replace(tuning, **{head: replace(getattr(tuning, head), **{name: value})})


def _value(tuning: Tuning, key: Key) -> Any:
    found: Any = tuning
    for name in key:
        found = getattr(found, name)
    return found
