"""Counting guests for real: as many run at once as are counted, and none outlives the command."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from statistics import mean

import pytest

from labctl.base.paths import guest_name, neighbour_seat
from tests.guest.conftest import Sandbox, wait_for
from tests.guest.test_neighbour_guests import guest_of

WORDS = (
    *("density", "sysbench-cpu", "--tuning=baseline", "--set=max_prime=2000"),
    *("--duration=1", "--blocks=1", "--memory=512", "--seed=1", "--accel=tcg", "--most=2"),
    "--limit=events_per_s > 1 1/s",
)
BOTH = {guest_name(neighbour_seat(number)) for number in range(2)}


def names(sandbox: Sandbox) -> set[str]:
    found = [guest_of(pid) for pid in sandbox.guest_pids()]
    return {guest.name for guest in found if guest is not None}


def test_guests_are_gone_after_a_killed_count_and_the_next_one_and_after_that(
    sandbox: Sandbox,
) -> None:
    killed = sandbox.start(*WORDS, "--quiet")
    wait_for(lambda: names(sandbox) >= BOTH, 120, "two clones", killed)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    left = set(sandbox.guest_pids())
    assert left
    (record,) = sandbox.results.glob("*/density.json")
    assert json.loads(record.read_text())["status"] == "running"
    shutil.rmtree(record.parent)

    process = sandbox.start(*WORDS, "--quiet")
    seen: set[str] = set()
    while process.poll() is None:
        if not left & set(sandbox.guest_pids()):
            seen |= names(sandbox)
        time.sleep(0.1)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    told = json.loads(sandbox.labctl("density", "--show", "latest", "--json").stdout)
    assert told["fitting"][0]["by_block"] == {"1": {"value": 2, "at_least": True}}
    assert seen >= BOTH
    assert not left & set(sandbox.guest_pids())
    assert sandbox.leftovers() == []
    # The numbers are those that the guests' own output says.
    last = told["record"]["steps"][-1]
    for guest in last["guests"]:
        folder = sandbox.results / told["run"] / "guests" / guest["folder"]
        rates = re.findall(r"events per second: +([\d.]+)", (folder / "stdout.txt").read_text())
        assert guest["value"] == pytest.approx(mean(map(float, rates)), rel=0.1)
