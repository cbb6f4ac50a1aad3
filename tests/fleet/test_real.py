"""The real labctl on two hosts, one after the other: they share this machine's CPUs and lock."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from labctl.fleet.ansible import environment
from labctl.store.archive import RunArchive
from labctl.store.run_folder import RunFolder
from tests.fleet.conftest import LABCTL, PROGRAMS, STUDY, Rig
from tests.fleet.test_tune import KSM, real_labctl


@pytest.mark.hosts(3, measuring=True)
def test_two_hosts_measure_one_after_the_other(rig: Rig, tmp_path: Path) -> None:
    words: list[str | Path] = [LABCTL, "fleet", "sweep", "--json", "--results", tmp_path]
    words += ["--inventory", "/run/rig/hosts.yml"]
    for name, value in {
        "labctl_sweep_command": LABCTL,
        "labctl_sweep_look_every_s": "1",
        "labctl_sweep_busy_wait_s": "300",
    }.items():
        words += ["--set", f"{name}={value}"]
    words += [
        STUDY,
        "--seed",
        "1",
        "--tuning",
        "baseline",
        "--condition",
        "quiet",
        "--accel",
        "tcg",
    ]
    done = rig.run(*words, seconds=600)
    assert done.stdout.startswith("{"), done.stderr
    said = json.loads(done.stdout)
    states = {host: one["status"] for host, one in said["hosts"].items()}
    assert states == {"h1": "done", "h2": "done", "h3": "unreachable"}, said
    windows = []
    for host in ("h1", "h2"):
        archive = Path(said["path"], "hosts", host, "run.tar.xz")
        run = RunFolder(archive, RunArchive(archive)).load()
        assert run.problems == ()
        assert [trial.record.status for trial in run.trials] == ["done", "done"]
        assert run.plan.seed == 1
        assert run.plan.study_digest == said["study_digest"]
        windows.append((run.run.started_at, run.run.ended_at))
        shown = subprocess.run([LABCTL, "report", str(archive)], capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
    first, second = sorted(windows)
    assert first[1] is not None
    assert second[0] is not None
    assert first[1] <= second[0], "one after the other"


@pytest.mark.hosts(4, measuring=True)
def test_a_roll_out_measures_gates_and_tunes(rig: Rig, tmp_path: Path) -> None:
    """h4 has a wrong key: a third of its batch may be lost."""
    policy = tmp_path / "policy.yaml"
    rule = "{tuning: baseline, metric: events_per_s, above: 1}"
    policy.write_text(f"undecided: pass\nrules: [{rule}]\n")
    given = {
        "labctl_serial": [1, 3],
        "labctl_rollout_max_fail": 34,
        "labctl_host_tune_names": ["ksm-on"],
        "labctl_host_tune_command": str(real_labctl(rig)),
        "labctl_sweep_command": str(LABCTL),
        "labctl_sweep_id": "after",
        "labctl_sweep_study": str(STUDY),
        "labctl_sweep_seed": 1,
        "labctl_sweep_options": ["--tuning", "baseline", "--condition", "quiet", "--accel", "tcg"],
        "labctl_sweep_look_every_s": 1,
        "labctl_sweep_busy_wait_s": 300,
        "labctl_sweep_fetch_to": str(tmp_path / "runs"),
        "labctl_sweep_control_command": str(LABCTL),
        "labctl_gate_command": str(LABCTL),
        "labctl_gate_policy": str(policy),
    }
    done = rig.run(
        PROGRAMS / "ansible-playbook", "labctl.lab.rollout", f"--extra-vars={given}",
        "--forks", "1",  # these hosts have one lock together
        seconds=800,
        ANSIBLE_COLLECTIONS_PATH=environment()["ANSIBLE_COLLECTIONS_PATH"],
        ANSIBLE_NOCOLOR="1",
    )  # fmt: skip
    settings = [rig.on(host, "cat", KSM).stdout.strip() for host in rig.hosts]
    assert settings == ["1", "1", "1", "0"], done.stdout
    for host in ("h1", "h2", "h3"):
        archive = tmp_path / "runs" / host / "run.tar.xz"
        run = RunFolder(archive, RunArchive(archive)).load()
        assert [trial.record.status for trial in run.trials] == ["done", "done"]
