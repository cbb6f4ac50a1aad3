"""Repeat programs with a fixed amount of work until their time is up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.store.samples import Reading, sample
from labctl.store.trial import TrialFolder
from labctl.workloads.windows import RateWindow, batch_errors
from labctl.workloads.workload import Setting, WorkloadBase

SHELL = "/usr/bin/dash"
STDOUT = "stdout.txt"
WARMUP_WINDOWS = 3
"""Runs of a warm-up window."""

# The shell's own words alone: nothing is forked between two runs. /proc/uptime counts hundredths
# of a second, and nobody can set it.
_NOW = 'now() { read -r up _ < /proc/uptime; now="${up%.*}${up#*.}"; }'
_FOR_TIME = (
    f'{_NOW}; now; end=$((now + $0)); while "$@" || exit; now; [ "$now" -lt "$end" ]; do :; done'
)
_TIMES = 'left=$0; while [ "$left" -gt 0 ]; do "$@" || exit; left=$((left - 1)); done'


def for_seconds(argv: Sequence[str], seconds: float) -> tuple[str, ...]:
    """Run `argv` repeatedly, at least once, for that long; end with the status of a run that
    fails.
    """
    return (SHELL, "-c", _FOR_TIME, str(round(seconds * 100)), *argv)


def times(argv: Sequence[str], count: int) -> tuple[str, ...]:
    """Run `argv` that often."""
    return (SHELL, "-c", _TIMES, str(count), *argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated(WorkloadBase):
    """Repeat a benchmark: a trial is as many runs as begin in its time, and its primary metric is
    the rate over all runs. `printed`: what one run prints; `expected`: the same in words."""

    printed: re.Pattern[str]
    expected: str

    def argv(self, setting: Setting) -> tuple[str, ...]:
        """Return the command of one run."""
        raise NotImplementedError

    def window(self, run: re.Match[str]) -> RateWindow:
        """Return how long one run took, and what it did."""
        raise NotImplementedError

    def runs(self, text: str, where: str) -> list[RateWindow]:
        """Return what they printed, one after the other; raises BrokenError when that isn't all of
        it."""
        windows, end = [], 0
        for run in self.printed.finditer(text):
            window = self.window(run)
            if run.start() != end or window.seconds <= 0:
                break
            end = run.end()
            windows.append(window)
        if not windows or text[end:].strip():
            raise BrokenError(
                f"{where}: expected {self.expected} for each run, found {text[end : end + 80]!r}"
            )
        return windows

    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        return Command(argv=for_seconds(self.argv(setting), setting.duration_s))

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        return Command(argv=times(self.argv(setting), WARMUP_WINDOWS))

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return [run.operations / run.seconds for run in self.runs(stdout, STDOUT)]

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        runs = self.runs(raw.read_text(STDOUT), str(raw.path / STDOUT))
        operations = sum(run.operations for run in runs)
        rate = operations / sum(run.seconds for run in runs)
        yield sample(self.primary, rate, source=STDOUT)
        yield sample("operations", operations, source=STDOUT)
        yield from batch_errors(runs, self.primary, STDOUT)
