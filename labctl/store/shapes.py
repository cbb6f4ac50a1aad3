"""Define what the JSON files of a run folder hold, as far as anything here reads it.

A file may be old, cut off or edited by hand. What is of another type than its place wants is left
out and named, so that whoever reads the rest need not ask again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Plain:
    """Check a value of one of the types; `words` is what a sentence calls it."""

    types: tuple[type, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Listed:
    of: Shape


@dataclass(frozen=True, slots=True)
class Named:
    """Check an object with free names."""

    of: Shape


@dataclass(frozen=True, slots=True)
class Fields:
    """Check an object with known keys; those in `needed` must be there, others may be there too."""

    known: Mapping[str, Shape]
    needed: frozenset[str] = field(default_factory=frozenset)


Shape = Plain | Listed | Named | Fields

TEXT = Plain((str,), "a text")
WHOLE = Plain((int,), "a whole number")
NUMBER = Plain((int, float), "a number")
FLAG = Plain((bool,), "true or false")
ANY = Plain((object,), "anything")


def _whole(known: Mapping[str, Shape]) -> Fields:
    return Fields(known, frozenset(known))


_CELL = Named(TEXT)
_PLANNED_TRIAL = Fields(
    {"cell": _CELL, **dict.fromkeys(("number", "block", "boot", "position"), WHOLE)},
    frozenset({"cell"}),
)

_PUBLISHED = Fields(
    {
        "source": TEXT,
        "results": Listed(
            Fields(
                {
                    **dict.fromkeys(("tuning", "against", "metric", "direction"), TEXT),
                    "workload": TEXT,
                    "condition": TEXT,
                    "ratio": NUMBER,
                },
                frozenset({"tuning", "against", "metric", "direction"}),
            )
        ),
    },
    frozenset({"source", "results"}),
)

PLAN = Fields(
    {
        "study": TEXT,
        "title": TEXT,
        "seed": WHOLE,
        "quick": FLAG,
        "digest": TEXT,
        "baseline": TEXT,
        "control": TEXT,
        "handicap": TEXT,
        "tunings": Named(
            Fields(
                {
                    "kind": TEXT,
                    "twin": TEXT,
                    "restored_as": TEXT,
                    "durability": TEXT,
                    "exercised_by": Listed(TEXT),
                    "description": TEXT,
                },
                frozenset({"kind"}),
            )
        ),
        "workloads": Named(
            Fields(
                {
                    "program": TEXT,
                    "primary": TEXT,
                    "margin": NUMBER,
                    "no_worse_than": NUMBER,
                    "uses_data_disk": FLAG,
                    "duration_s": NUMBER,
                }
            )
        ),
        "conditions": Listed(TEXT),
        "published": Listed(_PUBLISHED),
        "skipped": Named(TEXT),
        "skipped_workloads": Named(Named(TEXT)),
        "collect": TEXT,
        "guest": Named(ANY),
        "trials": Listed(_PLANNED_TRIAL),
        "blocks": WHOLE,
        "spares": Listed(_PLANNED_TRIAL),
        "stopping": Fields({"width": NUMBER, "most_blocks": WHOLE, "looks": Listed(WHOLE)}),
    }
)

EXTENSION = Fields(
    {
        "digest": TEXT,
        "extends": TEXT,
        "first_block": WHOLE,
        "last_block": WHOLE,
        "trials": Listed(_PLANNED_TRIAL),
    },
    frozenset({"first_block", "last_block", "trials"}),
)

_PIN_GROUP = Fields(
    {
        "title": TEXT,
        "cores": Listed(_whole({"core": WHOLE, "cpus": Named(Listed(TEXT))})),
        "free": TEXT,
    },
    frozenset({"cores"}),
)

HASHED = "hashed"
"""Key in run.json for the files that ran; runs from an older labctl lack it."""

_HASHED = _whole({"checks": WHOLE, "files": Named(TEXT)})

RUN = Fields(
    {
        "status": TEXT,
        "study": TEXT,
        "title": TEXT,
        "command": TEXT,
        "labctl": TEXT,
        "started_at": TEXT,
        "ended_at": TEXT,
        "seed": WHOLE,
        "quick": FLAG,
        "vcpus": WHOLE,
        "memory_mib": WHOLE,
        "data_disk_bytes": WHOLE,
        "accelerator": TEXT,
        "accelerator_reason": TEXT,
        "connection": TEXT,
        "qemu_user": Fields({"name": TEXT, "why_root": Listed(TEXT)}, frozenset({"name"})),
        "same_kernel": FLAG,
        "kernel_sentence": TEXT,
        "restored_state": FLAG,
        "boot_seconds": Named(NUMBER),
        "waited_for_quiet_s": NUMBER,
        "stopped": _whole({"blocks": WHOLE, "why": TEXT}),
        "restores_shown": Listed(
            _whole(dict.fromkeys(("tuning", "workload", "condition", "run"), TEXT))
        ),
        "collect": TEXT,
        "collecting_costs": Listed(
            Fields(
                {
                    **dict.fromkeys(("level", "side", "workload", "measured_at"), TEXT),
                    **dict.fromkeys(("estimate", "low", "high", "labctl_cpu"), NUMBER),
                },
                frozenset({"side", "workload", "estimate"}),
            )
        ),
        "skipped": Named(TEXT),
        "warnings": Listed(TEXT),
        "notes": Listed(TEXT),
        "host": Named(ANY),
        "guest": Named(ANY),
        "image": _whole({"name": TEXT, "digest": TEXT}),
        "domain": Fields({"asked": TEXT, "digest": TEXT}, frozenset({"asked"})),
        "kernel": Fields(
            {"file": TEXT, "initrd": TEXT, "sha256": Named(TEXT)}, frozenset({"file", "sha256"})
        ),
        "binaries": Named(ANY),
        HASHED: Fields({"native": _HASHED, "guest": _HASHED, "unproven": Listed(TEXT)}),
        "calibration": Listed(Fields({"workload": TEXT, "bound": NUMBER, "second_method": TEXT})),
        "xml": Named(TEXT),
        "tunings": Named(Fields({"host": Named(ANY)})),
        "pin_plan": Fields(
            {
                "picture": TEXT,
                "reasons": Listed(TEXT),
                "data": Fields({"vcpus": Named(WHOLE), "iothreads": Named(TEXT)}),
                "layout": Listed(_PIN_GROUP),
            }
        ),
        "redacted": _whole(
            {"at": TEXT, "labctl": TEXT, "taken_out": Named(WHOLE), "left_out": WHOLE}
        ),
        "imported": Fields({"file": TEXT, "sha256": TEXT, "rows": WHOLE}, frozenset({"file"})),
    }
)

_TRIAL = _whole(
    {
        **dict.fromkeys(("number", "attempt", "block", "boot", "position"), WHOLE),
        **dict.fromkeys(("measured_s", "warmup_s", "wall_s"), NUMBER),
        "cell": _CELL,
        "status": TEXT,
        "reasons": Listed(TEXT),
        "started_at": TEXT,
        "restored": FLAG,
        "parsed_with": Named(ANY),
    }
)
TRIAL = Fields(
    {
        **_TRIAL.known,
        "digests": Fields({"samples": TEXT, "raw": Named(TEXT)}, frozenset({"raw"})),
        "reparsed": Fields(
            {"at": TEXT, "labctl": TEXT, "changed": Listed(TEXT), "invalid": FLAG},
            frozenset({"at", "labctl", "changed"}),
        ),
        "redacted": _whole(
            {"at": TEXT, "labctl": TEXT, "changed": Listed(TEXT), "left_out": Listed(TEXT)}
        ),
    },
    _TRIAL.needed,
)

SAMPLE = _whole(
    {
        "metric": TEXT,
        "value": NUMBER,
        "unit": TEXT,
        "better": TEXT,
        "labels": Named(TEXT),
        "source": TEXT,
    }
)
SAMPLES = _whole(
    {
        "samples": Listed(SAMPLE),
        "unavailable": Listed(_whole({"metric": TEXT, "reason": TEXT})),
    }
)

_LONGEST = 40
LARGEST = 2**63
"""JSON's whole numbers have no end, while a float's do."""
_GONE = object()


def fitting(value: Any, shape: Shape) -> tuple[Any, list[str]]:
    """Return `value` without what doesn't fit, and a sentence's end for each thing left out, such
    as "'tunings.pinned.kind' is 5 where a text belongs".

    null fits wherever nothing is needed. What lacks a needed key is left out as a whole; of a
    `value` that is left out itself, an empty object is what remains.
    """
    problems: list[str] = []
    found = _fitting(value, shape, "", problems)
    return ({} if found is _GONE else found), problems


def _fitting(value: Any, shape: Shape, place: str, problems: list[str]) -> Any:
    if isinstance(shape, Plain):
        return value if _is_plain(value, shape) else _gone(value, shape.words, place, problems)
    if isinstance(shape, Listed):
        if not isinstance(value, list):
            return _gone(value, "a list", place, problems)
        items = [
            _fitting(item, shape.of, f"{place}[{number}]", problems)
            for number, item in enumerate(value)
        ]
        return [item for item in items if item is not _GONE]
    if not isinstance(value, dict):
        return _gone(value, "an object", place, problems)
    kept: dict[str, Any] = {}
    for key, item in value.items():
        inner = shape.of if isinstance(shape, Named) else shape.known.get(key, ANY)
        optional = isinstance(shape, Fields) and key not in shape.needed
        if item is None and optional:
            kept[key] = None
            continue
        found = _fitting(item, inner, f"{place}.{key}" if place else key, problems)
        if found is not _GONE:
            kept[key] = found
    if isinstance(shape, Fields) and (lacking := sorted(shape.needed - kept.keys())):
        missing = [key for key in lacking if key not in value]
        if missing:
            problems.append(f"'{place or 'the file'}' has no '{missing[0]}'")
        return _GONE
    return kept


def _is_plain(value: Any, shape: Plain) -> bool:
    if shape is ANY:
        return True
    if isinstance(value, bool) and bool not in shape.types:
        return False  # JSON's true is no 1
    if isinstance(value, int) and abs(value) > LARGEST:
        return False
    return isinstance(value, shape.types)


def _gone(value: Any, wanted: str, place: str, problems: list[str]) -> object:
    shown = repr(value)
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST]}…"
    problems.append(f"'{place or 'the file'}' is {shown} where {wanted} belongs")
    return _GONE
