"""What hosts.sh gives the other tests, and that a host with another key is not talked to."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.fleet.conftest import PROGRAMS, Rig, hosts_up, left_behind

PING = """
import json, sys
from labctl.fleet.ansible import play

heard = {}

def handler(event):
    data = event.get("event_data", {})
    if event["event"] in ("runner_on_ok", "runner_on_unreachable", "runner_on_failed"):
        heard[data["host"]] = event["event"]

play(sys.argv[1], inventory=["/run/rig/hosts.yml"], limit=["h1", "h2", "h3"], forks=5,
     variables={}, handler=handler)
print(json.dumps(heard))
"""

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.ping:
"""


def test_a_host_with_another_key_is_unreachable_through_ansible_runner(
    rig: Rig, tmp_path: Path
) -> None:
    (tmp_path / "ping.yml").write_text(PLAY)
    # As a user may have it: ansible-runner would let this win.
    done = rig.run(
        PROGRAMS / "python", "-c", PING, tmp_path / "ping.yml", ANSIBLE_HOST_KEY_CHECKING="False"
    )
    assert json.loads(done.stdout) == {
        "h1": "runner_on_ok",
        "h2": "runner_on_ok",
        "h3": "runner_on_unreachable",
    }, done.stderr


def test_hosts_have_a_name_and_settings_of_their_own(rig: Rig) -> None:
    assert rig.on("h2", "hostname").stdout == "h2\n"
    knob = "/proc/sys/net/core/somaxconn"
    assert rig.on("h1", "sh", "-c", f"echo 1234 > {knob} && cat {knob}").stdout == "1234\n"
    assert rig.on("h2", "cat", knob).stdout != "1234\n"
    assert Path(knob).read_text() != "1234\n"


@pytest.mark.alone
def test_nothing_is_left_of_the_hosts(packages: Path) -> None:
    before = left_behind()
    with hosts_up(packages, 2) as rig:
        assert rig.on("h1", "true").returncode == 0
        stand = rig.stand
    deadline = time.monotonic() + 5
    while left_behind() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_behind() - before == set()
    assert not stand.exists()
