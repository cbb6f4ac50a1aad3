"""Remember what collecting was measured to cost on hosts of which class: remembered for the runs
there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labctl.base.errors import BrokenError
from labctl.store.jsonfile import canonical, read_json, write_json
from labctl.store.records.run_record import RunRecord
from labctl.store.restores import HOST_CLASS
from labctl.store.shapes import NUMBER, TEXT, WHOLE, Fields, Listed, fitting

_CLASS = (*HOST_CLASS, "perf")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectingCost:
    """Hold the share of the workload's throughput that a level of collecting took on one side, with
    its 95 % interval (None where there is none). Below 0: it was faster. `labctl_cpu`: CPU seconds
    per second in the windows, of labctl and of the programs that record for it."""

    level: str
    side: str
    workload: str
    estimate: float
    low: float | None
    high: float | None
    labctl_cpu: float | None
    pairs: int
    seconds: float
    measured_at: str


_TEXTS = dict.fromkeys(("key", "level", "side", "workload", "measured_at"), TEXT)
_NUMBERS = {"pairs": WHOLE, **dict.fromkeys(("estimate", "seconds"), NUMBER)}
_PERHAPS = dict.fromkeys(("low", "high", "labctl_cpu"), NUMBER)
_COSTS = Listed(Fields({**_TEXTS, **_NUMBERS, **_PERHAPS}, frozenset(_TEXTS | _NUMBERS)))


def remember(file: Path, run: RunRecord, costs: Iterable[CollectingCost]) -> None:
    """Keep them for the class that `run` (what run.json says of host, image and versions) is of,
    in place of older ones."""
    key = _key(run)
    new = {_place(entry): entry for entry in ({"key": key, **asdict(cost)} for cost in costs)}
    kept = [entry for entry in _entries(file) if _place(entry) not in new]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"schema": 1, "costs": [*kept, *new.values()]})


def known(file: Path, run: RunRecord, level: str | None = None) -> list[CollectingCost]:
    """Return what is known of a run's class, of that level or of all."""
    key = _key(run)
    return [
        CollectingCost(**{name: value for name, value in entry.items() if name != "key"})
        for entry in _entries(file)
        if entry["key"] == key and level in (None, entry["level"])
    ]


def _key(run: RunRecord) -> str:
    """Return a digest of everything that a cost holds for."""
    content = {
        "host": {fact: run.host.get(fact) for fact in _CLASS},
        "labctl": run.labctl,
        "accelerator": run.accelerator,
        "image": run.image and run.image.to_json(),
        "vcpus": run.vcpus,
    }
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def _place(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[name] for name in ("key", "level", "side", "workload"))


def _entries(file: Path) -> list[dict[str, Any]]:
    """Return what is remembered; nothing where the file is gone or none of ours: it says less
    then."""
    names = {"key", *CollectingCost.__dataclass_fields__}
    try:
        content = read_json(file)
        entries = fitting(content["costs"], _COSTS)[0] if content["schema"] == 1 else []
        return [entry for entry in entries if entry.keys() == names]
    except (BrokenError, KeyError, TypeError, AttributeError):
        return []
