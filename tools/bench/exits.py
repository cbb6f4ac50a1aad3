"""Measure how much a guest is disturbed by its VM exits being counted in the kernel by BPF, next to
perf recording each of them: both as labctl does it at level `exits`."""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from labctl.analysis.effects.design import ALPHA
from labctl.analysis.effects.intervals import spread, t_interval
from labctl.analysis.times import Cost, cost
from labctl.base.cpus import CpuSet
from labctl.base.errors import BrokenError, HostError
from labctl.base.notation import TO
from labctl.base.paths import host_lock
from labctl.base.process import thread_ids
from labctl.collect.exits import bpf_exits
from labctl.collect.exits.bpf_exits import bpf_counting
from labctl.collect.exits.exits import why_no_bpf
from labctl.collect.traces.perf_record import recording
from labctl.collect.traces.recorded_events import kvm_events
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.host.lock import host_locked
from labctl.host.topology import read_topology
from labctl.run.commands.measure_exits import KINDS, ExitingGuest, exiting
from labctl.study.order import block_order
from labctl.trace.model import ENTRY, EXIT, TO_QEMU
from labctl.trace.perf.perfdata import read_trace
from tools.bench.benchmark import Benchmark
from tools.bench.figures import Figure

SCRATCH = "/var/tmp"
"""Folder for runs: on a disk, as theirs is."""

KIND = next(kind for kind in KINDS if kind.name == "io-qemu")
"""An exit that passes every probe: out of the guest, on to QEMU, and back."""

NOTHING, BPF, PERF = "nothing", "BPF", "perf record"
BLOCKS = 40
WINDOW_S = 0.4
"""Short: what else a host does comes and goes within seconds, and is to be in a whole block."""
SEED = 1
_TIED_NS = 1e-6

DISTURBS = Figure(
    name="exits counted by BPF: guest's time lost, × perf record's",
    value=None,
    unit="",
    comparison="under",
    limit=1.0,
)
WRITES = replace(DISTURBS, name="exits counted by BPF: bytes written, × perf record's")
USES = replace(DISTURBS, name="exits counted by BPF: its own CPU time, × perf record's")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Hold what the guest did, in how much of the clock's time and of its vCPU's CPU time.

    Of the collector: `all_s`, its CPU seconds from its start to its end, and `meanwhile_s`, those
    of them that fell into the window. `returns`, `fired`: how often it saw returns to QEMU and
    kvm:kvm_exit, of a stretch that holds the window; `lost`: events that it had no room for.
    `written`: bytes of all its files.
    """

    exits: int
    wall_s: float
    vcpu_s: float
    meanwhile_s: float = 0.0
    all_s: float = 0.0
    returns: int = 0
    fired: int = 0
    lost: int = 0
    written: int = 0

    @property
    def ns_per_exit(self) -> float:
        """Return the CPU time per exit: whoever else takes the vCPU's CPU is not in it."""
        return 1e9 * self.vcpu_s / self.exits


Block = Mapping[str, Window]
"""One window of each of NOTHING, BPF and PERF."""


def exits(benchmark: Benchmark) -> list[Figure]:
    """Windows of the three in turns, in one guest that does nothing but exit."""
    if problem := why_no_bpf():
        raise HostError(problem.rstrip("."))
    plan = pin_plan(read_topology(), 1, 0)
    with (
        host_locked(host_lock(), what="make bench"),
        exiting(KIND, min(plan.vcpu_cpus)) as guest,
    ):
        if guest.exits() is None:
            raise HostError("KVM of this host doesn't count exits (Linux 5.14 and later do)")
        # Of each a first one that doesn't count: files and pages are cold.
        for arm in _COLLECTING:
            _window(guest, arm, plan.housekeeping)
        blocks = [
            {
                arm: _window(guest, arm, plan.housekeeping)
                for arm in block_order(_COLLECTING, seed=SEED, block=block, what="collectors")
            }
            for block in range(1, BLOCKS + 1)
        ]
    return exits_figures(blocks)


def exits_figures(blocks: Sequence[Block]) -> list[Figure]:
    """Return the three ratios, with what they were made of. Raises BrokenError for windows of which
    nothing can be said: without exits, or whose exits a collector didn't see."""
    for arm in (BPF, PERF):
        seen = sum(block[arm].returns for block in blocks)
        lost = sum(block[arm].lost for block in blocks)
        done = sum(block[arm].exits for block in blocks)
        if seen + lost < 0.9 * done:
            raise BrokenError(f"{arm} saw {seen} of {done} exits on their way to QEMU")
    known = t_interval(spread(_added_ns(blocks, PERF), _TIED_NS), ALPHA)
    added = {arm: _added_ns(blocks, arm) for arm in (BPF, PERF)}
    means = {arm: statistics.fmean(values) for arm, values in added.items()}
    more = [ours - theirs for ours, theirs in zip(added[PERF], added[BPF], strict=True)]
    return [
        replace(
            DISTURBS,
            # What is 0 for all that is known has no ratio.
            value=None if known is None or known.low <= 0 else means[BPF] / means[PERF],
            values=(*added[BPF], *added[PERF]),
            note=f"{_covers(blocks)}; {'; '.join(_disturbed(blocks, arm) for arm in (BPF, PERF))}; "
            f"perf's less BPF's {_ns_words(more)}; {_setting(blocks)}",
        ),
        _written(blocks),
        _used(blocks),
    ]


def _added_ns(blocks: Sequence[Block], arm: str) -> list[float]:
    return [block[arm].ns_per_exit - block[NOTHING].ns_per_exit for block in blocks]


def _disturbed(blocks: Sequence[Block], arm: str) -> str:
    """Return what that collector takes from the guest, each with its 95 % interval."""

    def lost(rate: Callable[[Window], float]) -> Cost:
        return cost([rate(b[arm]) for b in blocks], [rate(b[NOTHING]) for b in blocks])

    by_cpu = lost(lambda window: window.exits / window.vcpu_s)
    by_clock = lost(lambda window: window.exits / window.wall_s)
    return (
        f"{arm} {_ns_words(_added_ns(blocks, arm))} an exit, "
        f"{by_cpu} of the exits in a second of CPU time, "
        f"{by_clock} by the clock"
    )


def _ns_words(values: Sequence[float]) -> str:
    """Return the mean, with its 95 % interval from Student's t on the blocks."""
    found = spread(values, _TIED_NS)
    interval = t_interval(found, ALPHA)
    text = f"{found.mean:.0f} ns"
    return text if interval is None else f"{text} ({interval.low:.0f}{TO}{interval.high:.0f})"


def _setting(blocks: Sequence[Block]) -> str:
    bare = [block[NOTHING] for block in blocks]
    return (
        f"{len(blocks)} blocks, windows of {statistics.median(w.wall_s for w in bare):.1f} s, "
        f"without a collector {statistics.median(w.exits / w.wall_s for w in bare):,.0f} exits/s "
        f"of {statistics.median(w.ns_per_exit for w in bare):,.0f} ns; perf lost "
        f"{sum(block[PERF].lost for block in blocks):,} events"
    )


def _covers(blocks: Sequence[Block]) -> str:
    if sum(block[BPF].fired for block in blocks) == 0:
        return (
            f"of {TO_QEMU} alone: {EXIT} and {ENTRY} never fire here, as this KVM runs guests in "
            "software"
        )
    return f"of {EXIT}, {TO_QEMU} and {ENTRY}, one each an exit"


def _written(blocks: Sequence[Block]) -> Figure:
    """Count what all windows wrote together; a collector is at it before and after them as well."""
    mb = {
        arm: sum(block[arm].written for block in blocks)
        / sum(block[arm].returns for block in blocks)
        for arm in (BPF, PERF)
    }
    return replace(
        WRITES,
        value=mb[BPF] / mb[PERF],
        values=tuple(float(block[arm].written) for arm in (BPF, PERF) for block in blocks),
        note=f"{mb[BPF]:.3f} MB against {mb[PERF]:.1f} MB per million exits that it saw",
    )


def _used(blocks: Sequence[Block]) -> Figure:
    told = []
    for arm in (BPF, PERF):
        windows = [block[arm] for block in blocks]
        told.append(
            f"{statistics.fmean(w.all_s for w in windows):.2f} CPU seconds a window "
            f"({statistics.fmean(w.meanwhile_s for w in windows):.3f} while it is open)"
        )
    ours, theirs = (sum(block[arm].all_s for block in blocks) for arm in (BPF, PERF))
    return replace(
        USES,
        value=ours / theirs,
        values=tuple(block[arm].all_s for arm in (BPF, PERF) for block in blocks),
        note=f"from start to end, beside the guest: {' against '.join(told)}",
    )


def _window(guest: ExitingGuest, arm: str, beside: CpuSet) -> Window:
    """Measure a window of the guest's work, while that collector is at it on the CPUs `beside`."""
    with tempfile.TemporaryDirectory(prefix="labctl-bench-", dir=SCRATCH) as name:
        folder = Path(name)
        ended_s = _ended_s()
        with _COLLECTING[arm](guest, folder, beside):
            before = _counted(guest)
            time.sleep(WINDOW_S)
            after = _counted(guest)
        if after.exits == before.exits:
            raise BrokenError("the guest made no exit in a window")
        made = Window(
            exits=after.exits - before.exits,
            wall_s=after.wall_s - before.wall_s,
            vcpu_s=after.vcpu_s - before.vcpu_s,
            meanwhile_s=after.collector_s - before.collector_s,
            all_s=_ended_s() - ended_s,
            written=sum(file.stat().st_size for file in folder.iterdir()),
        )
        return _SEEN[arm](folder, made)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """So far."""

    exits: int
    wall_s: float
    vcpu_s: float
    collector_s: float


def _counted(guest: ExitingGuest) -> _Counts:
    collectors = [child.pid for child in psutil.Process().children() if child.pid != guest.pid]
    threads = [(pid, tid) for pid in collectors for tid in thread_ids(pid)]
    return _Counts(
        exits=guest.exits() or 0,
        wall_s=time.monotonic(),
        vcpu_s=_cpu_s(guest.pid, guest.vcpu),
        collector_s=sum(_cpu_s(pid, tid) for pid, tid in threads),
    )


def _ended_s() -> float:
    """Return CPU seconds of all our children that have ended, and of theirs (getrusage(2))."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_s(pid: int, tid: int) -> float:
    """Read the CPU time of a thread that runs (Documentation/scheduler/sched-stats.rst,
    "/proc/<pid>/schedstat")."""
    return int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def _by_bpf(guest: ExitingGuest, folder: Path, beside: CpuSet) -> Iterator[None]:
    output = folder / Path(bpf_exits.RAW).name
    with bpf_counting(guest.pid, output, cpus=beside, keys_max=bpf_exits.keys_max(1)) as window:
        window.mark()
        yield
        window.mark()


def _seen_by_bpf(folder: Path, made: Window) -> Window:
    file = folder / Path(bpf_exits.RAW).name
    counted = bpf_exits.read_counts(file.read_text(), str(file))
    returns, fired = (sum(counts.values()) for counts in (counted.userspace, counted.exits))
    return replace(made, returns=returns, fired=fired)


@contextmanager
def _by_perf(guest: ExitingGuest, folder: Path, beside: CpuSet) -> Iterator[None]:
    with recording(folder / "perf.data", kvm_events([guest.vcpu]), cpus=beside) as recorded:
        yield
    if recorded.problem is not None:
        raise BrokenError(recorded.problem.rstrip("."))


def _seen_by_perf(folder: Path, made: Window) -> Window:
    trace = read_trace(folder / "perf.data", {TO_QEMU: (), EXIT: ()})
    returns, fired = (len(trace.events[name]) for name in (TO_QEMU, EXIT))
    return replace(made, returns=returns, fired=fired, lost=trace.lost)


_Collecting = Callable[[ExitingGuest, Path, CpuSet], AbstractContextManager[None]]

_COLLECTING: dict[str, _Collecting] = {
    NOTHING: lambda *_: nullcontext(),
    BPF: _by_bpf,
    PERF: _by_perf,
}
_SEEN: dict[str, Callable[[Path, Window], Window]] = {
    NOTHING: lambda _, made: made,
    BPF: _seen_by_bpf,
    PERF: _seen_by_perf,
}
