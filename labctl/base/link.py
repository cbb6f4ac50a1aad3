"""Define a narrowed link (tc(8)), and how two flows share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Final

# Define a link that is narrowed for a trial: its rate, its queue and its delay, in the units of
# tc(8) and the relay.
#
# See docs/decisions/network-link.md.


CLIENT: Final = "198.18.1.1"
"""Address of the client, behind the bottleneck."""
COMPETITOR: Final = "198.18.2.1"
"""Address of the competitor, before it."""

_FRAME = 1514
"""Bytes of a full Ethernet frame, as queueing disciplines count it."""
_FEWEST_FRAMES = 2
_BURST_S = 0.002
_BITS = 8
_MEGA = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """Describe the bottleneck of a path. `rate_mbit`: Mb/s, 0 for no limit. `queue_bdp`: room of
    its queue, in bandwidth-delay products. `delay_ms`: its addition to a round trip."""

    rate_mbit: float
    queue_bdp: float
    delay_ms: float

    @property
    def is_limited(self) -> bool:
        return self.rate_mbit > 0

    @property
    def rate_bit(self) -> int:
        """Return bits per second."""
        return round(self.rate_mbit * _MEGA)

    @property
    def bdp_bytes(self) -> float:
        """Return the bandwidth-delay product: rate × delay / 8. The round trip of an idle path is
        `delay_ms` plus the small time of the machines themselves."""
        return self.rate_bit * self.delay_ms / 1000 / _BITS

    @property
    def limit_bytes(self) -> int:
        """Return the room of the queue: `queue_bdp` × BDP, and at least two full frames."""
        return max(round(self.queue_bdp * self.bdp_bytes), _FEWEST_FRAMES * _FRAME)

    @property
    def burst_bytes(self) -> int:
        """Return the burst that may pass after a pause: 2 ms at the rate, and at least two full
        frames. A timer that fires up to 2 ms late then costs no throughput."""
        return max(round(self.rate_bit * _BURST_S / _BITS), _FEWEST_FRAMES * _FRAME)

    def to_json(self) -> dict[str, float]:
        """Return it with the derived values, for a trial's folder."""
        worked_out = {"limit_bytes": self.limit_bytes, "burst_bytes": self.burst_bytes}
        return {**asdict(self), **(worked_out if self.is_limited else {})}


# Compute how two flows share a link, and how soon one of them settles.


SETTLED = 0.1
"""Share of the steady value within which a bitrate has settled."""


def jain_index(rates: Sequence[float]) -> float | None:
    """Return Jain's index of fairness, (Σ x)² / (n Σ x²), from 1/n to 1; None if nothing flows.

    R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems, DEC-TR-301, 1984.
    """
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares > 0 else None


def bitrate_difference(ours: float, others: float, capacity: float) -> float:
    """Return the normalised difference of two bitrates: 1 if ours has the whole capacity, -1 if the
    other has."""
    return (ours - others) / capacity


def steady(rates: Sequence[float]) -> float:
    """Return the mean of the second half of a phase's bins."""
    return fmean(rates[len(rates) // 2 :])


def settling_s(rates: Sequence[float], bin_s: float) -> float | None:
    """Return the end of the first bin whose rate is within a tenth of the phase's steady value, in
    seconds from the phase's begin; None if nothing flows.

    The definition is labctl's own: studies of streams each have a different one.
    """
    aim = steady(rates)
    for number, rate in enumerate(rates, start=1):
        if abs(rate - aim) <= SETTLED * aim and aim > 0:
            return number * bin_s
    return None
