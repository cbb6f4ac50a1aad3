"""Keep the measured cost of collecting by class of host, for later runs there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from labctl.base.errors import BrokenError
from labctl.store.jsonfile import canonical, read_json, write_json
from labctl.store.records.run_record import RunRecord
from labctl.store.records.tolerant import Number, Text, Whole, as_far_as_whole
from labctl.store.restores import HOST_CLASS

_CLASS = (*HOST_CLASS, "perf")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectingCost:
    """Hold the share of the workload's throughput that a level of collecting took on one side, with
    its 95 % interval (None if there is none). Below 0: it was faster. `labctl_cpu`: CPU seconds per
    second of labctl and of its recording programs in the windows."""

    level: Text
    side: Text
    workload: Text
    estimate: Number
    low: Number | None
    high: Number | None
    labctl_cpu: Number | None
    pairs: Whole
    seconds: Number
    measured_at: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept(CollectingCost):
    key: Text


def remember(file: Path, run: RunRecord, costs: Iterable[CollectingCost]) -> None:
    """Store the costs for the class of `run` (run.json's facts on host, image and versions), in
    place of older ones."""
    key = _key(run)
    new = {_place(entry): entry for entry in (_Kept(key=key, **asdict(cost)) for cost in costs)}
    kept = [entry for entry in _entries(file) if _place(entry) not in new]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"schema": 1, "costs": [asdict(one) for one in (*kept, *new.values())]})


def known(file: Path, run: RunRecord, level: str | None = None) -> list[CollectingCost]:
    """Return the known costs for a run's class, of that level or of all."""
    key = _key(run)
    names = CollectingCost.__dataclass_fields__
    return [
        CollectingCost(**{name: getattr(entry, name) for name in names})
        for entry in _entries(file)
        if entry.key == key and level in (None, entry.level)
    ]


def _key(run: RunRecord) -> str:
    """Return a digest of everything that a cost depends on."""
    content = {
        "host": {fact: run.host.get(fact) for fact in _CLASS},
        "labctl": run.labctl,
        "accelerator": run.accelerator,
        "image": run.image and run.image.to_json(),
        "vcpus": run.vcpus,
    }
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def _place(entry: _Kept) -> tuple[str, ...]:
    return entry.key, entry.level, entry.side, entry.workload


def _entries(file: Path) -> list[_Kept]:
    """Return the stored entries; none if the file is missing or invalid."""
    try:
        content = read_json(file)
        found = as_far_as_whole(list[_Kept], content["costs"])[0]
        return found or [] if content["schema"] == 1 else []
    except (BrokenError, KeyError, TypeError, AttributeError):
        return []
