"""The engine with machines and trials made up: what is tested is what it does with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import BrokenError, LabctlError
from labctl.base.events import Event, TrialEnded, Warned
from labctl.base.tuning import Kind, Level
from labctl.run.guests.bench import Bench
from labctl.run.trials import engine as module
from labctl.run.trials import trial
from labctl.run.trials.beside import PlanNeighbours
from labctl.run.trials.engine import Engine
from labctl.store.records.plan_record import PlannedTrial
from labctl.store.records.run_record import LookTaken
from labctl.store.run_folder import RunFolder
from labctl.store.samples import Reading
from labctl.store.trial import TrialRecord, TrialStatus
from labctl.study.plan import Plan
from labctl.study.study import GuestShape, Limits, Roles, StudyWorkload

TUNINGS = {"native": Kind.NATIVE, "baseline": Kind.GUEST, "pinned": Kind.GUEST}
WORKLOADS = ("cpu", "wake")

Outcome = Sequence[str] | LabctlError
"""Why an attempt is invalid ([] when it is not), or what it raises."""


def small_plan(*, blocks: int = 1, attempts: int = 3, collect: Level = Level.COUNTERS) -> Plan:
    """Each tuning once per block, two workloads inside of it."""
    trials = []
    for block in range(1, blocks + 1):
        for position, tuning in enumerate(TUNINGS, start=1):
            for name in WORKLOADS:
                cell = {"tuning": tuning, "workload": name, "condition": "quiet"}
                trials.append(
                    PlannedTrial(
                        number=len(trials) + 1, block=block, boot=1, position=position, cell=cell
                    )
                )
    declared = StudyWorkload(
        program="sysbench-cpu",
        parameters={"max_prime": 2000},
        duration_s=1.0,
        primary="events_per_s",
        margin=0.05,
    )
    return Plan(
        study="small",
        title="Small",
        study_digest="s",
        host_digest="h",
        seed=1,
        quick=False,
        roles=Roles(baseline="baseline", native="native", control=None, handicap=None),
        tunings={},
        skipped={},
        workloads=dict.fromkeys(WORKLOADS, declared),
        conditions=("quiet",),
        blocks=blocks,
        blocks_per_boot=blocks,
        guest=GuestShape(image="debian-13", vcpus=1, memory_mib=1024),
        limits=Limits(attempts=attempts, other_cpu=0.1, warmup_cap_s=30),
        trials=tuple(trials),
        collect=collect,
    )


@dataclass
class World:
    """The machines that an engine gets. What happened is in the lists."""

    monkeypatch: pytest.MonkeyPatch
    results: Path
    outcome: Callable[[PlannedTrial, int], Outcome] = lambda planned, attempt: []
    """What an attempt at a trial comes to."""
    parse: Callable[[TrialRecord], list[Reading]] = lambda record: []
    refuse: Callable[[str], LabctlError | None] = lambda tuning: None
    """What asking for a machine with a tuning raises."""
    fail_at_end: Callable[[str], LabctlError | None] = lambda tuning: None
    """What ending that machine raises."""
    misplaced: Callable[[int], list[str]] = lambda number: []
    """What is read back of that machine's threads after a trial."""
    proven: Callable[[int], None] = lambda machines: None
    """What hashing a native machine's files raises; so many machines there were."""
    dies: Callable[[int], bool] = lambda number: False
    """Whether the machine is gone after a trial."""
    odd: Callable[[int], list[str]] = lambda number: []
    """What is odd about a trial's program."""
    noted: list[tuple[str, bool]] = field(default_factory=list)
    """Notes on programs, each with whether a trial was measured meanwhile."""
    boots: list[int] = field(default_factory=list)
    """The plan's boot of each guest that was asked for."""
    saved: list[int] = field(default_factory=list)
    """The plan's boots that were asked for for neighbours' sake, before a machine was."""
    benches: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    trials: list[tuple[int, int, int]] = field(default_factory=list)
    """Number, attempt and the count of machines so far, of each trial that was run."""
    events: list[Event] = field(default_factory=list)
    measuring: bool = False
    why_end: Callable[[int], str | LookTaken | None] = lambda blocks: None
    """What whoever judges says after so many blocks."""
    looks: list[LookTaken] = field(default_factory=list)
    """The looks that the engine recorded."""

    def __post_init__(self) -> None:
        def bench_of(lab: Any, boots: Any, boot: int, tuning: Any, *, fresh: bool) -> Any:
            if tuning.kind is not Kind.NATIVE:
                self.boots.append(boot)
            return self._bench(tuning.name)

        self.monkeypatch.setattr(module, "bench_of", bench_of)
        self.monkeypatch.setattr(trial, "run_trial", self._run_trial)
        self.monkeypatch.setattr(trial, "parse_trial", lambda folder, record: self.parse(record))

    def engine(self, plan: Plan, folder: RunFolder | None = None) -> Engine:
        if folder is None:
            path = self.results / "run"
            folder = RunFolder(path) if path.exists() else RunFolder.create(self.results, "run")
        kinds = {name: tuning.kind for name, tuning in plan.tunings.items()} or TUNINGS
        lab: Any = SimpleNamespace(
            tunings={n: SimpleNamespace(name=n, kind=k) for n, k in kinds.items()},
            listener=self._listen,
        )
        parts: Any = None
        proof: Any = SimpleNamespace(check=lambda kind, channel: self.proven(len(self.benches)))
        proof.for_arm = lambda tuning: proof
        calibrations: Any = SimpleNamespace(of=lambda kind, declared: None)
        calibrations.for_arm = lambda tuning: calibrations
        boots: Any = SimpleNamespace(saved=self.saved.append)
        neighbours = PlanNeighbours(lab, boots, plan)
        note = lambda text: self.noted.append((text, self.measuring))  # noqa: E731
        attempts = trial.Attempts(lab, folder, plan, calibrations, neighbours, note)
        return Engine(
            attempts,
            parts,
            proof,
            fresh_boots=False,
            why_end=self.why_end,
            on_look=self.looks.append,
        )

    def _listen(self, event: Event) -> None:
        assert not self.measuring, f"{event} while a trial was measured"
        self.events.append(event)

    @contextmanager
    def _bench(self, tuning: str) -> Iterator[Any]:
        if error := self.refuse(tuning):
            raise error
        self.benches.append(tuning)
        channel = SimpleNamespace(wait_ready=self._wait_ready)
        bench: Any = SimpleNamespace(
            kind=TUNINGS.get(tuning, Kind.GUEST),
            tuning=tuning,
            channel=channel,
            boot=int(tuning != "native"),
            problems=(),
            misplaced=lambda: self.misplaced(self.trials[-1][0]),
        )
        bench.serves = lambda: Bench.serves(bench)
        try:
            yield bench
        finally:
            self.ended.append(tuning)
        if error := self.fail_at_end(tuning):
            raise error

    def _wait_ready(self, deadline: Any) -> None:
        if self.dies(self.trials[-1][0]):
            raise BrokenError("the guest: ended while labctl was talking to it")

    def _run_trial(self, lab: Any, bench: Any, request: Any, folder: Any) -> Any:
        planned: PlannedTrial = request.planned
        self.trials.append((planned.number, request.attempt, len(self.benches)))
        folder.write_raw("stdout.txt", f"{planned.number}.{request.attempt}")
        self.measuring = True
        outcome = self.outcome(planned, request.attempt)
        for text in self.odd(planned.number):
            request.note(text)
        self.measuring = False
        if isinstance(outcome, LabctlError):
            raise outcome
        return TrialRecord(
            number=planned.number,
            attempt=request.attempt,
            block=planned.block,
            boot=planned.boot,
            position=planned.position,
            cell=planned.cell,
            status=TrialStatus.INVALID if outcome else TrialStatus.DONE,
            reasons=tuple(outcome),
        )

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.results / "run")

    def records(self) -> dict[str, TrialRecord]:
        return {t.path.name: t.read_record() for t in self.folder.trial_folders()}

    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Warned)]

    def told(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, TrialEnded)]
