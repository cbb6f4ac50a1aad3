"""Compute what a guest's VM exits should cost it, by the host's price list. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labctl.store.exit_prices import Price
from labctl.trace.exit_names import IDLE

_TO_QEMU = {"io-qemu": "IO", "mmio-qemu": "MMIO"}
"""Kind of price to the reason with which KVM hands such an exit to QEMU (linux/kvm.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCost:
    """Estimate the CPU seconds per second that the exits take: from `low` to `high`, `typical` in
    between. `exits`: how many a second, idle ones left out; `priced`: the share of them that has a
    price; `unpriced`: the reasons of the others, the most frequent first."""

    exits: float
    low: float
    typical: float
    high: float
    priced: float
    unpriced: tuple[str, ...]


def exit_cost(
    exits: Mapping[str, float], to_qemu: Mapping[str, float], prices: Sequence[Price]
) -> ExitCost | None:
    """Sum over reasons of exits times price; None where there are no exits or no price for any.

    `exits`: a second, by reason; `to_qemu`: those that went on to QEMU, by KVM's reason for that.
    An exit that ends in KVM and has several prices costs something from the lowest to the highest.
    """
    left = {reason: rate for reason, rate in exits.items() if reason not in IDLE and rate > 0}
    total = sum(left.values())
    cost = np.zeros(3)
    for price in prices:
        rate = min(to_qemu.get(_TO_QEMU.get(price.kind, ""), 0.0), left.get(price.reason, 0.0))
        if price.ns is not None:
            cost += rate * _nanoseconds([price])
            left[price.reason] = left.get(price.reason, 0.0) - rate
    unpriced: dict[str, float] = {}
    for reason, rate in left.items():
        inside = [
            price
            for price in prices
            if price.reason == reason and not price.to_qemu and price.ns is not None
        ]
        if inside:
            cost += rate * _nanoseconds(inside)
        elif rate > 0:
            unpriced[reason] = rate
    if total <= 0 or sum(unpriced.values()) >= total:
        return None
    low, typical, high = (float(value) / 1e9 for value in cost)
    return ExitCost(
        exits=total,
        low=low,
        typical=typical,
        high=high,
        priced=1 - sum(unpriced.values()) / total,
        unpriced=tuple(sorted(unpriced, key=lambda reason: -unpriced[reason])),
    )


def _nanoseconds(prices: Sequence[Price]) -> NDArray[np.float64]:
    """Return the lowest end, the mean and the highest end of prices that are known."""
    known = np.array([(price.low_ns, price.ns, price.high_ns) for price in prices], dtype=float)
    return np.array([known[:, 0].min(), known[:, 1].mean(), known[:, 2].max()])
