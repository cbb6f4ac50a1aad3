"""Count VM exits by reason around a trial's measured window, from level `exits` on.

By BPF where it works: the window that is counted is opened and closed by one signal each, next to
the trial's own snapshots; attaching comes before, and is waited for, and reading out comes after.
Elsewhere by perf, which records every exit.
"""

from __future__ import annotations

import functools
import os
import platform
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base.cpus import CpuSet
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError
from labctl.base.process import run, running
from labctl.base.tuning import Kind
from labctl.base.versions import upstream_release
from labctl.collect import bpf_exits, exits, kvm_stats, perf_exits
from labctl.run.collectors.perf_record import recording
from labctl.run.collectors.trace_room import limit_mib
from labctl.run.collectors.tracing import kvm_events
from labctl.run.guests.bench import Bench
from labctl.run.guests.lab import Lab
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.problems import EXITS, note_problem

_ATTACH_S = 60.0
"""bpftrace compiles its program each time: about half a second on an idle CPU."""
_END_S = 30.0
_REMIND_S = 0.5
_REPORT_S = 300.0
_POLL_S = 0.01


@contextmanager
def exit_counting(lab: Lab, bench: Bench, folder: TrialFolder) -> Iterator[None]:
    """Store the block's VM exits by reason, or why they are unknown, in the trial's folder.

    Raises BrokenError when a counter that had begun ends before it is asked to.
    """
    if bench.kind is Kind.NATIVE:
        folder.write_raw_json(files.EXITS, {"tool": exits.NONE})
        yield
        return
    if lab.accelerator.name != "kvm":
        note_problem(folder, EXITS, exits.EMULATED)
        yield
        return
    problem = why_no_bpf()
    cpus = lab.pin_plan_for(bench.tuning).housekeeping
    with (
        _by_bpf(bench, folder, cpus) if problem is None else _by_perf(bench, folder, cpus, problem)
    ):
        yield


@contextmanager
def _by_bpf(bench: Bench, folder: TrialFolder, cpus: CpuSet) -> Iterator[None]:
    qemu = bench.threads()[0].pid
    keys = bpf_exits.keys_max(len(bench.vcpu_tids))
    with bpf_counting(qemu, folder.path / bpf_exits.RAW, cpus=cpus, keys_max=keys) as window:
        total = _Total(bench)
        window.mark()
        yield
        window.mark()
        total.read()
    told = {"tool": exits.BPFTRACE, "vcpus": _vcpus(bench), "keys_max": keys}
    folder.write_raw_json(files.EXITS, {**told, **total.to_json()})


@contextmanager
def _by_perf(bench: Bench, folder: TrialFolder, cpus: CpuSet, no_bpf: str) -> Iterator[None]:
    """Every exit recorded, which costs the guest more; perf's own table of all that it recorded is
    made after the window."""
    data = folder.path / perf_exits.RAW
    events = kvm_events(bench.vcpu_tids)
    with recording(data, events, cpus=cpus, limit_mib=limit_mib(folder.path)) as recorded:
        total = _Total(bench)
        opened_ns = time.monotonic_ns()
        yield
        closed_ns = time.monotonic_ns()
        total.read()
    if recorded.problem is not None:
        note_problem(folder, EXITS, f"{no_bpf} {recorded.problem}")
        return
    table = run(
        ("perf", "kvm", "-i", data, "stat", "report"),
        deadline=Deadline.after(_REPORT_S, "perf kvm stat report"),
        env={"LC_ALL": "C"},
    )
    # Some versions print it where others print their complaints.
    folder.write_raw(perf_exits.REPORT, table.stdout if table.stdout.strip() else table.stderr)
    window = {"opened_ns": opened_ns, "closed_ns": closed_ns}
    told = {"tool": exits.PERF, "no_bpf": no_bpf, "vcpus": _vcpus(bench), "window": window}
    folder.write_raw_json(files.EXITS, {**told, **total.to_json()})


def _vcpus(bench: Bench) -> dict[str, int]:
    return {str(tid): index for index, tid in enumerate(bench.vcpu_tids)}


class _Total:
    """KVM's own count of exits by vCPU, read when this is made and once more."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._began_ns = time.monotonic_ns()
        self._before = kvm_stats.exits_by_vcpu(bench.counters())
        self._after: Mapping[str, int] | None = None
        self._ended_ns = self._began_ns

    def read(self) -> None:
        self._after = kvm_stats.exits_by_vcpu(self._bench.counters())
        self._ended_ns = time.monotonic_ns()

    @property
    def seconds(self) -> float:
        """Return the longest that the two readings may lie apart."""
        return (self._ended_ns - self._began_ns) / 1e9

    def to_json(self) -> dict[str, Any]:
        """With the kernel: which exits are in the total is a matter of its version."""
        try:
            signature = Path("/proc/version_signature").read_text()
        except OSError:
            signature = ""
        kernel = upstream_release(platform.release(), platform.version(), signature)
        total = {"before": self._before, "after": self._after, "seconds": self.seconds}
        return {"kernel": kernel, "total": total}


@functools.cache
def why_no_bpf() -> str | None:
    """Return why BPF can't be used, probed once per process: the answer is the host's."""
    return bpf_exits.why_unavailable()


@dataclass(frozen=True, slots=True)
class Window:
    """Hold what a bpftrace that is attached counts: from the first mark to the second."""

    process: subprocess.Popen[bytes]

    def mark(self) -> None:
        """Raise BrokenError when bpftrace has ended."""
        if self.process.poll() is not None:
            raise BrokenError(f"bpftrace ended by itself with status {self.process.returncode}")
        self.process.send_signal(bpf_exits.MARK)


@contextmanager
def bpf_counting(
    qemu: int, output: Path, *, cpus: CpuSet, keys_max: int = bpf_exits.KEYS_MAX
) -> Iterator[Window]:
    """Attach bpftrace, running on `cpus`, to the process `qemu`; its counts are in `output` when
    the block is over. `keys_max`: of each of its maps. Raises BrokenError, or DeadlineError, where
    it doesn't start or end.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    errors = output.with_suffix(".stderr")
    with (
        open(output, "wb") as stdout,
        open(errors, "wb") as stderr,
        running(
            bpf_exits.command(qemu, os.getpid(), cpus),
            stdout=stdout,
            stderr=stderr,
            env=bpf_exits.environment(keys_max),
        ) as process,
    ):
        deadline = Deadline.after(_ATTACH_S, "attaching bpftrace to KVM's tracepoints")
        _wait_for(bpf_exits.STARTED, process, output, errors, deadline)
        process.send_signal(bpf_exits.SHOW)
        _wait_for(bpf_exits.ATTACHED, process, output, errors, deadline)
        yield Window(process)
        _end(process)
        if process.returncode != 0:
            raise _failed(process, errors)
    errors.unlink()


def _wait_for(
    word: str, process: subprocess.Popen[bytes], output: Path, errors: Path, deadline: Deadline
) -> None:
    while word not in output.read_text(errors="replace"):
        if process.poll() is not None:
            raise _failed(process, errors)
        deadline.remaining()
        time.sleep(_POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """bpftrace looks whether it is to end only when a signal has interrupted its wait for events.
    A SIGINT that comes between two waits, as while it is kept from its CPU, stays unseen until
    another signal comes (seen with 0.17); a second SIGINT might kill it before it has printed."""
    process.send_signal(signal.SIGINT)
    deadline = Deadline.after(_END_S, "bpftrace's end")
    while True:
        try:
            process.wait(min(_REMIND_S, deadline.remaining()))
            return
        except subprocess.TimeoutExpired:
            process.send_signal(bpf_exits.SHOW)


def _failed(process: subprocess.Popen[bytes], errors: Path) -> BrokenError:
    said = bpf_exits.what_it_said(errors.read_text(errors="replace"))
    return BrokenError(f"bpftrace ended with status {process.returncode}: {said}")
