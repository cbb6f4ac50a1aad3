"""When packets leave the relay that stands in for a queueing discipline. A clock by hand; with
real packets in namespaces: tests/guest/test_narrow_link.py.
"""

from __future__ import annotations

from labctl.host.relay_program import Relay

PACKET = bytes(1486)
"""1,500 bytes with Ethernet's header as tbf counts it: 1 ms at 12 Mb/s."""


def test_a_packet_arrives_after_the_delay_and_not_before() -> None:
    relay = Relay(0.012, 0, 0)
    relay.take(PACKET, 1.0)
    assert relay.due(1.0119) == []
    assert relay.next_s(1.004) is not None
    assert relay.due(1.0121) == [PACKET]
    assert relay.next_s(2.0) is None


def test_packets_leave_no_faster_than_the_rate_and_in_order() -> None:
    relay = Relay(0.0, 12_000_000, 100_000)
    packets = [bytes([n]) + PACKET[1:] for n in range(5)]
    for packet in packets:
        relay.take(packet, 0.0)
    arrived = [relay.due(ms / 1000 + 1e-6) for ms in range(1, 6)]
    assert arrived == [[packet] for packet in packets]


def test_a_packet_that_finds_the_queue_full_is_dropped() -> None:
    relay = Relay(0.0, 12_000_000, 3000)
    for _ in range(5):
        relay.take(PACKET, 0.0)
    assert len(relay.due(1.0)) == 2
    # What has left makes room again.
    relay.take(PACKET, 1.0)
    assert len(relay.due(2.0)) == 1


def test_without_a_rate_nothing_waits_for_another() -> None:
    relay = Relay(0.001, 0, 0)
    for _ in range(1000):
        relay.take(PACKET, 0.0)
    assert len(relay.due(0.0011)) == 1000
