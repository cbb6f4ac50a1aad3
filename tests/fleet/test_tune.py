"""The role labctl_host_tune on hosts, each with a setting of its own, by the real labctl."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from labctl.fleet.ansible import environment
from tests.fleet.conftest import HERE, LABCTL, PROGRAMS, Rig

KSM = "/sys/kernel/mm/ksm/run"


def real_labctl(rig: Rig) -> Path:
    """This checkout's labctl with a journal of its own on each host: this machine's names its
    processes."""
    path = rig.stand / "real-labctl"
    own = f"LABCTL_STATE_DIR=/var/lib/fleet-test PYTHONPATH={HERE.parents[1]}"
    path.write_text(f'#!/bin/sh\n{own} exec {LABCTL} "$@"\n')
    path.chmod(0o755)
    return path


def play(rig: Rig, book: str, *words: str) -> subprocess.CompletedProcess[str]:
    own = environment()
    return rig.run(
        PROGRAMS / "ansible-playbook",
        f"labctl.lab.{book}",
        "--limit=h1,h2",
        "--extra-vars={labctl_host_tune_names: [ksm-on], "
        f"labctl_host_tune_command: {real_labctl(rig)}}}",
        *words,
        ANSIBLE_COLLECTIONS_PATH=own["ANSIBLE_COLLECTIONS_PATH"],
        ANSIBLE_NOCOLOR="1",
    )


def changed(done: subprocess.CompletedProcess[str]) -> list[int]:
    return [int(number) for number in re.findall(r"changed=(\d+)", done.stdout)]


def settings(rig: Rig) -> list[str]:
    return [rig.on(host, "cat", KSM).stdout.strip() for host in ("h1", "h2")]


@pytest.mark.hosts(3)
def test_hosts_are_tuned_once_shown_before_and_put_back(rig: Rig) -> None:
    shown = play(rig, "tune", "--check", "--diff")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert f"-{KSM}: 0" in shown.stdout
    assert f"+{KSM}: 1" in shown.stdout
    assert settings(rig) == ["0", "0"], "check mode changes nothing"

    tuned = play(rig, "tune", "--extra-vars=labctl_host_tune_keep=true")
    assert tuned.returncode == 0, tuned.stdout + tuned.stderr
    assert settings(rig) == ["1", "1"]
    assert all(changed(tuned))

    again = play(rig, "tune", "--extra-vars=labctl_host_tune_keep=true")
    assert changed(again) == [0, 0], again.stdout

    shown = play(rig, "undo", "--check", "--diff")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert f"-{KSM}: 1" in shown.stdout
    assert f"+{KSM}: 0" in shown.stdout
    assert settings(rig) == ["1", "1"], "check mode changes nothing"

    undone = play(rig, "undo")
    assert undone.returncode == 0, undone.stdout + undone.stderr
    assert settings(rig) == ["0", "0"]
    assert changed(play(rig, "undo")) == [0, 0]


@pytest.mark.hosts(3)
def test_a_host_that_nobody_tells_to_keep_it_puts_itself_back(rig: Rig) -> None:
    """The control node is gone after the change: h1's cable is pulled."""
    tuned = play(rig, "tune", "--extra-vars=labctl_host_tune_restore_after=30s")
    assert tuned.returncode == 0, tuned.stdout + tuned.stderr
    assert settings(rig) == ["1", "1"]
    assert rig.run("ip", "link", "set", "h1", "down").returncode == 0
    kept = play(rig, "tune", "--limit=h2", "--extra-vars=labctl_host_tune_keep=true")
    assert kept.returncode == 0, kept.stdout
    deadline = time.monotonic() + 90
    while settings(rig)[0] == "1" and time.monotonic() < deadline:
        time.sleep(0.5)
    assert settings(rig) == ["0", "1"]
