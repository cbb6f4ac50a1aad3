"""Provide what all measurements share: where state lies, and a host that is ready for guests."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labctl.base.events import Listener
from labctl.base.paths import StatePaths
from labctl.run.guests.base_guest import guest_base
from labctl.run.guests.lab import Lab
from labctl.run.guests.lab_opening import open_lab
from labctl.run.guests.leftovers import alone
from labctl.run.planning.plan import plan_sweep
from labctl.run.planning.planned import Planned, SweepRequest
from labctl.study.load_study import Overrides

TRACE_EVENTS = 10_000_000

STUDY = "pinning"
IMAGE = "debian-13"

# Full durations, one block, the four roles: under a neighbour, where what surrounds a trial is
# slowest (hogs are started and ended around each).
WORKLOADS = ("sysbench-cpu", "cyclictest")
CONDITION = "neighbour"
SWEEP_ARGUMENTS = shlex.split(
    f"sweep {STUDY} --blocks 1 --seed 1 --condition {CONDITION} --tuning baseline "
    + " ".join(f"--workload {name}" for name in WORKLOADS)
)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Provide what all measurements share."""

    places: StatePaths
    listener: Listener
    trace_events: int = TRACE_EVENTS
    command: str = "make bench"
    """Holder of the host's lock, as another labctl is told."""

    @contextmanager
    def open_lab(self, planned: Planned) -> Iterator[Lab]:
        """The host for guests of the trimmed image, as a sweep has it; left as it was found."""
        with (
            alone(self.places, self.listener, self.command),
            open_lab(
                self.places,
                planned,
                guest_base(planned, self.places, "auto", self.listener),
                listener=self.listener,
            ) as lab,
        ):
            yield lab

    def planned(self) -> Planned:
        """Return the plan of the sweep that is measured."""
        overrides = Overrides(
            tunings=("baseline",), workloads=WORKLOADS, conditions=(CONDITION,), blocks=1
        )
        return plan_sweep(
            SweepRequest(
                study=STUDY, places=self.places, results=Path("."), overrides=overrides, seed=1
            )
        )
