"""Define a link that is narrowed for a trial: its rate, its queue and its delay, in what tc(8) and
the relay take.

See docs/decisions/network-link.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

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
    """Describe the narrow part of a path. `rate_mbit`: Mb/s, 0 for no limit. `queue_bdp`: room of
    its queue, in bandwidth-delay products. `delay_ms`: what it adds to a round trip.
    """

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
        `delay_ms` and the little that the machines themselves take."""
        return self.rate_bit * self.delay_ms / 1000 / _BITS

    @property
    def limit_bytes(self) -> int:
        """Return the room of the queue: `queue_bdp` × BDP, and two full frames at least."""
        return max(round(self.queue_bdp * self.bdp_bytes), _FEWEST_FRAMES * _FRAME)

    @property
    def burst_bytes(self) -> int:
        """Return what may pass at once after a pause: 2 ms at the rate, and two full frames at
        least. A timer that fires up to 2 ms late then costs no throughput."""
        return max(round(self.rate_bit * _BURST_S / _BITS), _FEWEST_FRAMES * _FRAME)

    def to_json(self) -> dict[str, float]:
        """Return it with what was worked out, for a trial's folder."""
        worked_out = {"limit_bytes": self.limit_bytes, "burst_bytes": self.burst_bytes}
        return {**asdict(self), **(worked_out if self.is_limited else {})}
