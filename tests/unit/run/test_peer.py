"""When a peer's server is ready: rows of /proc/net/udp and tcp as a kernel printed them."""

from __future__ import annotations

import pytest

from labctl.base.command import Command
from labctl.run.trials.beside import has_port
from labctl.workloads.setting import Peer

UDP = [
    "  138: 00000000:2B67 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 "
    "261735 2 0000000000000000 0",
]
TCP = [
    "   0: 00000000:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 "
    "261737 1 0000000000000000 100 0 0 10 0",
    "   1: 0100007F:2B67 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 "
    "261738 1 0000000000000000 20 4 30 10 -1",
]


@pytest.mark.parametrize(
    ("rows", "protocol", "port", "ready"),
    [
        (UDP, "udp", 11111, True),
        (UDP, "udp", 11112, False),
        (TCP, "tcp", 5201, True),
        # A connection that is there already is none that waits for one.
        (TCP, "tcp", 11111, False),
        ([], "tcp", 5201, False),
    ],
)
def test_a_server_is_ready_when_its_port_waits(
    rows: list[str], protocol: str, port: int, ready: bool
) -> None:
    peer = Peer(command=Command(argv=("server",)), protocol=protocol, port=port)
    assert has_port(rows, peer) is ready
