"""Keep the measured cost of VM exits of each kind on a host, for later runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ConfigDict, with_config

from labctl.base.errors import BrokenError
from labctl.store.jsonfile import read_json, write_json
from labctl.store.records.tolerant import Flag, Number, Record, Text, as_far_as_whole

_CLASS = ("kernel_release", "qemu", "cpu_model", "microcode", "mitigations")
"""Host facts that a price depends on."""


@with_config(ConfigDict(extra="ignore"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Hold the price of one kind of exit. `ns` is the median of the rounds, [`low_ns`, `high_ns`]
    its 95 % interval; None with the `problem` if there is none. `exits_per_op`: VM exits that KVM
    counted for each instruction, None if it counts none at all."""

    kind: Text
    what: Text
    reason: Text
    to_qemu: Flag
    ns: Number | None
    low_ns: Number | None
    high_ns: Number | None
    exits_per_op: Number | None
    problem: Text = ""


class PriceList(Record):
    """Hold the prices of a host; `at`: when they were measured."""

    at: Text | None = None
    prices: tuple[Price, ...] = ()


def write_prices(file: Path, host: Mapping[str, object], prices: Sequence[Price], at: str) -> None:
    """Store the prices of a host; `at`: when they were measured."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [asdict(price) for price in prices]
    write_json(file, {"schema": 1, "at": at, "host": _class(host), "prices": rows})


def known_prices(file: Path, host: Mapping[str, object]) -> dict[str, object] | None:
    """Return the prices for a run's record: `at` and `prices`; None if none were measured on a host
    of this class."""
    try:
        content = read_json(file)
        if content["schema"] != 1 or content["host"] != _class(host):
            return None
        return {"at": str(content["at"]), "prices": [asdict(price) for price in prices_of(content)]}
    except (BrokenError, KeyError, TypeError):
        return None


def prices_of(recorded: object) -> list[Price]:
    """Return the prices in a file; none if it has none that can be read."""
    return usable(as_far_as_whole(PriceList, recorded)[0])


def usable(prices: PriceList | None) -> list[Price]:
    """Return the prices of a list that are numbers, or known to be missing."""
    return [price for price in prices.prices if _is_finite(price)] if prices else []


def _is_finite(price: Price) -> bool:
    numbers = (price.ns, price.low_ns, price.high_ns, price.exits_per_op)
    return all(number is None or math.isfinite(number) for number in numbers)


def _class(host: Mapping[str, object]) -> dict[str, object]:
    return {fact: host.get(fact) for fact in _CLASS}
