"""Measure windows in which a level collects, or nothing does, in turns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from labctl.base.errors import BrokenError
from labctl.base.events import Progress, Warned
from labctl.base.levels import Level
from labctl.base.tuning import Kind
from labctl.run.commands.overhead_reading import OverheadWindow, read_window
from labctl.run.guests.bench import Bench
from labctl.run.guests.benches import fresh_bench
from labctl.run.guests.lab import Lab
from labctl.run.trials.trial_request import TrialRequest
from labctl.run.trials.trial_setting import cgroup_of, new_data, setting_of
from labctl.run.trials.warmup import warm_up
from labctl.run.trials.window import bare_window, measured_window, store_output
from labctl.store.trial import TrialFolder
from labctl.study.plan import Plan
from labctl.study.williams import block_order

NOTHING = "nothing"
"""The arm in which no collector is attached and no snapshot is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Hold one side's operations per second, by arm (NOTHING or a level) and in the order of
    blocks. `labctl_cpu`: of a level, the CPU seconds per second in each of its windows of labctl
    and of the programs that record for it. `problems`: why some of its collectors recorded nothing.
    """

    side: str
    by_arm: Mapping[str, tuple[float, ...]]
    labctl_cpu: Mapping[str, tuple[float, ...]]
    problems: Mapping[str, tuple[str, ...]]


class Windows:
    """Measure windows of one workload with each level and with nothing, side by side."""

    def __init__(
        self, lab: Lab, plan: Plan, name: str, levels: Sequence[Level], pairs: int, seed: int
    ) -> None:
        self._lab = lab
        self._plan = plan
        self._name = name
        trial = next(trial for trial in plan.trials if trial.cell["workload"] == name)
        request = TrialRequest.of(plan, trial, attempt=1, window_rates={})
        self._quiet = replace(request, condition=None, level=Level.COUNTERS)
        self._program = request.workload.with_parameters(request.declared.parameters)
        self._arms = (NOTHING, *levels)
        self._pairs = pairs
        self._seed = seed
        self._done = 0
        self._started = time.monotonic()

    def side(self, kind: Kind, of: int) -> Rates:
        """Return what one of so many sides has done."""
        rates: dict[str, list[float]] = {arm: [] for arm in self._arms}
        busy: dict[str, list[float]] = {arm: [] for arm in self._arms if arm != NOTHING}
        problems: dict[str, dict[str, None]] = {arm: {} for arm in self._arms}
        with ExitStack() as stack:
            bench = stack.enter_context(self._bench(kind))
            for problem in bench.problems:
                self._lab.listener(Warned(text=problem))
            stack.enter_context(self._servers(bench))
            setting = setting_of(self._lab, bench, self._program, self._quiet.declared)
            stack.enter_context(cgroup_of(self._lab, bench, self._program.command(setting)))
            self._warm(bench)
            for block in range(1, self._pairs + 1):
                # The same draw for both sides: what a level costs one is compared with the other.
                for arm in block_order(self._arms, seed=self._seed, block=block, what="levels"):
                    self._progress(kind, arm, of)
                    window = self._window(bench, arm)
                    rates[arm].append(window.rate)
                    if window.labctl_cpu is not None:
                        busy[arm].append(window.labctl_cpu)
                    problems[arm] |= dict.fromkeys(window.problems)
                    self._done += 1
        return Rates(
            side=str(kind),
            by_arm={arm: tuple(values) for arm, values in rates.items()},
            labctl_cpu={arm: tuple(values) for arm, values in busy.items()},
            problems={arm: tuple(found) for arm, found in problems.items() if found},
        )

    def _bench(self, kind: Kind) -> AbstractContextManager[Bench]:
        roles, tunings = self._plan.roles, self._lab.tunings
        role = roles.native if kind is Kind.NATIVE else roles.baseline
        assert role is not None
        return fresh_bench(self._lab, tunings[role])

    def _servers(self, bench: Bench) -> AbstractContextManager[object]:
        setting = setting_of(self._lab, bench, self._program, self._quiet.declared)
        servers = self._program.servers(setting)
        return bench.channel.serving(servers, cpus=bench.cpus, sched=bench.sched)

    def _warm(self, bench: Bench) -> None:
        setting = setting_of(self._lab, bench, self._program, self._quiet.declared)
        new_data(self._lab, bench, self._program, setting)
        warmed = warm_up(bench, self._program, setting, self._quiet)
        if not warmed["settled"]:
            self._lab.listener(Warned(text=f"The warm-up of {self._name} did not settle."))

    def _window(self, bench: Bench, arm: str) -> OverheadWindow:
        request = replace(self._quiet, level=Level.COUNTERS if arm == NOTHING else Level(arm))
        setting = setting_of(self._lab, bench, self._program, request.declared)
        new_data(self._lab, bench, self._program, setting)
        with tempfile.TemporaryDirectory(dir=self._lab.work) as path:
            folder = TrialFolder(Path(path))
            if arm == NOTHING:
                result = bare_window(bench, self._program, setting)
            else:
                command = self._program.command(setting)
                result = measured_window(
                    self._lab, bench, request, command, setting.duration_s, folder
                )
            store_output(folder, result)
            if why := self._program.why_failed(result):
                raise BrokenError(f"{self._name} failed: {why}")
            return read_window(folder, self._program, is_bare=arm == NOTHING)

    def _progress(self, kind: Kind, arm: str, sides: int) -> None:
        planned = sides * self._pairs * len(self._arms)
        mean = (time.monotonic() - self._started) / self._done if self._done else None
        self._lab.listener(
            Progress(
                done=self._done,
                planned=planned,
                invalid=0,
                doing=f"{kind}: {arm}",
                left_s=None if mean is None else mean * (planned - self._done),
            )
        )
