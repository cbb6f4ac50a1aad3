"""Run a declared workload beside a trial until it is told to stop, and read what it did.

A workload that is stopped by a signal runs once. Any other, of fixed work or of a duration, runs
again and again, each run to its end, so that its output can be read whatever happens.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace

from labctl.base.command import Command, Server
from labctl.base.cpus import CpuSet
from labctl.workloads import loops
from labctl.workloads.commands import TIMEOUT
from labctl.workloads.declared_metrics import operations_in
from labctl.workloads.registry import defined
from labctl.workloads.setting import Parameters, Setting
from labctl.workloads.workload import Workload

LIMIT_S = 7200.0
"""Seconds after which a neighbour ends by itself, should nobody be left to stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Hold what runs beside a trial. `parameters`: all of them; `run_s`: seconds of one run of a
    workload that runs for a duration."""

    program: Workload
    parameters: Parameters
    run_s: float

    @classmethod
    def of(
        cls,
        name: str,
        definition: Mapping[str, object] | None,
        parameters: Mapping[str, object],
        run_s: float,
    ) -> Beside:
        """Return what a plan or a trial names. Raises UsageError."""
        program = defined(name, definition)
        return cls(program=program, parameters=program.check_parameters(parameters), run_s=run_s)

    @property
    def is_repeated(self) -> bool:
        return self.program.file.trial.kind != "until-stopped"

    @property
    def binaries(self) -> tuple[str, ...]:
        """Return what it executes, as paths in the image's tree."""
        own = (path for path in self.program.binaries if path != TIMEOUT)
        return (*own, *((loops.SHELL,) if self.is_repeated else ()))

    @property
    def stop_signal(self) -> signal.Signals:
        """Return what tells it to stop: a repeated one's shell alone, any other's whole process
        group."""
        return signal.SIGTERM if self.is_repeated else signal.SIGINT

    def command(self, cpus: CpuSet) -> Command:
        """Return what runs until it is stopped. `cpus`: those that it may use."""
        # The command of one run, whatever a trial of it is.
        command = self._of_kind("once").command(self._setting(cpus))
        if self.is_repeated:
            looped = loops.until_told(command.argv, command.files)
            command = replace(command, argv=looped, files=())
        return replace(command, timeout_s=LIMIT_S)

    def servers(self, cpus: CpuSet) -> tuple[Server, ...]:
        # There is no file system among them: no neighbour has a data disk.
        there = self.program.servers(self._setting(cpus))
        return tuple(one for one in there if isinstance(one, Server))

    def operations(
        self, stdout: str, stderr: str, files: Mapping[str, bytes], seconds: float
    ) -> float:
        """Return how many operations it has done in its life of `seconds`: as it counts them, else
        by its rate. Raises BrokenError where its output doesn't say."""
        read = self._of_kind("repeat" if self.is_repeated else "until-stopped").file
        runs = (stdout, stderr, files)
        return operations_in(read, self.program.rate_metric, runs, self.parameters, seconds)

    def _setting(self, cpus: CpuSet) -> Setting:
        return Setting(
            parameters=self.parameters, vcpus=len(cpus), duration_s=self.run_s, cpus=cpus
        )

    def _of_kind(self, kind: str) -> Workload:
        file = self.program.file
        trial = file.trial.model_copy(update={"kind": kind, "begins": None})
        return replace(self.program, file=file.model_copy(update={"trial": trial}))
