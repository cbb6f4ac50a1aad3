"""The host's scheduler, recorded by the real recorder: what is known beforehand must be found."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from labctl.collect.collector import Edge, ThreadRef
from labctl.collect.threads.thread_snapshots import ThreadSnapshots
from labctl.collect.traces import host_trace, perf_record
from labctl.collect.traces.perf_record import recording
from labctl.collect.traces.recorded_events import kvm_events, sched_events
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.model import Trace
from labctl.trace.perf.perfdata import read_trace
from labctl.trace.sched import schedule
from labctl.trace.timeline.recordings import Traces
from tests.guest.conftest import DISTURBED
from tests.guest.perf_script import shown
from tests.guest.test_exits_kvm import Firmware, firmware

__all__ = ["firmware"]  # a fixture

pytestmark = DISTURBED

SPIN = "while True: pass"
PERIOD_S, BUSY_S = 0.1, 0.02
HOG = f"""
import os, time
open("/proc/self/comm", "w").write("hog")
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(90))
due = time.monotonic()
while True:
    due += {PERIOD_S}
    time.sleep(max(0, due - time.monotonic()))
    end = time.monotonic() + {BUSY_S}
    while time.monotonic() < end:
        pass
"""
"""It has 20 ms of every 100 ms, whoever else wants its CPU."""

CPU = max(os.sched_getaffinity(0))
WINDOW_S = 3.0
TO_QEMU = "kvm:kvm_userspace_exit"
KVM_EXIT_IO = 2  # include/uapi/linux/kvm.h


@contextmanager
def hogged(cpu: int = CPU) -> Iterator[int]:
    """The hog's process id, from when it has its schedule: until then it may be kept waiting."""
    with on_cpu(HOG, cpu) as pid:
        give_up = time.monotonic() + 10
        while os.sched_getscheduler(pid) != os.SCHED_FIFO:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        yield pid


def stolen_s(cpu: int = CPU) -> float:
    """What a hypervisor below this host took of a CPU since boot (proc(5)): a thread that was on
    the CPU meanwhile ran to a trace, and not to schedstat."""
    lines = Path("/proc/stat").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"cpu{cpu} "))
    return int(line.split()[8]) / os.sysconf("SC_CLK_TCK")


@contextmanager
def on_cpu(program: str, cpu: int = CPU, *, is_favoured: bool = False) -> Iterator[int]:
    """`is_favoured`: whatever else this host does, only FIFO threads take much of its time."""
    process = subprocess.Popen(
        ["taskset", "--cpu-list", str(cpu), sys.executable, "-c", program],
        start_new_session=True,
    )
    try:
        if is_favoured:
            # Among those of its session, and its session among others (sched(7), "autogroup").
            os.setpriority(os.PRIO_PROCESS, process.pid, -20)
            group = Path(f"/proc/{process.pid}/autogroup")
            if group.exists():
                group.write_text("-20")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def traced(folder: Path, pid: int) -> TrialFolder:
    """A trial's folder of a guest with that process for a vCPU, recorded as trials are."""
    raw = TrialFolder(folder)
    threads = [ThreadRef(pid=pid, tid=pid, role="vcpu", index=0)]
    elsewhere = frozenset(os.sched_getaffinity(0)) - {CPU} or frozenset({CPU})
    with recording(folder / files.HOST, sched_events(frozenset({CPU})), cpus=elsewhere) as recorded:
        snapshot = ThreadSnapshots(lambda: threads)
        before = snapshot(Edge.OPENS)
        time.sleep(WINDOW_S)
        after = snapshot(Edge.CLOSES)
    assert recorded.problem is None
    thread = {"tid": pid, "pid": pid, "role": "vcpu", "index": 0, "name": "CPU 0/KVM"}
    raw.write_raw_json(files.THREADS, [thread])
    raw.write_raw_json(
        "host.json",
        {
            "kind": "guest",
            "clk_tck": os.sysconf("SC_CLK_TCK"),
            "trial_cpus": str(CPU),
            "before": before,
            "after": after,
        },
    )
    return raw


def test_a_fifo_hog_is_found_with_culprit_share_and_times(tmp_path: Path) -> None:
    with hogged() as hog, on_cpu(SPIN, is_favoured=True) as pid:
        time.sleep(0.5)
        raw = traced(tmp_path, pid)
    values = {
        reading.key: reading.value
        for reading in host_trace.parse(Traces(raw))
        if not isinstance(reading, host_trace.Unavailable)
    }
    assert values["lost_events"] == 0
    assert values["preempted_time{by=hog,of=vcpu}"] == pytest.approx(0.2, abs=0.02)
    assert max(values, key=lambda key: values[key] if "preempted_time" in key else 0) == (
        "preempted_time{by=hog,of=vcpu}"
    )
    trace = Traces(raw).host
    assert isinstance(trace, Trace)
    found = schedule(trace, [pid, hog])
    delays = found.threads[pid].delays
    long = delays.length_ns >= 15e6
    gaps = [b - a for a, b in zip(delays.start_ns[long], delays.start_ns[long][1:], strict=False)]
    # perf may record for longer than it was asked to; at either end a period may be cut.
    assert abs(long.sum() - (found.end_ns - found.start_ns) / 1e9 / PERIOD_S) <= 2
    assert statistics.median(gaps) == pytest.approx(100e6, rel=0.02)
    assert statistics.median(delays.length_ns[long]) == pytest.approx(20e6, rel=0.1)
    assert found.threads[hog].on_cpu_ns / (found.end_ns - found.start_ns) == pytest.approx(
        0.2, abs=0.02
    )


def test_the_traces_run_delay_is_schedstats(tmp_path: Path) -> None:
    with hogged(), on_cpu(SPIN) as pid, on_cpu(SPIN):
        time.sleep(0.5)
        stolen = -stolen_s()
        raw = traced(tmp_path, pid)
        stolen += stolen_s()
    snapshots = raw.read_json("host.json")
    rows = [snapshots[when]["threads"][0]["schedstat"].split() for when in ("before", "after")]
    ran, waited = (int(rows[1][column]) - int(rows[0][column]) for column in (0, 1))
    values = {
        reading.metric: getattr(reading, "value", None) for reading in host_trace.parse(Traces(raw))
    }
    # A wait on an edge of the window is in one of them; it is no longer than the hog and a slice.
    assert values["sched_delay"] == pytest.approx(waited / 1e9 / WINDOW_S, abs=0.02)
    share = ran / 1e9 / WINDOW_S
    assert share - 0.02 < values["cpu_time"] < share + stolen / WINDOW_S + 0.02
    # For the hog alone it waits a fifth of the time.
    assert waited / 1e9 / WINDOW_S > BUSY_S / PERIOD_S / 2


def test_what_perf_cannot_do_is_told_and_stops_nothing(tmp_path: Path) -> None:
    with recording(
        tmp_path / "x", ["-e", "sched:no_such_event"], cpus=frozenset({CPU})
    ) as recorded:
        pass
    assert recorded.problem is not None
    assert "perf can't record" in recorded.problem
    assert "no_such_event" in recorded.problem


def test_a_recorder_that_ends_early_is_told_of(tmp_path: Path) -> None:
    events = sched_events(frozenset({CPU}))
    with recording(tmp_path / "x", events, cpus=frozenset({CPU})) as recorded:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # processes come and go
                if str(tmp_path / "x").encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
    assert recorded.problem is not None
    assert "ended before the trial did" in recorded.problem


def test_a_file_that_grows_too_large_ends_the_recording_with_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perf_record, "LIMIT_MIB", 1)
    cpus = frozenset(os.sched_getaffinity(0))
    with recording(tmp_path / "x", sched_events(cpus), cpus=cpus) as recorded:
        pipe = ["perf", "bench", "sched", "pipe", "-l", "100000"]
        subprocess.run(pipe, stdout=subprocess.DEVNULL, check=True)
    assert recorded.problem is not None
    assert "size limit reached" in recorded.problem


@pytest.mark.kvm
def test_kvms_events_are_those_of_the_trials_own_vcpus(firmware: Firmware, tmp_path: Path) -> None:
    busy = firmware.vcpu_tids[0]
    events = [*sched_events(frozenset({CPU})), *kvm_events([busy])]
    with recording(tmp_path / "x", events, cpus=frozenset({CPU})) as recorded:
        time.sleep(0.3)
    assert recorded.problem is None
    own = read_trace(tmp_path / "x", {TO_QEMU: ("reason",)}).events[TO_QEMU]
    assert set(own.tid.tolist()) == {busy}
    to_port = np.count_nonzero(own.fields["reason"] == KVM_EXIT_IO)
    by_perf = shown(tmp_path / "x", "--fields", "event,trace")
    assert to_port == sum("KVM_EXIT_IO (" in line for line in by_perf if TO_QEMU in line) > 0
    with recording(tmp_path / "y", kvm_events([1]), cpus=frozenset({CPU})) as recorded:
        time.sleep(0.1)
    assert recorded.problem is None
    assert not len(read_trace(tmp_path / "y", {TO_QEMU: ()}).events[TO_QEMU])


def test_recording_leaves_no_mount_behind(tmp_path: Path) -> None:
    before = Path("/proc/self/mounts").read_text()
    with recording(
        tmp_path / "x", sched_events(frozenset({CPU})), cpus=frozenset({CPU})
    ) as recorded:
        pass
    assert recorded.problem is None
    assert Path("/proc/self/mounts").read_text() == before
