"""Combine tunings: `vcpupin+hugepages-2M+cache-none` is those three at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from labctl.base.errors import UsageError, nearest
from labctl.base.hostfacts import is_older
from labctl.base.tuning import OF_FAIR_SCHEDULER, Kind, Policy, Requires, Tuning
from labctl.study.changes import Key, changes, dotted, with_changes, word
from labctl.study.contradictions import contradictions

JOINT = "+"
_COMMAND_LINE: Key = ("guest", "command_line")
_VERSIONS = ("libvirt", "qemu", "kernel")


def split(name: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the tunings that a combination's name consists of, the longest known names first:
    names of files hold a '+' as well.

    Raises UsageError naming the part that is no tuning, with the nearest one.
    """
    words = name.split(JOINT)
    reached = 0

    def parts(start: int) -> tuple[str, ...] | None:
        nonlocal reached
        reached = max(reached, start)
        if start == len(words):
            return ()
        for end in range(len(words), start, -1):
            first = JOINT.join(words[start:end])
            if first in known and (rest := parts(end)) is not None:
                return (first, *rest)
        return None

    found = parts(0)
    if found is None:
        raise UsageError(
            f"no tuning '{words[reached]}' to combine in '{name}'",
            hint=nearest(words[reached], known),
        )
    return found


def with_combinations(names: Iterable[str], known: Collection[str]) -> list[str]:
    """Return `known`, and those of `names` that combine some of them. Raises UsageError for any
    other name with a '+'."""
    combinations = [name for name in names if name not in known and JOINT in name]
    for name in combinations:
        split(name, known)
    return [*known, *combinations]


def combined(
    name: str, parts: Sequence[Tuning], baseline: Tuning, natives: Iterable[Tuning]
) -> Tuning:
    """Return one tuning that does what all of `parts` do: what each changes of the baseline,
    together.

    It is restored if each may be, needs what all need, and its twin is the one of `natives` with
    its placement and policy. Raises UsageError naming the tunings that contradict each other.
    """
    changed: dict[Key, Any] = {}
    by: dict[Key, list[str]] = {}
    for part in parts:
        _check_part(name, part, parts)
        for key, value in changes(part, baseline).items():
            if key == _COMMAND_LINE:
                value = _joined_words(changed.get(key, ()), value, by.get(key, []), part.name)
            elif key in changed and changed[key] != value:
                raise _conflict(by[key][0], part.name, dotted(key), changed[key], value)
            changed[key] = value
            by.setdefault(key, []).append(part.name)
    tuning = replace(
        with_changes(baseline, changed),
        name=name,
        description="Several tunings at once. "
        + " ".join(f"{part.name}: {part.description}" for part in parts),
        sources=_union(part.sources for part in parts),
        needs=_union(part.needs for part in parts),
        risks=_union(part.risks for part in parts),
        exercised_by=_union(part.exercised_by for part in parts),
        requires=_required(parts),
        restore=all(part.restore for part in parts),
    )
    for found in contradictions(tuning):
        culprits = list(dict.fromkeys(part for key in found.keys for part in by.get(key, ())))
        raise UsageError(
            f"{_and(culprits or [part.name for part in parts])} can't be combined: {found.text}",
            hint=found.hint if not culprits else None,
        )
    return replace(tuning, twin=_twin(tuning, natives))


def _check_part(name: str, part: Tuning, parts: Sequence[Tuning]) -> None:
    if part.kind is Kind.NATIVE:
        raise UsageError(
            f"'{name}' combines '{part.name}', which is a native tuning",
            hint="Combine guest tunings; the native twin is found automatically.",
        )
    if sum(1 for other in parts if other.name == part.name) > 1:
        raise UsageError(f"'{name}' holds '{part.name}' twice")


def _conflict(one: str, other: str, key: str, value: object, second: object) -> UsageError:
    return UsageError(
        f"'{one}' and '{other}' can't be combined: '{key}' is {word(value)} in '{one}' and "
        f"{word(second)} in '{other}'",
        hint="Use one of them, or write your own tuning with the value that you want.",
    )


def _joined_words(
    present: Sequence[str], more: Sequence[str], given_by: Sequence[str], part: str
) -> tuple[str, ...]:
    """Return words of a kernel's command line, those of several tunings together."""
    given = {text.partition("=")[0]: text for text in present}
    for text in more:
        name = text.partition("=")[0]
        if given.get(name, text) != text:
            raise _conflict(given_by[0], part, dotted(_COMMAND_LINE), given[name], text)
    return _union([present, more])


def _required(parts: Sequence[Tuning]) -> Requires:
    """Return what all parts require: of versions and numbers the higher, of lists all."""
    merged = Requires()
    for part in parts:
        values: dict[str, Any] = {}
        for field in fields(Requires):
            ours, theirs = getattr(merged, field.name), getattr(part.requires, field.name)
            values[field.name] = _higher(field.name, ours, theirs, parts)
        merged = Requires(**values)
    return merged


def _higher(name: str, ours: Any, theirs: Any, parts: Sequence[Tuning]) -> Any:
    if not ours or not theirs:
        return ours or theirs
    if name in _VERSIONS:
        return theirs if is_older(ours, theirs) else ours
    if isinstance(ours, tuple):
        return _union([ours, theirs])
    if isinstance(ours, int):
        return max(ours, theirs)
    if ours != theirs:
        first, second = (
            next(part.name for part in parts if getattr(part.requires, name) == value)
            for value in (ours, theirs)
        )
        raise _conflict(first, second, f"requires.{name}", ours, theirs)
    return ours


def _twin(tuning: Tuning, natives: Iterable[Tuning]) -> str | None:
    """Return the native tuning with the guest's placement, policy, program and image, on a host
    that is set up as the guest's is; else on one as it is; None where there is none."""
    matching = [
        native
        for native in natives
        if native.kind is Kind.NATIVE and _placement(native) == _placement(tuning)
    ]
    for host in (tuning.host, {}):
        for native in matching:
            if native.host == host:
                return native.name
    return None


def _placement(tuning: Tuning) -> tuple[object, ...]:
    sched = tuning.vcpu_sched
    ordinary = sched is None or sched.policy is Policy.OTHER
    own = (None if ordinary else sched, *(getattr(tuning, key) for key in OF_FAIR_SCHEDULER))
    return tuning.pin.vcpus, tuning.pin.strategy, tuning.workload, tuning.image, *own


def _union(lists: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for items in lists for item in items))


def _and(names: Sequence[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
