"""Read what a sweep tells of itself: the time around its trials, and what labctl takes
meanwhile."""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from labctl.base.errors import BrokenError
from labctl.base.process import Deadline, run
from labctl.store.run_folder import LoadedRun
from labctl.store.run_places import all_runs
from labctl.store.samples import Sample
from labctl.store.trial import TrialRecord
from tools.bench.benchmark import SWEEP_ARGUMENTS, Benchmark
from tools.bench.figures import Figure

SWEEP_S = 1800.0
LABCTL_CPU = "host_cpu{thread=labctl}"

# The command as a user runs it, and the kernel's count of its peak when it is over: a child's
# rusage would include the QEMUs that it has waited for (getrusage(2)).
_WITH_PEAK = """\
import atexit, pathlib, sys
status = pathlib.Path(sys.argv.pop(1))
sys.argv[0] = "labctl"
atexit.register(lambda: status.write_text(pathlib.Path("/proc/self/status").read_text()))
from labctl.cli.main import main
main()
"""

AROUND = Figure(name="around a trial", value=None, unit="s", comparison="under", limit=0.5)
SHARE = Figure(
    name="measured + warm-up share of a sweep",
    value=None,
    unit="",
    comparison="at least",
    limit=0.75,
)
CPU = Figure(
    name="labctl's CPU while a trial is measured",
    value=None,
    unit="% of a CPU",
    comparison="under",
    limit=1.0,
)
MEMORY = Figure(
    name="labctl's peak memory (RSS)", value=None, unit="MB", comparison="under", limit=200.0
)


def sweep(benchmark: Benchmark) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="labctl-bench-") as name:
        folder = Path(name)
        status = folder / "status"
        arguments = ["--state-dir", str(benchmark.places.root), *SWEEP_ARGUMENTS]
        arguments += ["--quiet", "--json", "--results", str(folder / "results")]
        done = run(
            [sys.executable, "-c", _WITH_PEAK, status, *arguments],
            deadline=Deadline.after(SWEEP_S, "the sweep"),
        )
        (made,) = all_runs(folder / "results")
        return sweep_figures(made.load(), done.wall_s, peak_rss_bytes(status.read_text()))


def inside_trials(records: Sequence[TrialRecord]) -> list[float]:
    """Return seconds of each measured attempt that were neither warm-up nor workload."""
    return [r.wall_s - r.measured_s - r.warmup_s for r in records if r.measured_s > 0]


def between_trials(records: Sequence[TrialRecord]) -> list[float]:
    """Return seconds from the end of a trial to the start of the next one of the same restore:
    parsing it, writing its records, asking whether the guest is still there."""
    started = sorted((r for r in records if r.started_at), key=lambda r: r.started_at)
    gaps = []
    for former, latter in itertools.pairwise(started):
        if _restore_of(former) == _restore_of(latter):
            ended = datetime.fromisoformat(former.started_at).timestamp() + former.wall_s
            gaps.append(datetime.fromisoformat(latter.started_at).timestamp() - ended)
    return gaps


def _restore_of(record: TrialRecord) -> tuple[int, int, int, int]:
    # An invalid trial is repeated on a restore of its own.
    return record.block, record.position, record.boot, record.attempt


def sweep_figures(loaded: LoadedRun, wall_s: float, peak_bytes: int) -> list[Figure]:
    """Return the figures of a sweep that took `wall_s` from its command to its report."""
    records = [trial.record for trial in loaded.trials]
    inside, between = inside_trials(records), between_trials(records)
    used = sum(r.measured_s + r.warmup_s for r in records)
    invalid = sum(bool(r.reasons) for r in records)
    attempts = f"{len(records)} attempts, {invalid} of them invalid"
    cpu = [
        reading.value * 100
        for trial in loaded.trials
        for reading in trial.readings
        if isinstance(reading, Sample) and reading.key == LABCTL_CPU
    ]
    if not inside or not between or not cpu:
        raise BrokenError(f"the sweep measured too little to tell ({attempts})")
    around = statistics.median(inside) + statistics.median(between)
    return [
        replace(
            AROUND,
            value=around,
            values=tuple(inside),
            note=f"median: {statistics.median(inside):.2f} s in it, "
            f"{statistics.median(between):.2f} s until the next",
        ),
        replace(
            SHARE,
            value=used / wall_s,
            values=(used, wall_s),
            note=f"{used:.0f} of {wall_s:.0f} s; {attempts}; set-up, boot and report included",
        ),
        replace(
            CPU,
            value=max(cpu),
            values=tuple(cpu),
            note=f"the worst trial; median {statistics.median(cpu):.3f}",
        ),
        replace(
            MEMORY, value=peak_bytes / 1e6, values=(peak_bytes / 1e6,), note="the sweep, to its end"
        ),
    ]


def peak_rss_bytes(status: str) -> int:
    """VmHWM of a /proc/PID/status, in bytes (proc(5))."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise BrokenError("/proc/self/status names no VmHWM")
