"""Both schedulers of a real guest on one time line, with a thread of the host in its way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from labctl.base.levels import Level
from labctl.store.trial import TrialFolder
from labctl.trace.lane_spans import in_states
from labctl.trace.lanes import State, Timeline
from labctl.trace.nested import read_timeline
from tests.guest.conftest import (
    DISTURBED,
    LATENCY,
    QUIET,
    Sandbox,
    changed_study,
    seed_for,
    wait_for,
)
from tests.guest.test_host_trace import hogged

pytestmark = DISTURBED

ARM = "pinned+fifo"
LONGER = {"duration_s: 1": "duration_s: 3", "sysbench-cpu:": "cyclictest:"}


def only(run: Path, tuning: str) -> TrialFolder:
    paths = run.glob("trials/*/trial.json")
    (found,) = (p for p in paths if json.loads(p.read_text())["cell"]["tuning"] == tuning)
    return TrialFolder(found.parent)


def longest_s(timeline: Timeline) -> float:
    return max(late.latency_ns for late in timeline.late) / 1e9


def own_longest_s(trial: TrialFolder) -> float:
    """cyclictest's own."""
    threads = trial.read_json("files/cyclictest.json")["thread"].values()
    return max(float(thread["max"]) for thread in threads) / 1e6


def test_late_wake_ups_of_a_guest_are_laid_to_who_took_its_vcpus_cpu(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    study = changed_study(tmp_path, {**LATENCY, **LONGER})
    seed = seed_for(ARM, ["native", "baseline", ARM])
    process = sandbox.start(
        "sweep", study, f"--seed={seed}", *QUIET, f"--collect={Level.TRACE}", "--quiet"
    )
    try:
        (path,) = wait_for(lambda: list(sandbox.results.glob("*/run.json")), 300, "a run", process)
        (cpu,) = json.loads(path.read_text())["pin_plan"]["data"]["vcpus"].values()
        with hogged(cpu):  # 20 ms of every 100 ms
            out, _ = process.communicate(timeout=600)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, out
    (run,) = sandbox.runs()
    trial = only(run, ARM)
    timeline = read_timeline(trial)
    assert {(lane.side, lane.title) for lane in timeline.lanes} >= {
        ("host", "vCPU 0"),
        ("guest", "CPU 0"),
    }
    assert timeline.clock_error_ns is not None
    # It takes a fifth of the vCPU's CPU. Others may be on this host, but none for so long at once.
    (vcpu,) = (lane for lane in timeline.lanes if lane.title == "vCPU 0")
    waits = in_states(vcpu, State.PREEMPTED)
    is_hog = waits & (np.array(vcpu.details)[vcpu.detail] == "hog")
    lengths = (vcpu.end_ns - vcpu.start_ns)[is_hog]
    assert 0.1 < lengths.sum() / (timeline.end_ns - timeline.start_ns) < 0.23
    assert 0.019e9 < lengths.max() < 0.025e9
    hit = [late for late in timeline.late if late.culprit == "hog (host)"]
    assert len(hit) >= 10
    assert max(late.host_ns for late in hit) > 0.015e9
    double = [one for one in timeline.suspects if one.kind == "double scheduling"]
    assert any(one.text.endswith("behind 'hog'") for one in double)
    assert timeline.figures["late_host_share"] > 0.5
    for late in timeline.late:
        parts = (late.host_ns, late.exit_ns, late.queue_ns, late.other_ns)
        assert min(parts) >= 0
        assert sum(parts) == late.latency_ns
    for tuning in (ARM, "baseline"):
        trial = only(run, tuning)
        # It looks at the clock after it was switched in, and may be kept from it.
        late_s = own_longest_s(trial) - longest_s(read_timeline(trial))
        assert -0.0001 < late_s < 0.06
    native = read_timeline(only(run, "native"))
    assert native.clock_error_ns is None
    assert native.figures.keys() >= {"late_queue_share"}
    assert sandbox.leftovers() == []
