"""Remember what VM exits of each kind cost on a host: measured once, kept for the runs that
follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labctl.base.errors import BrokenError
from labctl.store.jsonfile import read_json, write_json
from labctl.store.shapes import FLAG, NUMBER, TEXT, Fields, Listed, fitting

_CLASS = ("kernel_release", "qemu", "cpu_model", "microcode", "mitigations")
"""Host facts that a price holds for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Hold the price of one kind of exit. `ns` is the median of the rounds, [`low_ns`, `high_ns`]
    its 95 % interval; None with the `problem` where there is none. `exits_per_op`: VM exits that
    KVM counted for each instruction, None where it counts none at all."""

    kind: str
    what: str
    reason: str
    to_qemu: bool
    ns: float | None
    low_ns: float | None
    high_ns: float | None
    exits_per_op: float | None
    problem: str = ""


_TEXTS = dict.fromkeys(("kind", "what", "reason"), TEXT)
_NUMBERS = dict.fromkeys(("ns", "low_ns", "high_ns", "exits_per_op"), NUMBER)
_PRICES = Listed(
    Fields({**_TEXTS, **_NUMBERS, "to_qemu": FLAG, "problem": TEXT}, frozenset(_TEXTS))
)


def write_prices(file: Path, host: Mapping[str, Any], prices: Sequence[Price], at: str) -> None:
    """Keep the prices of a host; `at`: when they were measured."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [asdict(price) for price in prices]
    write_json(file, {"schema": 1, "at": at, "host": _class(host), "prices": rows})


def known_prices(file: Path, host: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a run's record keeps of them: `at` and `prices`; None where none were measured on
    a host of this class."""
    try:
        content = read_json(file)
        if content["schema"] != 1 or content["host"] != _class(host):
            return None
        return {"at": str(content["at"]), "prices": [asdict(price) for price in prices_of(content)]}
    except (BrokenError, KeyError, TypeError):
        return None


def prices_of(recorded: object) -> list[Price]:
    """Return the prices in a run's record; none where it has none that can be read."""
    try:
        rows = recorded["prices"]  # type: ignore[index]  # whatever a record may hold
        return [Price(**row) for row in fitting(rows, _PRICES)[0] if _are_finite(row)]
    except (KeyError, TypeError):
        return []


def _are_finite(row: Mapping[str, Any]) -> bool:
    return all(row.get(name) is None or math.isfinite(row[name]) for name in _NUMBERS)


def _class(host: Mapping[str, Any]) -> dict[str, Any]:
    return {fact: host.get(fact) for fact in _CLASS}
