"""Measure how long a report takes, and how much memory, for runs of three sizes."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from labctl.base.process import Deadline, run
from labctl.store.index import NAME
from tools.bench.benchmark import Benchmark
from tools.bench.figures import Figure
from tools.bench.runs import SAMPLES_PER_TRIAL, write_run

TRIALS = (1_000, 10_000, 100_000)
"""Linear cost shows in steps of ten: the time of each is at most about ten times the last."""

SETTLING_S = 2.5
"""Seconds until files just written may have an index (labctl/store/index.py)."""

REPORT_S = 900.0

# A process of its own for each report, whose peak is the kernel's count of it (getrusage(2)).
_REPORT = """\
import json, resource, sys, time
from pathlib import Path
started = time.monotonic()
from labctl.base.interpreter import take_no_matrix_threads
take_no_matrix_threads()
from labctl.analysis.judge import judge
from labctl.report.page.report_page import page
from labctl.store.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
marks = [time.monotonic()]
run = folder.load()
marks.append(time.monotonic())
judgement = judge(run)
marks.append(time.monotonic())
html = page(run, judgement, folder.path)
marks.append(time.monotonic())
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "seconds": [after - before for before, after in zip([started, *marks], marks)],
    "cpu_s": usage.ru_utime + usage.ru_stime,
    "peak_bytes": 1024 * usage.ru_maxrss,
    "html_bytes": len(html.encode()),
}))
"""

# The same report as JSON, by its pieces, as `labctl report --json` prints them.
_AS_JSON = """\
import json, os, resource, sys
from pathlib import Path
from labctl.base.interpreter import take_no_matrix_threads
take_no_matrix_threads()
from labctl.analysis.judge import judge
from labctl.report.export.json_report import report_pieces
from labctl.store.run_folder import RunFolder
run = RunFolder(Path(sys.argv[1])).load()
with open(os.devnull, "wb") as file:
    written = sum(map(file.write, report_pieces(run, judge(run))))
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "cpu_s": usage.ru_utime + usage.ru_stime,
    "peak_bytes": 1024 * usage.ru_maxrss,
    "written_bytes": written,
}))
"""

TIME = Figure(name="report of 10,000 trials", value=None, unit="s", comparison="under", limit=5.0)
MEMORY = Figure(
    name="its peak memory (RSS)", value=None, unit="MB", comparison="under", limit=300.0
)
FROM_JSON = Figure(
    name="the first one, without an index", value=None, unit="s", comparison="under", limit=10.0
)
JSON_TIME = Figure(
    name="report --json of 10,000 trials", value=None, unit="s", comparison="under", limit=3.0
)
JSON_MEMORY = replace(MEMORY, name="peak memory of report --json (RSS)")
LINEAR = Figure(
    name="ten times the trials, times the time",
    value=None,
    unit="",
    comparison="under",
    limit=12.0,
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One report: seconds to import, load, judge and render, and what the process took."""

    trials: int
    seconds: tuple[float, ...]
    cpu_s: float
    peak_bytes: int
    html_bytes: int

    @property
    def wall_s(self) -> float:
        return sum(self.seconds)

    @property
    def words(self) -> str:
        importing, loading, judging, rendering = self.seconds
        return (
            f"{self.trials:,} trials: {self.wall_s:.2f} s (import {importing:.2f}, load "
            f"{loading:.2f}, judge {judging:.2f}, HTML {rendering:.2f}; CPU {self.cpu_s:.2f}), "
            f"{self.peak_bytes / 1e6:.0f} MB"
        )


def report(benchmark: Benchmark) -> list[Figure]:
    """Reports of made-up runs, each read from JSON first and then from its index."""
    first, later = [], []
    as_json: list[Figure] = []
    for trials in TRIALS:
        with tempfile.TemporaryDirectory(prefix="labctl-bench-") as name:
            folder = Path(name) / "made-up"
            write_run(folder, trials)
            time.sleep(SETTLING_S)
            first.append(measure(folder, trials))
            if (folder / NAME).is_file():
                later.append(measure(folder, trials))
            if trials == TRIALS[1]:
                as_json = json_figures(folder)
    return [*report_figures(first, later), *as_json]


def measure(folder: Path, trials: int) -> Measured:
    found = json.loads(_by_itself(_REPORT, folder))
    return Measured(trials, tuple(found.pop("seconds")), **found)


def _by_itself(script: str, folder: Path) -> str:
    """Return what a report in a process of its own says of itself."""
    argv = [sys.executable, "-c", script, str(folder)]
    return run(argv, deadline=Deadline.after(REPORT_S, "a report")).stdout


def json_figures(folder: Path) -> list[Figure]:
    """CPU time and memory of a report as JSON, which others read."""
    found = json.loads(_by_itself(_AS_JSON, folder))
    megabytes = found["written_bytes"] / 1e6
    note = f"CPU time of one process, imports included; {megabytes:.0f} MB of text"
    return [
        replace(JSON_TIME, value=found["cpu_s"], note=note),
        replace(JSON_MEMORY, value=found["peak_bytes"] / 1e6, note="of the same process"),
    ]


def report_figures(first: Sequence[Measured], later: Sequence[Measured]) -> list[Figure]:
    """`first` read from JSON, `later` from the index, both by growing number of trials."""
    (asked,) = (one for one in later if one.trials == TRIALS[1])
    (cold,) = (one for one in first if one.trials == TRIALS[1])
    steps = [b.wall_s / a.wall_s for sizes in (first, later) for a, b in pairwise(sizes)]
    return [
        replace(
            TIME,
            value=asked.wall_s,
            values=tuple(one.wall_s for one in later),
            note=f"{SAMPLES_PER_TRIAL * asked.trials:,} samples; "
            + "; ".join(one.words for one in later),
        ),
        replace(
            MEMORY,
            value=asked.peak_bytes / 1e6,
            values=tuple(one.peak_bytes / 1e6 for one in later),
            note=f"HTML of {asked.html_bytes / 1e6:.1f} MB; "
            f"from JSON {cold.peak_bytes / 1e6:.0f} MB",
        ),
        replace(
            FROM_JSON,
            value=cold.wall_s,
            values=tuple(one.wall_s for one in first),
            note="; ".join(one.words for one in first),
        ),
        replace(
            LINEAR,
            value=max(steps),
            values=tuple(steps),
            note="the worst of " + ", ".join(f"{step:.1f}" for step in steps),
        ),
    ]
