"""Guests that talk to their peer: latencies on both sides, and nothing of the link left behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from labctl.domain.readback import facts
from labctl.host.settings.journal import Journal
from labctl.host.settings.netdevices import NAMESPACES
from tests.guest.conftest import Sandbox, wait_for

STUDY = Path(__file__).with_name("network.yaml")
SWEEP = ("sweep", str(STUDY), "--seed=1", "--accel=tcg")

LINKED = """
import sys, time
from pathlib import Path
from labctl.host.settings.journal import Journal
from labctl.host.link import link, tap

journal = Journal(Path(sys.argv[1]))
while True:
    with link(journal, "52:54:00:00:00:01") as made:
        for many in (False, True):
            with tap(journal, made, many_queues=many):
                made.plug()
"""


def left_of_links(pids: set[int]) -> list[str]:
    """Namespaces and devices of these processes' links."""
    found = [*NAMESPACES.glob("labctl-*"), *Path("/sys/class/net").glob("labctl*")]
    return [path.name for path in found if {*map(int, re.findall(r"\d+", path.name))} & pids]


def _read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_both_sides_reach_their_peer_and_nothing_of_it_is_left(sandbox: Sandbox) -> None:
    done = sandbox.labctl(*SWEEP, "--json")
    assert done.returncode == 0, done.stderr
    [run] = sandbox.runs()
    folders = {
        (trial["cell"]["tuning"], trial["cell"]["workload"]): path.parent
        for path in sorted(run.glob("trials/*/trial.json"))
        if (trial := json.loads(path.read_text()))["status"] == "done"
    }
    arms = ("native", "baseline", "net-packed")
    assert {(arm, name) for arm in arms for name in ("ping-pong", "stream")} <= {*folders}
    for (arm, workload), folder in folders.items():
        samples = {s["metric"]: s["value"] for s in _read(folder, "samples.json")["samples"]}
        metric = "latency_max" if workload == "ping-pong" else "bandwidth"
        assert samples[metric] > 0, (arm, workload)
        peers = [t for t in _read(folder, "host.json")["after"]["threads"] if t["role"] == "peer"]
        assert [thread["comm"] for thread in peers][:1] in (["sockperf"], ["iperf3"])
        if arm != "native":
            card = _read(folder, "network.json")
            assert card["driver"] == "virtio_net"
            assert card["packed"] is (arm == "net-packed")
            live = facts((folder / "live.xml").read_text(), "live")
            assert live["network card 0 type"] == "ethernet"
    assert sandbox.leftovers() == []
    assert left_of_links(sandbox.pids) == []


def test_what_a_killed_sweep_left_of_its_link_is_put_away_by_restore(sandbox: Sandbox) -> None:
    process = sandbox.start(*SWEEP, "--quiet")
    wait_for(
        lambda: left_of_links(sandbox.pids) and sandbox.guest_pids(),
        600,
        "a guest with its NIC",
        process,
    )
    process.kill()
    process.communicate(timeout=60)
    assert f"labctl-peer-{process.pid}" in left_of_links(sandbox.pids)
    for pid in sandbox.guest_pids():
        os.kill(pid, signal.SIGKILL)
    restored = sandbox.labctl("host", "restore")
    assert restored.returncode == 0, restored.stderr
    assert f"labctl-peer-{process.pid}" in restored.stdout
    assert left_of_links(sandbox.pids) == []
    journal = sandbox.state / "journal.jsonl"
    assert Journal(journal).pending() == []


def test_a_link_that_is_killed_at_any_moment_is_put_away(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    moments = random.Random(1)
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-c", LINKED, str(path)])
        try:
            wait_for(path.exists, 30, "the first change")
            time.sleep(moments.uniform(0, 0.6))
        finally:
            process.kill()
            process.wait()
        results = Journal(path).restore_all()
        assert all(str(result.outcome) in ("restored", "dropped") for result in results), [
            r.note for r in results
        ]
        assert left_of_links({process.pid}) == []
    assert Journal(path).pending() == []


@pytest.mark.parametrize("tuning", ["net-vhost", "net-queues"])
def test_a_tuning_that_the_host_cannot_have_is_refused_by_name(
    sandbox: Sandbox, tuning: str
) -> None:
    if Path("/dev/vhost-net").exists():
        pytest.skip("this host has vhost-net")
    done = sandbox.labctl(*SWEEP, "--tuning", tuning)
    assert done.returncode == 3
    assert "/dev/vhost-net" in done.stderr
    assert left_of_links(sandbox.pids) == []
