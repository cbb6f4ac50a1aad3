"""Estimate the price of one VM exit from the cycles of a guest's rounds. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labctl.analysis.special import bdtr
from labctl.store.exit_prices import Price

LEAST_EXITS = 0.5
"""Exits per instruction below which the instruction isn't what made them."""
_CONFIDENCE = 0.975
"""Confidence of either median's interval, so that their difference has one of at least 95 %
(Bonferroni).
"""


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its distribution-free interval of at least 97.5 %: the order statistics
    between which a binomial count lies (David & Nagaraja, Order Statistics, 3rd ed., 7.1).

    The interval is the whole range where there are too few values. Raises ValueError for none.
    """
    if not values:
        raise ValueError("the median of nothing")
    ordered = np.sort(np.asarray(values, dtype=float))
    count = len(ordered)
    outside = [rank for rank in range(count // 2) if 2 * bdtr(rank, count, 0.5) <= 1 - _CONFIDENCE]
    cut = outside[-1] if outside else 0
    return float(np.median(ordered)), float(ordered[cut]), float(ordered[count - 1 - cut])


def price(
    kind: str,
    what: str,
    reason: str,
    *,
    to_qemu: bool,
    cycles: Sequence[float],
    alone: Sequence[float],
    exits_per_op: float | None,
    tsc_hz: float | None,
    problem: str = "",
) -> Price:
    """Return what an exit of a kind costs: the instruction's cycles less those of the loop `alone`
    (either a value a round), divided by the exits that it made, in nanoseconds of `tsc_hz`.

    Where that can't be said the price has a problem, a sentence.
    """
    ns = low_ns = high_ns = None
    if not problem and tsc_hz is None:
        problem = "the rate of the host's time-stamp counter is not known."
    if not problem and exits_per_op is not None and exits_per_op < LEAST_EXITS:
        problem = f"makes no VM exit here: KVM counted {exits_per_op:.2f} for each instruction."
    if not problem and tsc_hz is not None:
        # Where KVM counts no exits, that there is one to each is taken on trust.
        exits = exits_per_op or 1.0
        middle, low, high = median_interval(cycles)
        alone_middle, alone_low, alone_high = median_interval(alone)
        per_cycle = 1e9 / tsc_hz / exits
        if low <= alone_high:
            problem = "took no longer than the loop alone, as far as its rounds tell."
        else:
            ns = (middle - alone_middle) * per_cycle
            low_ns, high_ns = (low - alone_high) * per_cycle, (high - alone_low) * per_cycle
    return Price(
        kind=kind,
        what=what,
        reason=reason,
        to_qemu=to_qemu,
        ns=ns,
        low_ns=low_ns,
        high_ns=high_ns,
        exits_per_op=exits_per_op,
        problem=problem,
    )
