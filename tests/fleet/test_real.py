"""The real labctl on two hosts, one after the other: they share this machine's CPUs and lock."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from labctl.store.archive import RunArchive
from labctl.store.run_folder import RunFolder
from tests.fleet.conftest import LABCTL, STUDY, Rig


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
