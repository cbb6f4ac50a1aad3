"""A thread of the host in the way of a real guest: found in the host's trace, and on the time line
of both schedulers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labctl.base.tuning import Level
from labctl.collect.snapshots import read_snapshots
from labctl.store.trial import TrialFolder, TrialStatus
from labctl.trace import files
from labctl.trace.model import STOPPED, SWITCH, Trace
from labctl.trace.sched import schedule
from labctl.trace.spans import Kind, spans
from labctl.trace.threads import stored_workload
from labctl.trace.timeline.lanes import State, Timeline, in_states
from labctl.trace.timeline.nested import read_timeline
from labctl.trace.timeline.recordings import Traces
from labctl.trace.timeline.wakeups import woken
from tests.guest.conftest import (
    DISTURBED,
    QUIET,
    Sandbox,
    changed_study,
    seed_for,
    wait_for,
)
from tests.guest.perf_script import check_labctl_reads_what_perf_shows
from tests.guest.test_host_trace import hogged

pytestmark = DISTURBED

ARM = "pinned+fifo"
CYCLICTEST = """\
  cyclictest:
    program: cyclictest
    parameters: {}
    duration_s: 3
    primary: open_latency_mean
    margin_percent: 5

conditions:"""
BOTH = {"\nconditions:": CYCLICTEST, "duration_s: 1\n": "duration_s: 3\n"}
"""A load that never sleeps, for who takes its CPU, and one that does, for who wakes it late; both
for so long that waits over the window's edges count for little."""


def cell(trial: TrialFolder) -> Mapping[str, str]:
    return trial.read_record().cell


def trials_of(run: Path, workload: str) -> dict[str, TrialFolder]:
    """Those that are done, by tuning."""
    trials = [TrialFolder(path.parent) for path in run.glob("trials/*/trial.json")]
    done = [trial for trial in trials if trial.read_record().status is TrialStatus.DONE]
    return {cell(t)["tuning"]: t for t in done if cell(t)["workload"] == workload}


def longest_s(timeline: Timeline) -> float:
    return max(late.latency_ns for late in timeline.late) / 1e9


def own_longest_s(trial: TrialFolder) -> float:
    """cyclictest's own."""
    threads = trial.read_json("files/cyclictest.json")["thread"].values()
    return max(float(thread["max"]) for thread in threads) / 1e6


def host_trace(trial: TrialFolder) -> Trace:
    trace = Traces(trial).host
    assert isinstance(trace, Trace)
    return trace


def longest_to_sleep_s(trial: TrialFolder) -> float:
    """From when a task was meant to wake to when it slept again: so late it may have been at most,
    wherever between its switch-in and that it looked at the clock."""
    guest = Traces(trial).guest
    assert isinstance(guest, Trace)
    workload = stored_workload(trial, "cyclictest")
    assert workload.window_ns is not None
    found = woken(guest, workload.tids(guest)).within(*workload.window_ns).wakeups
    switches = guest.events[SWITCH]
    stops = (switches.fields["prev_state"] & STOPPED) != 0
    longest_ns = 0
    for tid in np.unique(found.tid):
        own = found.tid == tid
        slept_ns = switches.time_ns[stops & (switches.fields["prev_pid"] == tid)]
        again = np.searchsorted(slept_ns, found.ran_ns[own], "right")
        lengths = np.append(slept_ns, guest.end_ns)[again] - found.meant_ns[own]
        longest_ns = max(longest_ns, int(lengths.max()))
    return longest_ns / 1e9


def test_who_takes_a_vcpus_cpu_is_found_by_the_hosts_trace_and_behind_the_guests_late_wake_ups(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    study = changed_study(tmp_path, BOTH)
    seed = seed_for(ARM, ["native", "baseline", ARM])
    process = sandbox.start(
        "sweep", study, f"--seed={seed}", *QUIET, f"--collect={Level.TRACE}", "--quiet"
    )
    try:
        (path,) = wait_for(lambda: list(sandbox.results.glob("*/run.json")), 300, "a run", process)
        (cpu,) = json.loads(path.read_text())["pin_plan"]["data"]["vcpus"].values()
        with hogged(cpu) as hog:  # 20 ms of every 100 ms
            out, _ = process.communicate(timeout=600)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, out
    (run,) = sandbox.runs()
    check_the_hosts_trace(trials_of(run, "sysbench-cpu"), hog)
    check_both_schedulers(trials_of(run, "cyclictest"), hog)
    assert sandbox.leftovers() == []


def check_the_hosts_trace(trials: dict[str, TrialFolder], hog: int) -> None:
    found = {tuning: recorded(trial) for tuning, trial in trials.items()}
    assert found["native"]["cpu_time", "workload"] > 0
    for arm in ("baseline", ARM):
        stolen = found[arm]["host_steal",] * (os.cpu_count() or 1)
        counted_cpu = found[arm]["host_cpu", "vcpu"]
        assert counted_cpu - 0.05 < found[arm]["cpu_time", "vcpu"] < counted_cpu + stolen + 0.05
        assert found[arm]["sched_delay", "vcpu"] == pytest.approx(
            found[arm]["run_delay",], abs=0.05
        )
    pinned = found[ARM]
    preemptors = {key[1]: value for key, value in pinned.items() if key[0] == "preempted_time"}
    # It takes a fifth of the time; for as much of that as the guest has work, the vCPU waits.
    assert max(preemptors, key=preemptors.__getitem__) == "hog"
    snapshots = read_snapshots(trials[ARM])
    window = (snapshots.before["monotonic_ns"], snapshots.after["monotonic_ns"])
    ran = schedule(host_trace(trials[ARM]), [hog], window=window).threads[hog]
    assert 0.1 < preemptors["hog"] <= ran.on_cpu_ns / 1e9 / snapshots.seconds


def recorded(trial: TrialFolder) -> dict[tuple[Any, ...], float]:
    """The trial's values by metric and labels; what was recorded is whole, and of whom it is."""
    check_labctl_reads_what_perf_shows(trial.path / files.HOST)
    # Its own time is labctl's, and not somebody else's.
    counted = trial.read_json("host.json")["after"]["threads"]
    assert ("perf", "labctl") in {(row["comm"], row["role"]) for row in counted}
    assert {row["role"] for row in trial.read_json(files.THREADS)} >= (
        {"workload"} if cell(trial)["tuning"] == "native" else {"vcpu", "emulator"}
    )
    samples = trial.read_json("samples.json")["samples"]
    return {(one["metric"], *one["labels"].values()): one["value"] for one in samples}


def check_both_schedulers(trials: dict[str, TrialFolder], hog: int) -> None:
    timeline = read_timeline(trials[ARM])
    assert {(lane.side, lane.title) for lane in timeline.lanes} >= {
        ("host", "vCPU 0"),
        ("guest", "CPU 0"),
    }
    assert timeline.clock_error_ns is not None
    # It takes a fifth of the vCPU's CPU, which waits for no longer than it does so.
    (vcpu,) = (lane for lane in timeline.lanes if lane.title == "vCPU 0")
    waits = in_states(vcpu, State.PREEMPTED)
    is_hog = waits & (np.array(vcpu.details)[vcpu.detail] == "hog")
    lengths = (vcpu.end_ns - vcpu.start_ns)[is_hog]
    window = (timeline.start_ns, timeline.end_ns)
    host = host_trace(trials[ARM])
    total_ns = schedule(host, [hog], window=window).threads[hog].on_cpu_ns
    ran = [part.where(part.kind == Kind.RAN) for part in spans(host, [hog])]
    longest_ns = np.concatenate([part.end_ns - part.start_ns for part in ran]).max()
    assert 0.1 * (timeline.end_ns - timeline.start_ns) < lengths.sum() <= total_ns
    assert 0.019e9 < lengths.max() <= longest_ns
    hit = [late for late in timeline.late if late.culprit == "hog (host)"]
    assert len(hit) >= 10
    assert max(late.host_ns for late in hit) > 0.015e9
    double = [one for one in timeline.suspects if one.kind == "double scheduling"]
    assert any(one.text.endswith("behind 'hog'") for one in double)
    # All of them are listed.
    assert len(timeline.late) == timeline.figures["late_wakeups"]
    host_ns = sum(late.host_ns for late in timeline.late)
    all_ns = sum(late.latency_ns for late in timeline.late)
    assert timeline.figures["late_host_share"] == pytest.approx(host_ns / all_ns)
    # Others on this host can only make it more.
    assert timeline.figures["late_host_share"] > 0.5
    for late in timeline.late:
        parts = (late.host_ns, late.exit_ns, late.queue_ns, late.other_ns)
        assert min(parts) >= 0
        assert sum(parts) == late.latency_ns
    for tuning in (ARM, "baseline"):
        trial = trials[tuning]
        # It looks at the clock after it was switched in, and before it sleeps again.
        known_s = longest_s(read_timeline(trial)), longest_to_sleep_s(trial)
        assert known_s[0] - 0.0001 < own_longest_s(trial) <= known_s[1]
    native = read_timeline(trials["native"])
    assert native.clock_error_ns is None
    # Also of a kernel that keeps some back: the timers that it slept on are its own events.
    for tuning in ("native", ARM, "baseline"):
        coverage = read_timeline(trials[tuning]).coverage
        assert coverage is not None
        assert coverage.own is not None
        assert coverage.own.wakeups * 0.9 < coverage.seen <= coverage.own.wakeups
        assert coverage.unseen == 0
        assert not coverage.lacks_worst
    assert native.figures.keys() >= {"late_threshold_s"}
    assert longest_s(native) - 0.0001 < own_longest_s(trials["native"])
