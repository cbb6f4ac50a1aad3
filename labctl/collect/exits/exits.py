"""Report VM exits by reason, their time, and those that go on to QEMU.

The sum of the reasons is checked against KVM's own total of the same window (METHOD rule 14).
"""

from __future__ import annotations

import functools
import platform
import time
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from labctl.base.errors import BrokenError
from labctl.base.hostfacts import is_older, upstream_release
from labctl.base.process import Deadline, run
from labctl.base.tuning import Kind, Level
from labctl.collect.collector import Collector, Here, Target
from labctl.collect.exits import bpf_exits, kvm_stats, perf
from labctl.collect.exits.bpf_exits import Counted
from labctl.collect.known import MissingReadingError
from labctl.collect.traces import perf_record
from labctl.collect.traces.recorded_events import kvm_events
from labctl.store.samples import Reading, Sample, Unavailable, sample
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.exit_names import IDLE, VMX, exit_name, qemu_exit_name
from labctl.trace.files import VM_EXITS, note_problem, noted_problem
from labctl.trace.model import EXIT

# Count VM exits by reason around a trial's measured window.
#
# By BPF if it works: a signal each opens and closes the counted window, next to the trial's own
# snapshots. labctl waits for bpftrace to attach before the window, and reads the maps after it.
# Otherwise by perf, which records every exit.


BPFTRACE, PERF, NONE = "bpftrace", "perf", "none"
"""Sources of the count, as EXITS names them. None: natively."""

_REPORT_S = 300.0


def why_unavailable(at: Here) -> str | None:
    """Return a sentence on why neither BPF nor, if BPF is refused, perf can count VM exits here, or
    None; whether KVM is in software shows only in a trial."""
    if (problem := kvm_stats.why_no_exits(at)) or (no_bpf := why_no_bpf()) is None:
        return problem
    no_perf = perf_record.why_unavailable(EXIT)
    return f"{no_bpf} {no_perf}" if no_perf else None


@functools.cache
def why_no_bpf() -> str | None:
    """Return why BPF cannot be used, probed once per process: the answer is the host's."""
    return bpf_exits.why_unavailable()


@contextmanager
def exit_counting(target: Target) -> Iterator[None]:
    """Store the block's VM exits by reason, or why they are unknown, in the trial's folder.

    Raises BrokenError if a running counter ends early.
    """
    if target.kind is Kind.NATIVE:
        target.folder.write_raw_json(files.EXITS, {"tool": NONE})
        yield
    elif target.accelerator != "kvm":
        note_problem(target.folder, VM_EXITS, kvm_stats.EMULATED)
        yield
    else:
        problem = why_no_bpf()
        with _read_bpf(target) if problem is None else _read_perf(target, problem):
            yield


@contextmanager
def _read_bpf(target: Target) -> Iterator[None]:
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
def _read_perf(target: Target, no_bpf: str) -> Iterator[None]:
    """Record every exit, which costs the guest more; perf's own table of the recording is made
    after the window."""
    data = target.folder.path / perf.RAW
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
        note_problem(target.folder, VM_EXITS, f"{no_bpf} {recorded.problem}")
        return
    table = run(
        ("perf", "kvm", "-i", data, "stat", "report"),
        deadline=Deadline.after(_REPORT_S, "perf kvm stat report"),
        env={"LC_ALL": "C"},
    )
    # Some versions print the table to standard error.
    target.folder.write_raw(perf.REPORT, table.stdout if table.stdout.strip() else table.stderr)
    window = {"opened_ns": opened_ns, "closed_ns": closed_ns}
    told = {"tool": PERF, "no_bpf": no_bpf, "vcpus": _vcpus(target), "window": window}
    target.folder.write_raw_json(files.EXITS, {**told, **total.to_json()})


def _vcpus(target: Target) -> dict[str, int]:
    return {str(tid): index for index, tid in enumerate(target.vcpu_tids)}


class _Total:
    """Read KVM's own count of exits by vCPU at construction, and once more."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._began_ns = time.monotonic_ns()
        self._before = kvm_stats.exits_by_vcpu(target.counters())
        self._after: Mapping[str, int] | None = None
        self._ended_ns = self._began_ns

    def read(self) -> None:
        self._after = kvm_stats.exits_by_vcpu(self._target.counters())
        self._ended_ns = time.monotonic_ns()

    def to_json(self) -> dict[str, object]:
        """Return the total, the longest time that its two readings may lie apart, and the kernel,
        whose version determines which exits are in the total."""
        try:
            signature = Path("/proc/version_signature").read_text()
        except OSError:
            signature = ""
        kernel = upstream_release(platform.release(), platform.version(), signature)
        seconds = (self._ended_ns - self._began_ns) / 1e9
        total = {"before": self._before, "after": self._after, "seconds": seconds}
        return {"kernel": kernel, "total": total}


BY_REASON = ("exits{reason}", "exit_time", "userspace_exits")

_AGREEMENT = 0.01

_FAST_PATHS_COUNTED = ("5.15.116", "6.1.33", "6.3.7")
_ALL_COUNT_FAST_PATHS = "6.4"

_K = TypeVar("_K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Hold the exits of a window of `seconds`. By the vCPU's number and the reason: exits, and
    their time in ns; by the reason: returns to QEMU. `vcpus`: the numbers of all vCPUs, also those
    without an exit. `is_vmx`: whether they are Intel's. `source`: the raw file."""

    seconds: float
    vcpus: Sequence[int]
    exits: Mapping[tuple[int, str], int]
    ns: Mapping[tuple[int, str], int]
    userspace: Mapping[str, int]
    is_vmx: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """Hold KVM's own count of exits in a window of `seconds` around the breakdown's."""

    exits: int
    seconds: float


def parse(raw: TrialFolder) -> Iterator[Reading]:
    """Return exits{reason=...}, exit_time, exit_time{reason=...}, exit_time{vcpu=...},
    userspace_exits, userspace_exits{reason=...}, exits_window and exits_agreement, or why not; with
    several vCPUs exits{reason=...,vcpu=...} and exit_time{reason=...,vcpu=...} as well. The sums
    over the reasons, exits and exits{vcpu=...}, are of the same window as the reasons; KVM's own
    total of the trial is not.

    Returns nothing for a trial that did not collect them. Raises BrokenError if a file is
    incomplete.
    """
    problem = noted_problem(raw, VM_EXITS)
    if problem is not None:
        yield from _unavailable(BY_REASON, problem)
        return
    if not raw.has(files.EXITS):
        return
    where = str(raw.path / files.EXITS)
    data = raw.read_json(files.EXITS)
    try:
        tool = str(data["tool"])
        if tool == NONE:
            # No guest, no exits, as for `exits`.
            for metric in ("exit_time", "userspace_exits"):
                yield sample(metric, 0.0, source=files.EXITS)
            return
        kernel = str(data["kernel"])
        total = _total(data["total"])
        counted, source = {PERF: _count_by_perf, BPFTRACE: _count_by_bpf}[tool](raw, data)
        breakdown = _breakdown(counted, data["vcpus"], source)
    except MissingReadingError as error:
        yield from _unavailable(BY_REASON, str(error))
        return
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenError(
            f"{where}: expected what counted the exits, with vCPUs, names and KVM's total, found "
            f"something else ({error!r})"
        ) from error
    yield sample("exits_window", breakdown.seconds, source=breakdown.source)
    yield from _userspace_readings(breakdown)
    yield from _exit_readings(breakdown, total, kernel)


def misses_fast_paths(kernel: str) -> bool:
    """Return whether KVM of this Linux leaves fast-path exits out of its total, after which VMX
    re-enters from its innermost loop (writes of the TSC deadline, the preemption timer; IPIs were
    always counted): since 5.8, until commit 8b703a49c9df of 6.4, which stable 5.15, 6.1 and 6.3
    have from these releases on. Distributions' kernels may have it earlier."""
    for fixed in _FAST_PATHS_COUNTED:
        series = fixed.rpartition(".")[0]
        if kernel.startswith(f"{series}."):
            return is_older(kernel, fixed)
    return is_older(kernel, _ALL_COUNT_FAST_PATHS)


def _count_by_bpf(raw: TrialFolder, data: Mapping[str, Any]) -> tuple[Counted, str]:
    counted = bpf_exits.read_counts(raw.read_text(bpf_exits.RAW), str(raw.path / bpf_exits.RAW))
    keys = int(data.get("keys_max", bpf_exits.KEYS_MAX))
    if counted.fills(keys):
        raise MissingReadingError(
            f"bpftrace's maps were full: they leave out exits beyond {keys} pairs of vCPU and "
            "reason."
        )
    return counted, bpf_exits.RAW


def _count_by_perf(raw: TrialFolder, data: Mapping[str, Any]) -> tuple[Counted, str]:
    if "window" not in data:
        raise MissingReadingError(
            "perf counted from before the window to after it, and an older labctl did not store "
            "where in perf's file the window is."
        )
    opened_ns, closed_ns = (int(data["window"][edge]) for edge in ("opened_ns", "closed_ns"))
    if closed_ns <= opened_ns:
        raise ValueError("the window ends before it begins")
    return perf.read_counts(raw, opened_ns, closed_ns), perf.RAW


def _breakdown(counted: Counted, told: Mapping[str, Any], source: str) -> Breakdown:
    """Break exits down. `told`: each vCPU's thread, and its number."""
    vcpus = {int(tid): int(index) for tid, index in told.items()}
    if strangers := {tid for tid, _, _ in counted.exits} - vcpus.keys():
        which = ", ".join(map(str, sorted(strangers)))
        raise MissingReadingError(f"a vCPU was added during the trial (thread {which}).")
    return Breakdown(
        seconds=counted.seconds,
        vcpus=sorted(vcpus.values()),
        exits=_added(
            ((vcpus[tid], _name(isa, code)), count)
            for (tid, isa, code), count in counted.exits.items()
        ),
        ns=_added(
            ((vcpus[tid], _name(isa, code)), ns) for (tid, isa, code), ns in counted.ns.items()
        ),
        userspace=_added(
            (qemu_exit_name(code, errno), count)
            for (_, code, errno), count in counted.userspace.items()
        ),
        is_vmx=any(isa == VMX for _, isa, _ in counted.exits),
        source=source,
    )


def _name(isa: int, code: int) -> str:
    """Name an exit. VMX sets flags above its 16 bits, for instance for a failed entry (Intel's
    manual, volume 3, "Basic VM-Exit Information")."""
    return exit_name(isa, code & 0xFFFF if isa == VMX else code)


def _total(data: Mapping[str, Any]) -> Total | None:
    """Return the threads, or None if KVM reports none or its vCPUs changed."""
    before, after = data["before"], data["after"]
    if before is None or after is None or before.keys() != after.keys():
        return None
    changes = [int(count) - int(before[vcpu]) for vcpu, count in after.items()]
    if min(changes) < 0:
        return None
    return Total(exits=sum(changes), seconds=float(data["seconds"]))


def _exit_readings(breakdown: Breakdown, total: Total | None, kernel: str) -> Iterator[Reading]:
    counted = sum(breakdown.exits.values())
    if counted == 0:
        yield from _unavailable(BY_REASON[:2], _why_none(total))
        return
    if total is None:
        yield Unavailable(
            metric="exits_agreement",
            reason="This host's KVM gives QEMU no total to check the reasons against.",
        )
    elif problem := _disagreement(counted, total, breakdown):
        if counted < total.exits or not breakdown.is_vmx or not misses_fast_paths(kernel):
            yield from _unavailable((*BY_REASON[:2], "exits_agreement"), problem)
            return
        yield Unavailable(
            metric="exits_agreement",
            reason=f"{problem.rstrip('.')}: KVM of Linux {kernel} leaves exits on fast paths out "
            "of its total.",
        )
    else:
        yield sample("exits_agreement", counted / total.exits, source=breakdown.source)
    yield from _by_reason_and_vcpu(breakdown)


def _why_none(total: Total | None) -> str:
    if total is None or total.exits == 0:
        return "no VM exit was recorded."
    return (
        f"KVM counted {total.exits} VM exits, but its tracepoint kvm:kvm_exit never fired: this "
        "KVM runs guests in software, and reports no reasons."
    )


def _disagreement(counted: int, total: Total, breakdown: Breakdown) -> str | None:
    """Return a sentence if the two differ by more than 1 %. KVM's total may also contain exits
    between its own readings and the edges of the breakdown's window."""
    outside = max(0.0, 1 - breakdown.seconds / total.seconds) * total.exits
    margin = _AGREEMENT * total.exits
    if total.exits - outside - margin <= counted <= total.exits + margin:
        return None
    return (
        f"the reasons add up to {counted} VM exits and KVM's total is {total.exits}: they differ "
        f"by more than {100 * _AGREEMENT:g} %."
    )


def _by_reason_and_vcpu(breakdown: Breakdown) -> Iterator[Sample]:
    seconds, source = breakdown.seconds, breakdown.source
    yield sample("exits", sum(breakdown.exits.values()) / seconds, source=source)
    by_vcpu = dict(_sums(breakdown.exits, 0))
    for vcpu in breakdown.vcpus:
        count = by_vcpu.get(vcpu, 0)
        yield sample("exits", count / seconds, source=source, labels={"vcpu": str(vcpu)})
    for reason, count in _sums(breakdown.exits, 1):
        yield sample("exits", count / seconds, source=source, labels={"reason": reason})
    # A counted exit may have ended after the window, or without an entry: then it has no time.
    timed = {key: breakdown.ns.get(key, 0) for key in breakdown.exits if key[1] not in IDLE}
    yield sample("exit_time", sum(timed.values()) / 1e9 / seconds, source=source)
    for reason, ns in _sums(timed, 1):
        yield sample("exit_time", ns / 1e9 / seconds, source=source, labels={"reason": reason})
    for vcpu, ns in _sums(timed, 0):
        yield sample("exit_time", ns / 1e9 / seconds, source=source, labels={"vcpu": str(vcpu)})
    if len({vcpu for vcpu, _ in breakdown.exits}) == 1:
        return  # the sums are those of the one vCPU
    for (vcpu, reason), count in breakdown.exits.items():
        labels = {"reason": reason, "vcpu": str(vcpu)}
        yield sample("exits", count / seconds, source=source, labels=labels)
        if (vcpu, reason) in timed:
            cpus = timed[vcpu, reason] / 1e9 / seconds
            yield sample("exit_time", cpus, source=source, labels=labels)


def _userspace_readings(breakdown: Breakdown) -> Iterator[Sample]:
    seconds, source = breakdown.seconds, breakdown.source
    count = sum(breakdown.userspace.values())
    yield sample("userspace_exits", count / seconds, source=source)
    for reason, count in sorted(breakdown.userspace.items()):
        labels = {"reason": reason}
        yield sample("userspace_exits", count / seconds, source=source, labels=labels)


def _sums(counts: Mapping[tuple[int, str], int], by: int) -> list[tuple[Any, int]]:
    """Totals by one part of the key, in its order."""
    return sorted(_added((key[by], count) for key, count in counts.items()).items())


def _added(counts: Iterable[tuple[_K, int]]) -> dict[_K, int]:
    """Return one count per key, since codes may share a name."""
    sums: dict[_K, int] = defaultdict(int)
    for key, count in counts:
        sums[key] += count
    return dict(sums)


def _unavailable(metrics: Sequence[str], reason: str) -> Iterator[Unavailable]:
    for metric in metrics:
        yield Unavailable(metric=metric, reason=reason)


COUNTED = Collector(
    name="exits",
    order=100,
    level=Level.EXITS,
    gives="VM exits by reason, and their time",
    why_unavailable=why_unavailable,
    attached=exit_counting,
    raw=(files.EXITS, bpf_exits.RAW, perf.RAW, perf.REPORT),
    recorders=("bpftrace", "perf"),
    parse=lambda trial: parse(trial.folder),
)
