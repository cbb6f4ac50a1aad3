"""The playbook rollout: measured by the stand-in, tuned by the real labctl, and kept."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from labctl.fleet.ansible import environment
from tests.fleet.conftest import LABCTL, PROGRAMS, SEED, STUDY, Rig
from tests.fleet.test_canary import policy
from tests.fleet.test_tune import KSM, real_labctl


def roll_out(rig: Rig, folder: Path, *, kept: bool) -> subprocess.CompletedProcess[str]:
    given = {
        "labctl_serial": [1, 2, 3],
        "labctl_host_tune_names": ["ksm-on"],
        "labctl_host_tune_command": str(real_labctl(rig)),
        "labctl_sweep_id": "after",
        "labctl_sweep_study": str(STUDY),
        "labctl_sweep_seed": SEED,
        "labctl_sweep_look_every_s": 1,
        "labctl_sweep_fetch_to": str(folder / "runs"),
        "labctl_sweep_control_command": str(LABCTL),
        "labctl_gate_command": str(LABCTL),
        "labctl_gate_policy": str(policy(folder, kept=kept)),
    }
    return rig.run(
        PROGRAMS / "ansible-playbook",
        "labctl.lab.rollout",
        f"--extra-vars={given}",
        ANSIBLE_COLLECTIONS_PATH=environment()["ANSIBLE_COLLECTIONS_PATH"],
        ANSIBLE_SHOW_CUSTOM_STATS="1",
        ANSIBLE_NOCOLOR="1",
    )


def settings(rig: Rig) -> dict[str, str]:
    return {host: rig.on(host, "cat", KSM).stdout.strip() for host in rig.hosts}


@pytest.mark.hosts(3)
def test_a_batch_that_breaks_the_policy_is_not_changed_and_the_next_not_touched(
    rig: Rig, tmp_path: Path
) -> None:
    done = roll_out(rig, tmp_path, kept=False)
    assert done.returncode != 0
    assert "not changed: a rule of the policy is violated" in done.stdout
    assert '"h1": "not changed: a rule' in done.stdout.partition("CUSTOM STATS")[2]
    assert settings(rig) == dict.fromkeys(rig.hosts, "0")
    assert any("sweep" in call for call in rig.calls("h1"))
    assert rig.calls("h2") == []


@pytest.mark.hosts(4)
def test_what_passes_is_kept(rig: Rig, tmp_path: Path) -> None:
    """h4 has a wrong key: its batch of three is h2, h3, and then it alone is left."""
    done = roll_out(rig, tmp_path, kept=True)
    assert settings(rig)["h1"] == "1"
    assert settings(rig)["h2"] == settings(rig)["h3"] == "1", done.stdout
    assert settings(rig)["h4"] == "0"
    assert '"h1": "kept", "h2": "kept", "h3": "kept" }' in " ".join(done.stdout.split())
    stopped = rig.on("h1", str(real_labctl(rig)), "host", "keep")
    assert "nothing to keep" in stopped.stdout, "its timer was told to keep it"


@pytest.mark.hosts(5)
def test_a_batch_with_a_lost_host_is_not_changed_where_it_can_be_reached(
    rig: Rig, tmp_path: Path
) -> None:
    assert rig.run("/run/rig/die", "h2").returncode == 0
    done = roll_out(rig, tmp_path, kept=True)
    assert done.returncode != 0
    assert "its batch was stopped: h2 did not pass" in done.stdout
    assert [rig.on(host, "cat", KSM).stdout.strip() for host in ("h1", "h3", "h4")] == [
        "1",
        "0",
        "0",
    ]
    assert rig.calls("h4") == []
