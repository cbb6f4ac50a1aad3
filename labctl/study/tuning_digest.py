"""Write a tuning as JSON, and as digests that show whether two of them do the same. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any

from labctl.base.cpus import format_cpus
from labctl.base.tuning import Requires, Tuning
from labctl.store.jsonfile import canonical


def tuning_json(tuning: Tuning) -> dict[str, Any]:
    """Return a whole tuning in JSON's types: what run.json keeps of it, for advice years later."""
    recorded: dict[str, Any] = listed(asdict(tuning))
    return recorded


def tuning_digest(tuning: Tuning) -> str:
    """Return SHA-256 of what a tuning does; its name, its words and its needs stay out.

    So does what it leaves as it is: a labctl that knows more settings gives the same digest, and
    its runs can be compared with older ones.
    """
    plain = Tuning(name="", description="", kind=tuning.kind)
    done = _set(replace(does(tuning), restore=tuning.restore), plain)
    return hashlib.sha256(canonical({"kind": tuning.kind, **listed(done)}).encode()).hexdigest()


def _set(value: Any, plain: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from those of `plain`, level by level."""
    found: dict[str, Any] = {}
    for name in (own.name for own in fields(value)):
        ours, theirs = getattr(value, name), getattr(plain, name)
        if ours == theirs:
            continue
        nested = is_dataclass(ours) and type(ours) is type(theirs)
        found[name] = _set(ours, theirs) if nested else _plain(ours)
    return found


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def does(tuning: Tuning) -> Tuning:
    """Return what a tuning does, without its name, its words, its needs and how its guest comes
    about."""
    said: dict[str, Any] = {"name": "", "description": "", "sources": (), "needs": (), "risks": ()}
    said["exercised_by"] = ()
    return replace(tuning, **said, requires=Requires(), restore=True, twin=None)


def listed(value: Any) -> Any:
    """Return the same in JSON's types; a CPU set becomes its list format."""
    if isinstance(value, Mapping):
        return {str(key): listed(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return format_cpus(value)
    if isinstance(value, (list, tuple)):
        return [listed(item) for item in value]
    return value
