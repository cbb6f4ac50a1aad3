"""The host's latency QoS, which holds as long as somebody holds it; and what trials say of it, and
of memory that a restored guest touches first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from labctl.base.latency_qos import DEVICE, NO_LIMIT_US, limit_us
from labctl.store.samples import Sample, Unavailable
from labctl.store.trial import TrialFolder
from tests.guest.conftest import QUIET, Sandbox, changed_study

HELD = """\
extends: baseline
description: The host's idle CPUs wake up within 20 microseconds, for a test.
host:
  cpu-dma-latency: 20
"""
HOLDER = """\
import sys
from labctl.base.latency_qos import limited
with limited(30):
    print("holding", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def nobody_else() -> None:
    try:
        found = limit_us()
    except OSError as error:
        pytest.skip(f"/{DEVICE}: {error.strerror}")
    if found != NO_LIMIT_US:
        pytest.skip(f"somebody on this host holds /{DEVICE} at {found} µs")


def test_what_a_killed_process_held_is_gone_with_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        assert limit_us() == 30
        holder.kill()
        holder.wait(timeout=10)
        assert limit_us() == NO_LIMIT_US


def test_a_limit_is_held_in_its_own_trials_only(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "domains").mkdir()
    (tmp_path / "domains" / "held.yaml").write_text(HELD)
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    study = changed_study(tmp_path, {"[native, baseline, pinned+fifo]": "[native, baseline, held]"})
    done = sandbox.labctl("sweep", study, "--seed=1", *QUIET, "--json")
    assert done.returncode == 0, done.stderr
    assert limit_us() == NO_LIMIT_US
    [run] = sandbox.runs()
    found = {
        json.loads((path / "trial.json").read_text())["cell"]["tuning"]: TrialFolder(path)
        for path in (run / "trials").iterdir()
    }
    assert found["held"].read_json("host-knobs.json")["held"] == [
        {"name": f"/{DEVICE}", "before": "no limit", "now": "20"}
    ]
    readings = {name: _readings(folder) for name, folder in found.items()}
    assert readings["held"]["cpu_latency_limit"] == 20e-6
    for other in ("native", "baseline"):
        assert "nobody limited" in readings[other]["cpu_latency_limit"]
    _check_faults(found["baseline"], readings["baseline"])
    assert found["native"].read_json("warmup.json")["windows"][0]["faults"] == {}


def _check_faults(folder: TrialFolder, readings: dict[str, Any]) -> None:
    """A guest that was just restored touches memory first, and less of it as it gets warm."""
    windows = folder.read_json("warmup.json")["windows"]
    faults = [window["faults"]["minor"] for window in windows]
    assert faults[0] > faults[-1], faults
    assert readings["page_faults{kind=minor,of=vcpu}"] >= 0


def _readings(folder: TrialFolder) -> dict[str, Any]:
    """By key the value, or the reason why there is none."""
    found: dict[str, Any] = {}
    for reading in folder.read_readings():
        match reading:
            case Sample(key=key, value=value):
                found[key] = value
            case Unavailable(metric=metric, reason=reason):
                found[metric] = reason
    return found
