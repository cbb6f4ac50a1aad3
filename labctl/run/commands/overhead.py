"""Measure the cost of collecting: a workload's throughput at each level and with nothing collected.

Levels alternate within each block in a balanced, seeded order (METHOD: interleaved, paired), in one
guest and in one native session. There are no verdicts here.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from labctl.base.errors import BrokenError, UsageError
from labctl.base.events import Listener, Note, Progress, Warned
from labctl.base.paths import StatePaths
from labctl.base.tuning import Kind, Level
from labctl.collect.threads import host_threads
from labctl.host.accelerator import Requested
from labctl.run.commands.host_checks import refuse_problems
from labctl.run.commands.host_record import class_of_host
from labctl.run.guests.base_guest import guest_base
from labctl.run.guests.bench import Bench, fresh_bench
from labctl.run.guests.lab import Lab
from labctl.run.guests.lab_opening import open_lab
from labctl.run.guests.leftovers import alone
from labctl.run.planning.plan import plan_sweep
from labctl.run.planning.planned import Planned, SweepRequest
from labctl.run.trials.request import TrialRequest, cgroup_of, new_data, setting_of
from labctl.run.trials.trial import bare_window, measured_window, store_output
from labctl.run.trials.warmup import warm_up
from labctl.store.records.run_record import RunRecord
from labctl.store.samples import Reading, Sample
from labctl.store.trial import TrialFolder
from labctl.study.load_study import Overrides
from labctl.study.order import block_order
from labctl.study.plan import Plan
from labctl.study.study import StudyWorkload
from labctl.trace import files
from labctl.workloads.registry import workload_of
from labctl.workloads.workload import Workload

# Plan a measurement of the cost of collecting.


SIDES = (Kind.NATIVE, Kind.GUEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadRequest:
    """Request a measurement of overhead. `workload`: one of the study's, None for its first.
    `pairs`: blocks, each of which measures every level and no collection once. `seconds`: of each
    window, None for the study's own."""

    places: StatePaths
    study: str = "selftest"
    workload: str | None = None
    levels: tuple[Level, ...] = tuple(Level)
    sides: tuple[Kind, ...] = SIDES
    pairs: int = 20
    seconds: float | None = None
    seed: int = 1
    accel: Requested = "auto"


def plan_overhead(request: OverheadRequest) -> tuple[Planned, str]:
    """Return a plan of the study's roles with only that workload, and the workload's name."""
    planned = plan_sweep(
        SweepRequest(
            study=request.study,
            places=request.places,
            results=request.places.root,
            overrides=Overrides(
                tunings=(),
                workloads=[request.workload] if request.workload else None,
                duration_s=request.seconds,
            ),
            seed=request.seed,
            accel=request.accel,
        )
    )
    name, declared = next(iter(planned.plan.workloads.items()))
    _check_measurable(name, declared)
    if Kind.NATIVE in request.sides and planned.plan.roles.native is None:
        raise UsageError(
            f"study '{planned.plan.study}' has no native role to measure",
            hint="Use '--side guest', or name a study with a native role (--study).",
        )
    return planned, name


def _check_measurable(name: str, declared: StudyWorkload) -> None:
    """Raise UsageError for a workload whose throughput does not show the cost of collecting."""
    program = workload_of(declared)
    if program.rate_metric is None or program.peer(declared.parameters) is not None:
        why = "runs at a fixed pace" if program.rate_metric is None else "talks to a peer"
        raise UsageError(
            f"workload '{name}' {why}: its throughput does not show the cost of collecting",
            hint="Name another workload with --workload, or another study with --study.",
        )


# Read the result of one window of a measurement of overhead.


_LABCTL_CPU = "host_cpu{thread=labctl}"


class OverheadWindow(NamedTuple):
    """Hold operations per second, labctl's CPU seconds per second, and why collectors failed."""

    rate: float
    labctl_cpu: float | None
    problems: Collection[str]


def read_window(folder: TrialFolder, program: Workload, *, is_bare: bool) -> OverheadWindow:
    """Return the result of the window in `folder`. `is_bare`: whether nothing was collected around
    it. Raises BrokenError if the program's output has no rate."""
    noted = folder.read_json(files.PROBLEMS) if folder.has(files.PROBLEMS) else {}
    labctl_cpu = None if is_bare else _value(host_threads.parse(folder), _LABCTL_CPU)
    wanted = program.rate_metric
    rate = _value(program.parse(folder), wanted)
    if rate is None or rate <= 0:
        raise BrokenError(f"{program.name} reported no {wanted} above 0")
    return OverheadWindow(rate, labctl_cpu, list(noted.values()))


def _value(readings: Iterable[Reading], key: str | None) -> float | None:
    """Return the value of the sample of that key; None if there is none."""
    for found in readings:
        if isinstance(found, Sample) and found.key == key:
            return found.value
    return None


# Measure windows in turns: with each level, and with nothing collected.


NOTHING = "nothing"
"""Arm in which no collector is attached and no snapshot is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Hold one side's operations per second, by arm (NOTHING or a level) and in the order of
    blocks. `labctl_cpu`: by level, the CPU seconds per second of labctl and its recording programs
    in each window. `problems`: why some of its collectors recorded nothing."""

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
        """Return the results of one of so many sides."""
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
                # The same draw for both sides, because the cost of a level is compared between
                # them.
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


COMMAND = "labctl collectors --overhead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Hold the measured overheads. `here`: the part of run.json that distinguishes hosts, guests
    and versions.
    """

    workload: str
    seconds: float
    sides: tuple[Rates, ...]
    here: RunRecord


def measure_overheads(request: OverheadRequest, listener: Listener) -> Overheads:
    """Measure natively and in a guest, with the image and roles of the study.

    Raises UsageError for a workload whose throughput is not meaningful; what a sweep raises.
    """
    with ExitStack() as stack:
        stack.enter_context(alone(request.places, listener, COMMAND))
        planned, name = plan_overhead(request)
        refuse_problems(request.places, planned)
        base = guest_base(planned, request.places, request.accel, listener)
        listener(Note(text=base.accelerator.reason))
        lab = stack.enter_context(open_lab(request.places, planned, base, listener=listener))
        windows = Windows(lab, planned.plan, name, request.levels, request.pairs, request.seed)
        sides = tuple(windows.side(kind, of=len(request.sides)) for kind in request.sides)
    return Overheads(
        workload=name,
        seconds=planned.plan.workloads[name].duration_s,
        sides=sides,
        here=class_of_host(lab),
    )
