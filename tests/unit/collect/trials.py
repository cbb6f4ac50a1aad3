"""Trial folders made of recorded snapshots, whole or altered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labctl.base.units import Better, Unit
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder

FIXTURES = Path(__file__).parent / "fixtures"
TCG = "host-linux-6.18-qemu-7.2.22-tcg.json"
KVM = "host-linux-6.18-qemu-7.2.22-kvm.json"
RUNNER = "runner-linux-6.18.json"

Change = Callable[[Any], object]


def recorded(name: str) -> str:
    return (FIXTURES / name).read_text()


def altered(name: str, change: Change) -> Any:
    data = json.loads(recorded(name))
    change(data)
    return data


def trial(folder: Path, **files: Any) -> TrialFolder:
    """A trial folder with JSON files: host=..., runner=..."""
    made = TrialFolder(folder)
    for name, value in files.items():
        made.write_raw_json(f"{name}.json", value)
    return made


def same(data: Any) -> None:
    """Changes nothing."""


def values(readings: list[Reading]) -> dict[str, float]:
    return {r.key: r.value for r in readings if isinstance(r, Sample)}


def reasons(readings: list[Reading]) -> dict[str, str]:
    return {r.metric: r.reason for r in readings if isinstance(r, Unavailable)}


def sample(key: str, value: float) -> Sample:
    """A sample of that key: "exits", "host_cpu{thread=vcpu}"."""
    metric, _, inside = key.rstrip("}").partition("{")
    labels = dict(pair.split("=") for pair in inside.split(",")) if inside else {}
    return Sample(
        metric=metric,
        value=value,
        unit=Unit.COUNT,
        better=Better.NEITHER,
        labels=labels,
        source="host.json",
    )
