"""Count VM exits by reason around a trial's measured window.

By BPF where it works: the window that is counted is opened and closed by one signal each, next to
the trial's own snapshots; attaching comes before, and is waited for, and reading out comes after.
Elsewhere by perf, which records every exit.
"""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labctl.base.deadline import Deadline
from labctl.base.process import run
from labctl.base.tuning import Kind
from labctl.base.versions import upstream_release
from labctl.collect.collector import Here, Target
from labctl.collect.exits import bpf_exits, kvm_stats, perf_exits
from labctl.collect.traces import perf_record
from labctl.collect.traces.recorded_events import kvm_events
from labctl.trace import files
from labctl.trace.problems import EXITS, note_problem
from labctl.trace.tracepoints import EXIT

BPFTRACE, PERF, NONE = "bpftrace", "perf", "none"
"""Sources of the count, as EXITS names them. None: natively."""

_REPORT_S = 300.0


def why_unavailable(at: Here) -> str | None:
    """Return why neither BPF nor, where that is refused, perf can count VM exits here, a sentence,
    or None; KVM in software tells a trial."""
    if (problem := kvm_stats.why_no_exits(at)) or (no_bpf := why_no_bpf()) is None:
        return problem
    no_perf = perf_record.why_unavailable(EXIT)
    return f"{no_bpf} {no_perf}" if no_perf else None


@functools.cache
def why_no_bpf() -> str | None:
    """Return why BPF can't be used, probed once per process: the answer is the host's."""
    return bpf_exits.why_unavailable()


@contextmanager
def exit_counting(target: Target) -> Iterator[None]:
    """Store the block's VM exits by reason, or why they are unknown, in the trial's folder.

    Raises BrokenError when a counter that had begun ends before it is asked to.
    """
    if target.kind is Kind.NATIVE:
        target.folder.write_raw_json(files.EXITS, {"tool": NONE})
        yield
    elif target.accelerator != "kvm":
        note_problem(target.folder, EXITS, kvm_stats.EMULATED)
        yield
    else:
        problem = why_no_bpf()
        with _by_bpf(target) if problem is None else _by_perf(target, problem):
            yield


@contextmanager
def _by_bpf(target: Target) -> Iterator[None]:
    qemu = target.threads()[0].pid
    keys = bpf_exits.keys_max(len(target.vcpu_tids))
    output = target.folder.path / bpf_exits.RAW
    with bpf_exits.bpf_counting(qemu, output, cpus=target.housekeeping(), keys_max=keys) as window:
        total = _Total(target)
        window.mark()
        yield
        window.mark()
        total.read()
    told = {"tool": BPFTRACE, "vcpus": _vcpus(target), "keys_max": keys}
    target.folder.write_raw_json(files.EXITS, {**told, **total.to_json()})


@contextmanager
def _by_perf(target: Target, no_bpf: str) -> Iterator[None]:
    """Record every exit, which costs the guest more; perf's own table of all that it recorded is
    made after the window."""
    data = target.folder.path / perf_exits.RAW
    events = kvm_events(target.vcpu_tids)
    with perf_record.recording(
        data, events, cpus=target.housekeeping(), limit_mib=target.room_mib
    ) as recorded:
        total = _Total(target)
        opened_ns = time.monotonic_ns()
        yield
        closed_ns = time.monotonic_ns()
        total.read()
    if recorded.problem is not None:
        note_problem(target.folder, EXITS, f"{no_bpf} {recorded.problem}")
        return
    table = run(
        ("perf", "kvm", "-i", data, "stat", "report"),
        deadline=Deadline.after(_REPORT_S, "perf kvm stat report"),
        env={"LC_ALL": "C"},
    )
    # Some versions print it where others print their complaints.
    target.folder.write_raw(
        perf_exits.REPORT, table.stdout if table.stdout.strip() else table.stderr
    )
    window = {"opened_ns": opened_ns, "closed_ns": closed_ns}
    told = {"tool": PERF, "no_bpf": no_bpf, "vcpus": _vcpus(target), "window": window}
    target.folder.write_raw_json(files.EXITS, {**told, **total.to_json()})


def _vcpus(target: Target) -> dict[str, int]:
    return {str(tid): index for index, tid in enumerate(target.vcpu_tids)}


class _Total:
    """Read KVM's own count of exits by vCPU when this is made, and once more."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._began_ns = time.monotonic_ns()
        self._before = kvm_stats.exits_by_vcpu(target.counters())
        self._after: Mapping[str, int] | None = None
        self._ended_ns = self._began_ns

    def read(self) -> None:
        self._after = kvm_stats.exits_by_vcpu(self._target.counters())
        self._ended_ns = time.monotonic_ns()

    def to_json(self) -> dict[str, Any]:
        """Return the total, the longest that its two readings may lie apart, and the kernel: which
        exits are in the total is a matter of its version."""
        try:
            signature = Path("/proc/version_signature").read_text()
        except OSError:
            signature = ""
        kernel = upstream_release(platform.release(), platform.version(), signature)
        seconds = (self._ended_ns - self._began_ns) / 1e9
        total = {"before": self._before, "after": self._after, "seconds": seconds}
        return {"kernel": kernel, "total": total}
