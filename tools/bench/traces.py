"""Measure how fast a trial's scheduler events are reduced, and in how much memory, next to perf's
own tools."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labctl.base.errors import BrokenError
from labctl.base.kernel import with_tracefs
from labctl.base.process import Deadline, run
from labctl.collect.traces.recorded_events import sched_events, timer_events
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.model import TIMER_EXPIRE
from labctl.trace.perf.perfdata import read_trace, tracepoints
from tools.bench.benchmark import Benchmark
from tools.bench.figures import Figure

SCRATCH = "/var/tmp"
"""A gigabyte or more, which /tmp may have to keep in memory."""

TRIAL_LOOPS = 20_000
BUFFER_PAGES = 8192
RECORDING_S, REDUCTION_S = 300.0, 900.0
REPEATS = 3

SCRIPT = Figure(
    name="events reduced, × pace of perf script | awk",
    value=None,
    unit="",
    comparison="at least",
    limit=5.0,
)
LATENCY = Figure(
    name="events reduced, × pace of perf sched latency",
    value=None,
    unit="",
    comparison="at least",
    limit=1.0,
)
MEMORY = Figure(
    name="peak memory (RSS) of it, for 10 million events",
    value=None,
    unit="MB",
    comparison="under",
    limit=500.0,
)

# A process of its own, as the others are: imports are in its time, and its peak is the kernel's
# count of it (getrusage(2)). It begins as the command labctl does, and goes the way of a trial's
# trace, for all threads and not just for the trial's own.
_LABCTL = """\
import json, resource, sys, time
from pathlib import Path
started = time.monotonic()
from labctl.base.interpreter import take_no_matrix_threads
take_no_matrix_threads()
from labctl.store.trial import TrialFolder
from labctl.trace.sched import schedule
from labctl.trace.timeline.recordings import Traces
imported = time.monotonic()
imported_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trace = Traces(TrialFolder(Path(sys.argv[1]))).host
if isinstance(trace, str):
    sys.exit(trace)
read = time.monotonic()
threads = schedule(trace).threads
waits = {
    tid: (one.delays.total_ns, int(one.delays.length_ns.max(initial=0)))
    for tid, one in threads.items()
}
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "events": sum(map(len, trace.events.values())),
    "lost": trace.lost,
    "import_s": imported - started,
    "read_s": read - imported,
    "reduce_s": time.monotonic() - read,
    "cpu_s": used.ru_utime + used.ru_stime,
    "imported_bytes": 1024 * imported_kib,
    "peak_bytes": 1024 * used.ru_maxrss,
    "waits": waits,
}))
"""

# The same figures: of each thread, from its wake-up or from being switched out while runnable to
# its switch-in. perf prints a wake-up's fields after the thread's name, which may have blanks.
_AWK = r"""
function number(name) {
    match($0, " " name "=[0-9]+")
    return substr($0, RSTART + length(name) + 2, RLENGTH - length(name) - 2) + 0
}
{ now = $1 + 0 }
$2 == "sched:sched_wakeup:" { tid = number("pid"); if (!(tid in since)) since[tid] = now }
$2 == "sched:sched_switch:" {
    tid = number("next_pid")
    if (tid in since) {
        delay = now - since[tid]
        total[tid] += delay
        if (delay > longest[tid]) longest[tid] = delay
        delete since[tid]
    }
    tid = number("prev_pid")
    if (tid && $0 ~ / prev_state=R/) since[tid] = now
    else delete since[tid]  # it ran: the switch to it is missing
}
END { for (tid in total) printf "%d %.9f %.9f\n", tid, total[tid], longest[tid] }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """One reduction by labctl: seconds of its parts, and of each thread the total and the longest
    wait in nanoseconds."""

    wall_s: float
    events: int
    lost: int
    import_s: float
    read_s: float
    reduce_s: float
    cpu_s: float
    imported_bytes: int
    peak_bytes: int
    waits: dict[str, tuple[int, int]]

    @property
    def total_s(self) -> float:
        return sum(total for total, _ in self.waits.values()) / 1e9

    @property
    def peak_of_ten_million(self) -> float:
        """Bytes: what reading and reducing take grows with the events, what is imported doesn't."""
        grown = self.peak_bytes - self.imported_bytes
        return self.imported_bytes + grown * 1e7 / self.events

    @property
    def words(self) -> str:
        return (
            f"{self.wall_s:.2f} s (import {self.import_s:.2f}, read {self.read_s:.2f}, "
            f"reduce {self.reduce_s:.2f}; {self.cpu_s:.2f} of CPU time)"
        )


def trace(benchmark: Benchmark) -> list[Figure]:
    """Measure one recording, in turns: run delay of every thread, its total and the longest one."""
    with tempfile.TemporaryDirectory(prefix="labctl-bench-", dir=SCRATCH) as name:
        folder = TrialFolder(Path(name))
        file = record(folder, benchmark.trace_events)
        ours, latency = [], []
        for _ in range(REPEATS):
            ours.append(by_labctl(folder))
            latency.append(by_perf_sched(file))
        script_s, script_total_s = by_perf_script(file)
        return trace_figures(ours, latency, script_s, script_total_s, file.stat().st_size)


def record(folder: TrialFolder, events: int) -> Path:
    """Record about so many events of a pipe between two processes, and of whatever else the host
    does meanwhile, as those of a trial's host and of its guest are: all that are used, and perf's
    own records of switches where the kernel keeps some back."""
    file = folder.path / files.HOST
    file.parent.mkdir(parents=True)
    _record(file, TRIAL_LOOPS)
    found = read_trace(file, dict.fromkeys(tracepoints(file), ())).events
    per_loop = sum(map(len, found.values())) / TRIAL_LOOPS
    _record(file, math.ceil(events / per_loop))
    return file


def _record(file: Path, loops: int) -> None:
    cpus = frozenset(range(os.cpu_count() or 1))
    run(
        with_tracefs(
            (
                *("perf", "record", "-q", "-a", "-c", "1", "-k", "CLOCK_MONOTONIC"),
                *("-m", str(BUFFER_PAGES), "-o", str(file)),
                *(*sched_events(cpus), *timer_events(cpus), "-e", TIMER_EXPIRE),
                *("--", "perf", "bench", "sched", "pipe", "-l", str(loops)),
            )
        ),
        deadline=Deadline.after(RECORDING_S, "perf record"),
    )


def by_labctl(folder: TrialFolder) -> Reduced:
    done = run(
        [sys.executable, "-c", _LABCTL, folder.path],
        deadline=Deadline.after(REDUCTION_S, "labctl's reduction"),
    )
    return Reduced(wall_s=done.wall_s, **json.loads(done.stdout))


def by_perf_sched(file: Path) -> float:
    """Wall seconds."""
    deadline = Deadline.after(REDUCTION_S, "perf sched latency")
    return run(["perf", "sched", "latency", "-i", file], deadline=deadline).wall_s


def by_perf_script(file: Path) -> tuple[float, float]:
    """Wall seconds, and what it found: the sum of all waits in seconds."""
    pipe = 'perf script --ns -i "$0" -F time,event,trace 2>"$0.errors" | awk "$1"'
    deadline = Deadline.after(REDUCTION_S, "perf script | awk")
    done = run(["sh", "-c", pipe, file, _AWK], deadline=deadline, env={"LC_ALL": "C"})
    waits = [float(line.split()[1]) for line in done.stdout.splitlines()]
    if not waits:
        raise BrokenError("perf script | awk found no wait")
    return done.wall_s, sum(waits)


def trace_figures(
    ours: Sequence[Reduced],
    latency_s: Sequence[float],
    script_s: float,
    script_total_s: float,
    file_bytes: int,
) -> list[Figure]:
    ours_s = statistics.median(one.wall_s for one in ours)
    median = min(ours, key=lambda one: abs(one.wall_s - ours_s))
    peaks = tuple(one.peak_of_ten_million / 1e6 for one in ours)
    what = f"{median.events:,} events, {file_bytes / 1e9:.2f} GB"
    return [
        replace(
            SCRIPT,
            value=script_s / ours_s,
            values=(script_s, *(one.wall_s for one in ours)),
            note=f"{what}, {median.lost:,} lost; {script_s:.1f} s against {median.words}, "
            f"{median.events / ours_s / 1e6:.1f} million events/s; waits of "
            f"{script_total_s:.3f} s against {median.total_s:.3f} s",
        ),
        replace(
            LATENCY,
            value=statistics.median(latency_s) / ours_s,
            values=(*latency_s, *(one.wall_s for one in ours)),
            note=f"medians of {len(ours)} in turns: {statistics.median(latency_s):.2f} s "
            f"against {ours_s:.2f} s",
        ),
        replace(
            MEMORY,
            value=max(peaks),
            values=peaks,
            note=f"the worst of {len(ours)}; of these events up to "
            f"{max(one.peak_bytes for one in ours) / 1e6:.0f} MB",
        ),
    ]
