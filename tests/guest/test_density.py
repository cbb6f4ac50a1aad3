"""Counting guests for real: as many run at once as are counted, and none outlives the command."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from labctl.base.own_guests import guest_name, neighbour_seat
from tests.guest.conftest import Sandbox, wait_for
from tests.guest.test_neighbour_guests import guest_of

WORDS = (
    *("density", "sysbench-cpu", "--tuning=baseline", "--set=max_prime=2000"),
    *("--duration=1", "--blocks=1", "--memory=512", "--seed=1", "--accel=tcg"),
)
BOTH = {guest_name(neighbour_seat(number)) for number in range(2)}


def names(sandbox: Sandbox) -> set[str]:
    found = [guest_of(pid) for pid in sandbox.qemu_pids()]
    return {guest.name for guest in found if guest is not None}


def test_two_guests_are_counted_while_two_run_and_both_are_gone_afterwards(
    sandbox: Sandbox,
) -> None:
    process = sandbox.start(*WORDS, "--limit=events_per_s > 1 1/s", "--most=2", "--quiet", "--json")
    seen: set[str] = set()
    while process.poll() is None:
        seen |= names(sandbox)
        time.sleep(0.1)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    told = json.loads(out)
    assert told["fitting"][0]["by_block"] == {"1": {"value": 2, "at_least": True}}
    assert seen >= BOTH
    assert sandbox.leftovers() == []
    # The numbers are those that the guests' own output says.
    (folder,) = sandbox.results.glob("*-density-sysbench-cpu")
    last = told["record"]["steps"][-1]
    for guest in last["guests"]:
        text = (folder / "guests" / guest["folder"] / "stdout.txt").read_text()
        line = next(line for line in text.splitlines() if "events per second" in line)
        assert guest["value"] == pytest.approx(float(line.split(":")[1]), rel=0.2)


def test_guests_of_a_killed_count_are_ended_by_the_next_command(sandbox: Sandbox) -> None:
    process = sandbox.start(*WORDS, "--limit=events_per_s > 1 1/s", "--most=9", "--quiet")
    wait_for(lambda: names(sandbox) >= BOTH, 120, "two clones", process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert names(sandbox)
    (record,) = Path(sandbox.results).glob("*/density.json")
    assert json.loads(record.read_text())["status"] == "running"
    again = sandbox.labctl("workload", "try", "sysbench-cpu", "--native", "--duration=1")
    assert again.returncode == 0, again.stderr
    assert "Ended the guest 'labctl-noisy-1'" in again.stderr
    assert sandbox.leftovers() == []
