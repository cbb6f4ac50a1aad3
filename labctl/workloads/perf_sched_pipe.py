"""Measure with perf bench sched pipe how fast two tasks wake each other up through a pair of
pipes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from labctl.workloads.repeated import SHELL, Repeated
from labctl.workloads.windows import RateWindow
from labctl.workloads.workload import ChoiceParameter, IntegerParameter, Setting

BINARY = "/usr/bin/perf"

# Without quotes, of tasks and misspelt: perf of Linux 3.
_RUN = re.compile(
    r"# Running (?:'sched/pipe' benchmark:|sched/pipe benchmark\.\.\.)\n"
    r"# Ex\w*ecuted (?P<loops>\d+) pipe operations between two (?:processes|threads|tasks)\n\n"
    r" +Total time: [\d.]+ \[sec\]\n\n"
    r" +(?P<usecs>\d+\.\d+) usecs/op\n"
    r" +\d+ ops/sec\n+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfSchedPipe(Repeated):
    def argv(self, setting: Setting) -> tuple[str, ...]:
        threads = ("--threaded",) if setting.parameters["tasks"] == "threads" else ()
        return (BINARY, "bench", "sched", "pipe", f"--loop={setting.parameters['loops']}", *threads)

    def window(self, run: re.Match[str]) -> RateWindow:
        count = int(run["loops"])
        # Of what perf prints this has the most digits.
        return RateWindow(count * float(run["usecs"]) / 1e6, count)


PERF_SCHED_PIPE = PerfSchedPipe(
    name="perf-sched-pipe",
    operation="one turn of two tasks",
    parameters=(
        ChoiceParameter(
            name="tasks",
            default="process",
            choices=("process", "threads"),
            description="what the two are",
        ),
        # Some 50 ms natively, a second or so where guests are emulated.
        IntegerParameter(
            name="loops",
            default=5_000,
            minimum=100,
            maximum=100_000_000,
            description="turns of one run; a trial is as many runs as begin in its time",
        ),
    ),
    binaries=(SHELL, BINARY),
    printed=_RUN,
    expected="'usecs/op' of perf's benchmark sched/pipe",
    primary="ops_per_s",
    rate_metric="ops_per_s",
)
