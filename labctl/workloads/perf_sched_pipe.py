"""perf bench sched pipe: how fast two tasks wake each other up through a pair of pipes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.units import Better, Unit
from labctl.store.samples import Reading, Sample
from labctl.store.trial import TrialFolder
from labctl.workloads.model import ChoiceParameter, IntegerParameter, Setting, WorkloadBase
from labctl.workloads.repeated import SHELL, for_seconds, times
from labctl.workloads.windows import Window, batch_errors

BINARY = "/usr/bin/perf"
STDOUT = "stdout.txt"
WARMUP_WINDOWS = 3

# Without quotes, of tasks and misspelt: perf of Linux 3.
_RUN = re.compile(
    r"# Running (?:'sched/pipe' benchmark:|sched/pipe benchmark\.\.\.)\n"
    r"# Ex\w*ecuted (?P<loops>\d+) pipe operations between two (?:processes|threads|tasks)\n\n"
    r" +Total time: [\d.]+ \[sec\]\n\n"
    r" +(?P<usecs>\d+\.\d+) usecs/op\n"
    r" +\d+ ops/sec\n+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfSchedPipe(WorkloadBase):
    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        return Command(argv=for_seconds(_argv(setting), setting.duration_s))

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        return Command(argv=times(_argv(setting), WARMUP_WINDOWS))

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return [count / seconds for count, seconds in _runs(stdout, STDOUT)]

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        runs = _runs(raw.read_text(STDOUT), str(raw.path / STDOUT))
        operations = sum(count for count, _ in runs)
        rate = operations / sum(seconds for _, seconds in runs)
        for metric, value, unit, better in (
            ("ops_per_s", rate, Unit.PER_SECOND, Better.HIGHER),
            ("operations", operations, Unit.COUNT, Better.NEITHER),
        ):
            yield Sample(metric=metric, value=value, unit=unit, better=better, source=STDOUT)
        windows = [Window(seconds, count) for count, seconds in runs]
        yield from batch_errors(windows, "ops_per_s", STDOUT)


def _argv(setting: Setting) -> tuple[str, ...]:
    threads = ("--threaded",) if setting.parameters["tasks"] == "threads" else ()
    return (BINARY, "bench", "sched", "pipe", f"--loop={setting.parameters['loops']}", *threads)


def _runs(text: str, where: str) -> list[tuple[int, float]]:
    """(operations, seconds) of each run, in order; raises BrokenError when that isn't all of it."""
    runs: list[tuple[int, float]] = []
    end = 0
    for match in _RUN.finditer(text):
        if match.start() != end or float(match["usecs"]) <= 0:
            break
        end = match.end()
        count = int(match["loops"])
        # Of what perf prints this has the most digits.
        runs.append((count, count * float(match["usecs"]) / 1e6))
    if not runs or text[end:].strip():
        raise BrokenError(
            f"{where}: expected 'usecs/op' of perf's benchmark sched/pipe for each run, found "
            f"{text[end : end + 80]!r}"
        )
    return runs


PERF_SCHED_PIPE = PerfSchedPipe(
    name="perf-sched-pipe",
    description="perf bench sched pipe: two tasks that wake each other up in turns",
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
    primary="ops_per_s",
    rate_metric="ops_per_s",
)
