"""Measure what collecting costs: a workload's throughput at each level and with nothing collected.

Levels take turns within each block in a balanced, seeded order (METHOD: interleaved, paired), in
one guest and in one native session. Nothing is judged here.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import labctl
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, UsageError
from labctl.base.events import Listener, Note, Progress, Warned
from labctl.base.levels import Level
from labctl.base.paths import StatePaths, host_lock
from labctl.base.signals import ending_signals_interrupt
from labctl.base.tuning import Kind
from labctl.collect.threads import host_threads
from labctl.host import preflight
from labctl.host.accelerator import Requested, accelerator
from labctl.host.facts import host_facts
from labctl.host.lock import host_locked
from labctl.run.commands.sweep_checks import host_problems
from labctl.run.guests.bench import Bench, guest_bench, native_bench
from labctl.run.guests.boots import Boots
from labctl.run.guests.lab import Lab, open_lab
from labctl.run.guests.leftovers import clean_up
from labctl.run.guests.prepare import ImageSource
from labctl.run.planning.guest_image import built_image
from labctl.run.planning.planned import Planned, SweepRequest
from labctl.run.planning.planner import plan_sweep
from labctl.run.trials.neighbours import Neighbours
from labctl.run.trials.trial import measured_window, store_output
from labctl.run.trials.trial_request import SLACK_S, TrialRequest
from labctl.run.trials.warmup import warm_up
from labctl.store.samples import Reading, Sample
from labctl.store.trial import TrialFolder
from labctl.study.study import Overrides
from labctl.study.williams import block_order
from labctl.trace import files
from labctl.workloads.model import Setting
from labctl.workloads.registry import workload

SIDES = (Kind.NATIVE, Kind.GUEST)

NOTHING = "nothing"
"""The arm in which no collector is attached and no snapshot is taken."""

COMMAND = "labctl collectors --overhead"

_LABCTL_CPU = "host_cpu{thread=labctl}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadRequest:
    """Request a measurement of overhead. `workload`: one of the study's, None for its first.
    `pairs`: blocks, of which each measures every level and nothing once. `seconds`: of each window,
    None for the study's own."""

    places: StatePaths
    study: str = "selftest"
    workload: str | None = None
    levels: tuple[Level, ...] = tuple(Level)
    sides: tuple[Kind, ...] = SIDES
    pairs: int = 20
    seconds: float | None = None
    seed: int = 1
    accel: Requested = "auto"


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


class _Window(NamedTuple):
    rate: float
    labctl_cpu: float | None
    problems: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Hold the measured overheads. `here`: the part of run.json that distinguishes hosts, guests
    and versions.
    """

    workload: str
    seconds: float
    sides: tuple[Rates, ...]
    here: Mapping[str, Any]


def measure_overheads(request: OverheadRequest, listener: Listener) -> Overheads:
    """Measure natively and in a guest, with the image and roles of the study.

    Raises UsageError for a workload whose throughput says nothing; what a sweep raises.
    """
    with ExitStack() as stack:
        stack.enter_context(ending_signals_interrupt())
        stack.enter_context(host_locked(host_lock(), what=COMMAND))
        clean_up(request.places, listener)
        planned, name = _planned(request)
        preflight.check(host_problems(request.places, planned))
        image = built_image(planned.recipe, request.places, listener)
        chosen = accelerator(request.accel, image.kernel, request.places)
        listener(Note(text=chosen.reason))
        lab = stack.enter_context(
            open_lab(
                request.places,
                planned,
                image=image,
                source=ImageSource(image),
                accelerator=chosen,
                listener=listener,
            )
        )
        measuring = _Measuring(lab, planned, request, name)
        sides = tuple(measuring.side(kind) for kind in request.sides)
    return Overheads(
        workload=name,
        seconds=planned.plan.workloads[name].duration_s,
        sides=sides,
        here={
            "labctl": labctl.__version__,
            "host": host_facts(request.places),
            "accelerator": chosen.name,
            "image": {"name": image.name, "digest": image.digest},
            "vcpus": lab.vcpus,
        },
    )


def _planned(request: OverheadRequest) -> tuple[Planned, str]:
    """Return a plan of the study's roles under that workload alone, and the workload's name."""
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
    program = workload(declared.program)
    if program.rate_metric is None or program.peer(declared.parameters) is not None:
        why = "runs at a fixed pace" if program.rate_metric is None else "talks to a peer"
        raise UsageError(
            f"workload '{name}' {why}: what collecting costs does not show in its throughput",
            hint="Name another with --workload, or a study that has one with --study.",
        )
    if Kind.NATIVE in request.sides and planned.plan.roles.native is None:
        raise UsageError(
            f"study '{planned.plan.study}' has no native role to measure",
            hint="Give '--side guest', or a study that has one with --study.",
        )
    return planned, name


class _Measuring:
    def __init__(self, lab: Lab, planned: Planned, request: OverheadRequest, name: str) -> None:
        self._lab = lab
        self._planned = planned
        self._asked = request
        self._name = name
        self._declared = planned.plan.workloads[name]
        self._program = workload(self._declared.program)
        self._arms = (NOTHING, *request.levels)
        self._done = 0
        self._started = time.monotonic()

    def side(self, kind: Kind) -> Rates:
        rates: dict[str, list[float]] = {arm: [] for arm in self._arms}
        busy: dict[str, list[float]] = {arm: [] for arm in self._arms if arm != NOTHING}
        problems: dict[str, dict[str, None]] = {arm: {} for arm in self._arms}
        with self._bench(kind) as bench:
            for problem in bench.problems:
                self._lab.listener(Warned(text=problem))
            self._warm(bench)
            for block in range(1, self._asked.pairs + 1):
                # The same draw for both sides: what a level costs one is compared with the other.
                for arm in block_order(
                    self._arms, seed=self._asked.seed, block=block, what="levels"
                ):
                    self._progress(kind, arm)
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
        roles, tunings = self._planned.plan.roles, self._planned.tunings
        if kind is Kind.NATIVE:
            assert roles.native is not None
            return native_bench(self._lab, tunings[roles.native])
        baseline = tunings[roles.baseline]
        disks = self._lab.source.disks(self._lab, baseline)
        boots = Boots(self._lab, disks, baseline, lambda *_: None)
        return guest_bench(self._lab, boots, 0, baseline, fresh=True)

    def _warm(self, bench: Bench) -> None:
        self._new_data(bench)
        warmed = warm_up(bench, self._program, self._setting(bench), self._request(Level.COUNTERS))
        if not warmed["settled"]:
            self._lab.listener(Warned(text=f"The warm-up of {self._name} did not settle."))

    def _window(self, bench: Bench, arm: str) -> _Window:
        self._new_data(bench)
        setting = self._setting(bench)
        with tempfile.TemporaryDirectory(dir=self._lab.work) as path:
            folder = TrialFolder(Path(path))
            if arm == NOTHING:
                result = bench.channel.run(
                    self._program.command(setting),
                    seconds=setting.duration_s + SLACK_S,
                    cpus=bench.cpus,
                    sched=bench.sched,
                )
            else:
                request = self._request(Level(arm))
                result = measured_window(
                    self._lab, bench, request, setting, Neighbours(), None, folder
                )
            store_output(folder, result, Neighbours())
            if result.returncode != 0:
                said = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
                raise BrokenError(f"{self._name} failed: {' '.join(said)}")
            noted = folder.read_json(files.PROBLEMS) if folder.has(files.PROBLEMS) else {}
            labctl_cpu = _value(host_threads.parse(folder), _LABCTL_CPU) if arm != NOTHING else None
            return _Window(self._rate(folder), labctl_cpu, list(noted.values()))

    def _rate(self, folder: TrialFolder) -> float:
        wanted = self._program.rate_metric
        found = _value(self._program.parse(folder), wanted)
        if found is None or found <= 0:
            raise BrokenError(f"{self._name} told no {wanted} above 0")
        return found

    def _new_data(self, bench: Bench) -> None:
        if self._program.uses_data_disk:
            self._lab.data.reset()
            self._lab.data.is_dirty = True
            deadline = Deadline.after(60, "dropping the data disk from the caches")
            bench.channel.forget(bench.data_path, deadline)
            self._lab.data.forget()

    def _setting(self, bench: Bench) -> Setting:
        return Setting(
            parameters=self._program.check_parameters(self._declared.parameters),
            vcpus=self._lab.vcpus,
            duration_s=self._declared.duration_s,
            data_path=bench.data_path,
        )

    def _request(self, level: Level) -> TrialRequest:
        return TrialRequest(
            planned=self._planned.plan.trials[0],
            attempt=1,
            workload=self._program,
            declared=self._declared,
            limits=self._planned.plan.limits,
            level=level,
            window_rates={},
        )

    def _progress(self, kind: Kind, arm: str) -> None:
        planned = len(self._asked.sides) * self._asked.pairs * len(self._arms)
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


def _value(readings: Iterable[Reading], key: str | None) -> float | None:
    """Return the value of the sample of that key; None where there is none."""
    for found in readings:
        if isinstance(found, Sample) and found.key == key:
            return found.value
    return None
