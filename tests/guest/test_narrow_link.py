"""A narrow link with real packets, in namespaces as a trial has them; no guest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pytest

from labctl.base.link import CLIENT, Bottleneck
from labctl.host.link import Link, link
from labctl.host.narrow import narrowed
from labctl.host.settings.journal import Journal
from labctl.host.settings.netdevices import NAMESPACES
from tests.guest.conftest import DISTURBED, runs, wait_for

RATE_MBIT = 10.0
DELAY_MS = 10.0
CPUS = frozenset(os.sched_getaffinity(0))

_CLIENT = """
import json, socket, sys, time
at = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
at.bind(("0.0.0.0", 7000))
at.settimeout(5)
print("ready", flush=True)
size, begin, now = 0, None, 0
while True:
    data, sender = at.recvfrom(2000)
    now = time.monotonic()
    if data == b"end":
        break
    if len(data) < 100:
        at.sendto(data, sender)
    elif begin is None:
        begin = now
    elif now - begin < 1.5:
        size += len(data) + 42
print(size * 8 / 1.5)
"""

_SENDER = """
import json, socket, sys, time
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
to.connect((sys.argv[1], 7000))
to.setblocking(False)
begin = echo_at = time.monotonic()
trips, sent = [], 0
while (now := time.monotonic()) - begin < 2:
    # Half as much again as the link's rate.
    while sent < (now - begin) * 15e6 / 8:
        to.send(bytes(1200))
        sent += 1242
    if now >= echo_at:
        to.send(b"%.6f" % now)
        echo_at += 0.02
    try:
        trips.append((time.monotonic() - float(to.recv(100))) * 1000)
    except BlockingIOError:
        time.sleep(0.0005)
time.sleep(1)
to.send(b"end")
print(json.dumps(trips))
"""


@dataclass(frozen=True)
class Flow:
    rate_mbit: float
    round_trip_ms: float


def _inside(namespace: Path, code: str, *words: str) -> list[str]:
    return ["nsenter", f"--net={namespace}", sys.executable, "-I", "-S", "-c", code, *words]


def _flow(made: Link) -> Flow:
    """What arrives of half as much again as the link takes, and how long an echo is under way."""
    assert made.narrow is not None
    receiver = _inside(made.narrow.client_file, _CLIENT)
    with subprocess.Popen(receiver, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        sender = _inside(made.native_file, _SENDER, CLIENT)
        trips = json.loads(subprocess.run(sender, check=True, stdout=subprocess.PIPE).stdout)
        arrived = float(client.stdout.readline())
    return Flow(arrived / 1e6, median(trips))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Link]:
    with link(Journal(tmp_path / "journal.jsonl"), "52:54:00:00:00:01", is_narrow=True) as found:
        yield found


@DISTURBED
@pytest.mark.parametrize("by", ["kernel", "relay"])
def test_what_arrives_is_no_more_than_the_rate_and_waits_as_long_as_the_queue(
    made: Link, by: str
) -> None:
    assert made.narrow is not None
    if by == "relay":
        made = replace(made, narrow=replace(made.narrow, has_tbf=False, has_netem=False))
        assert made.narrow is not None
    elif not made.narrow.has_tbf:
        pytest.skip("this kernel has no tbf")
    flows = []
    for queue_bdp in (1.0, 8.0):
        asked = Bottleneck(rate_mbit=RATE_MBIT, queue_bdp=queue_bdp, delay_ms=DELAY_MS)
        with narrowed(made.narrow, asked, CPUS) as found:
            flows.append(_flow(made))
            assert found.to_json()["by"]["rate"] == ("tbf" if by == "kernel" else "relay")
    for flow, queue_bdp in zip(flows, (1, 8), strict=True):
        assert 0.5 * RATE_MBIT < flow.rate_mbit <= 1.05 * RATE_MBIT
        # A full queue, the delay, and what a busy host adds.
        assert flow.round_trip_ms > DELAY_MS * (1 + 0.5 * queue_bdp)
    assert flows[1].round_trip_ms > 2 * flows[0].round_trip_ms


def test_nothing_of_it_is_left_after_a_kill_and_the_next_command(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    code = f"""
import time
from dataclasses import replace
from pathlib import Path
from labctl.base.link import Bottleneck
from labctl.host.link import link
from labctl.host.narrow import narrowed
from labctl.host.settings.journal import Journal
journal = Journal(Path({str(journal.path)!r}))
asked = Bottleneck(rate_mbit=10, queue_bdp=2, delay_ms=10)
with link(journal, "52:54:00:00:00:01", is_narrow=True) as made:
    relayed = replace(made.narrow, has_tbf=False, has_netem=False)
    with narrowed(relayed, asked, frozenset({{{min(CPUS)}}})) as found:
        print(*found.pids, flush=True)
        time.sleep(60)
"""
    before = set(NAMESPACES.glob("*"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        relays = process.stdout.readline().split()
        assert len(relays) == 2
        made = set(NAMESPACES.glob("*")) - before
        assert len(made) >= 4
        process.send_signal(signal.SIGKILL)
    # As each command does before its own work; 'labctl host restore' would wait for another's run.
    journal.restore_all()
    assert journal.pending() == []
    assert not made & set(NAMESPACES.glob("*"))
    wait_for(lambda: not any(runs(int(pid)) for pid in relays), 10, "the relays' end")
