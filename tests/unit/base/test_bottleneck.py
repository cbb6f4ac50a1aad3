"""What a narrow link's rate, queue and delay become in bytes."""

from __future__ import annotations

import pytest

from labctl.base.link import Bottleneck


def _link(rate_mbit: float, queue_bdp: float, delay_ms: float = 12) -> Bottleneck:
    return Bottleneck(rate_mbit=rate_mbit, queue_bdp=queue_bdp, delay_ms=delay_ms)


@pytest.mark.parametrize(
    ("rate_mbit", "queue_bdp", "limit_bytes"),
    [
        # 15 Mb/s for 12 ms are 180,000 bits: 22,500 bytes.
        (15, 0.5, 11_250),
        (15, 2, 45_000),
        (35, 8, 420_000),
    ],
)
def test_a_queue_is_a_multiple_of_rate_times_delay(
    rate_mbit: float, queue_bdp: float, limit_bytes: int
) -> None:
    assert _link(rate_mbit, queue_bdp).limit_bytes == limit_bytes


def test_a_queue_has_room_for_two_frames_at_least() -> None:
    assert _link(1, 0.1, 1).limit_bytes == 2 * 1514


def test_a_burst_is_two_milliseconds_of_the_rate_or_two_frames() -> None:
    assert _link(35, 1).burst_bytes == 8750
    assert _link(1, 1).burst_bytes == 2 * 1514


def test_a_link_without_a_limit_says_nothing_of_a_queue() -> None:
    assert not _link(0, 1).is_limited
    assert "limit_bytes" not in _link(0, 1).to_json()
    assert _link(15, 1).to_json()["limit_bytes"] == 22_500
